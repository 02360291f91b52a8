"""Tensor parallelism: a model of which each process has the heads, channels and ids that fall to it.

What is divided, and how, the parts say themselves (`weft.linear.linear`), so there is no plan for a model or family.
Token embedding and linear readout divide by the vocabulary, which need not divide evenly. What declares nothing stays
whole on every process, and computes the same there: `Divided.whole` names it, and `weft plan` shows it.

The placements are those of DTensor, `Shard(dim)` and `Replicate()`, but what a part multiplies by are the local
tensors themselves: Weft's kernels are operators of its own, for which DTensor has no rules, and a local tensor of fewer
heads is all they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from weft.core.errors import ConfigError
from weft.core.layer import Layer
from weft.core.model import Model
from weft.heads.readout import LinearReadout
from weft.linear.linear import HOOKS, DividedDimension, Divisible, Division, Rewritten, unadapted
from weft.linear.low_rank import Adapted
from weft.linear.replacing import replaced
from weft.ops.dropout import OwnDraws
from weft.parallel.adapted import (
    along_columns,
    along_rows,
    base_of,
    second_matrices,
    terms_of,
    whole_map,
    whole_rewrite,
)
from weft.parallel.layout import EntryRange, Layout
from weft.parallel.maps import DividedMap, Into, OutOf
from weft.parallel.mesh import PLACE, Mesh
from weft.parallel.sharded_vocabulary import DividedEmbedding, DividedReadout, OwnIds

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement


@dataclass(frozen=True)
class TensorPlan:
    """The plan of tensor parallelism for a model.

    Attributes:
        divisions: of each part that is divided, by its path.
        vocabulary: paths of the token embedding and the readout, if these are divided by ids.
        whole: layers that every process computes whole, by path, each with the reason.
    """

    divisions: dict[str, Division]
    vocabulary: tuple[str, ...]
    whole: dict[str, str]

    def placements(self, model: nn.Module) -> dict[str, Placement]:
        """Where the axis ``tensor`` puts each parameter: DTensor's `Shard` or `Replicate`, by name."""
        from torch.distributed.tensor.placement_types import Replicate, Shard  # which take a second

        along = {name: place.dim for path, division in self.divisions.items()
                 for name, place in _along(model.get_submodule(path), path, division)}
        along |= {f"{path}.{name}": 0 for path in self.vocabulary
                  for name, _ in model.get_submodule(path).named_parameters(recurse=False)}
        return {name: Shard(along[name]) if name in along else Replicate() for name, _ in model.named_parameters()}


def plan_of(model: Model, parts: int) -> TensorPlan:
    """The plan of a model for ``parts`` processes. Raises `ConfigError`: numbers of heads or channels that do not
    divide; each names its layer. Or nothing can be divided, or the model has rewrites other than LoRA."""
    if unfit := [reason for rewrite in model.config.rewrites if (reason := whole_rewrite(rewrite)) is not None]:
        raise ConfigError([f"{PLACE}.tensor: {parts}, and the model has {unfit[0]}. Leave tensor out and use shard, or "
                           "leave it out of model.rewrites."])
    divisions, whole, problems = dict[str, Division](), dict[str, str](), list[str]()
    for path, layer in _innermost(model):
        found = _division(layer)
        if isinstance(found, str):
            whole[path] = found
            continue
        odd = [f"{PLACE}.tensor: {parts} processes do not divide the {count} of {name} in {path} "
               f"({type(layer).__name__}). Choose a divisor of {count}."
               for name, count in found.counts.items() if count % parts]
        problems += odd
        divisions[path] = found
    if problems:
        raise ConfigError(problems)
    vocabulary = tuple(_vocabulary(model))
    if not divisions and not vocabulary:
        raise ConfigError([f"{PLACE}.tensor: {parts}, and no part of this model can be divided. Leave it out, and use "
                           "shard or replicate."])
    return TensorPlan(divisions, vocabulary, whole)


@dataclass(frozen=True)
class Divided:
    """A model of which this process has its part.

    Attributes:
        layouts: where the parameters that are divided lie in the whole ones, by name.
        summed: names of parameters whose gradients are to be added over the axis ``tensor``.
    """

    plan: TensorPlan
    layouts: dict[str, Layout]
    summed: frozenset[str]


@torch.no_grad()
def divide(model: Model, mesh: Mesh) -> Divided:
    """Reduce a model, in place, to this process's part.

    Args:
        model: whole, with the same weights on every process.

    Raises:
        ConfigError: see `plan_of`.
    """
    parts, place, group = mesh.size("tensor"), mesh.place("tensor"), mesh.group("tensor")
    plan = plan_of(model, parts)
    assert group is not None, "the axis has several processes"
    layouts, made, summed = dict[str, Layout](), dict[str, nn.Module](), set[str]()
    for path, division in plan.divisions.items():
        part = model.get_submodule(path)
        assert isinstance(part, Divisible), "parts with a division"
        layouts |= {name: Layout.divided(part.get_parameter(name.removeprefix(f"{path}.")).shape, along, place, parts)
                    for name, along in _along(part, path, division)}
        summed |= {f"{path}.{name}" for name, _ in part.named_parameters()
                   if any(name == own or name.startswith(f"{own}.") for own in division.summed)}
        summed |= {name for child in division.through for name in
                   second_matrices(part.get_submodule(child), f"{path}.{child}")}
        made |= _maps(part, path, division, layouts, group.group_name, place)
        _cut(part, path, division, layouts)
        part.divide(parts, place)
    if plan.vocabulary:
        rows = OwnIds.of(model.vocab_size, place, parts)
        layouts |= _ids(model, plan.vocabulary, rows)
        made |= _divided_ids(model, plan.vocabulary, rows, group.group_name)
    replaced(model, lambda path, module: made.get(path, module))
    return Divided(plan, layouts, frozenset(summed))


def _innermost(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    """The layers of a model that contain no others, and those that say how they divide, without the layers in them."""
    inside: set[int] = set()
    for path, module in model.named_modules():
        if not isinstance(module, Layer) or id(module) in inside:
            continue
        own = isinstance(_division(module), Division)
        within = [each for each in module.modules() if isinstance(each, Layer) and each is not module]
        if own or not within:
            yield path, module
        if own:
            inside |= {id(each) for each in within}


def _division(layer: Layer) -> Division | str:
    if not isinstance(layer, Divisible) or "division" not in vars(type(layer)):
        return "it does not say how it divides"
    if any(vars(layer)[hooks] for hooks in HOOKS):
        return "it has been adapted from outside"
    found = layer.division()
    if isinstance(found, str):
        return found
    reasons = [(name, whole_map(layer.get_submodule(name), found.into.get(name)))
               for name in (*found.into, *found.out_of, *found.through)]
    reasons += [(place, "has an adapter, and divides otherwise than maps that are called") for name in found.along
                if (place := name.rpartition(".")[0]) and isinstance(layer.get_submodule(place), Rewritten)]
    return next((f"its map {name!r} {reason}" for name, reason in reasons if reason is not None), found)


def _along(part: nn.Module, path: str, division: Division) -> Iterator[tuple[str, DividedDimension]]:
    """The parameters of a part that are divided, by their names in the model."""
    for name, sections in division.into.items():
        yield from along_rows(part.get_submodule(name), f"{path}.{name}", sections)
    for name, sections in {**division.out_of, **division.through}.items():
        yield from along_columns(part.get_submodule(name), f"{path}.{name}", sections)
    yield from ((f"{path}.{name}", along) for name, along in division.along.items())


def _maps(part: nn.Module, path: str, division: Division, layouts: dict[str, Layout],
          group: str, index: int) -> dict[str, nn.Module]:
    """The maps that take the place of whole ones, by path. An adapter stays, beside the part of its map."""
    made: dict[str, nn.Module] = {}
    for name in (*division.into, *division.out_of, *division.through):
        module, at = part.get_submodule(name), f"{path}.{name}"
        linear, place = base_of(module, at)
        weight = layouts[f"{place}.weight"].part(linear.weight.detach())
        bias = None if linear.bias is None else linear.bias.detach()
        if name in division.into:
            own = {each: size * weight.shape[0] // linear.out_features for each, size in linear.outputs.items()}
            bias = None if bias is None else layouts[f"{place}.bias"].part(bias)
            new: DividedMap = Into(weight, bias, group, outputs=own)
        else:
            new = OutOf(weight, bias, group, goes_on=name in division.through, outputs=linear.outputs)
        for own_name, before in (("weight", linear.weight), ("bias", linear.bias)):
            if before is not None:
                new.get_parameter(own_name).requires_grad_(before.requires_grad)
        if isinstance(module, Adapted):
            _cut_to(part, path, [each.removeprefix(f"{path}.") for each in terms_of(module, at)
                                 if each in layouts], layouts)
            module.rebase(new)
            if name not in division.into:  # each process has other inputs
                module.dropout.own = OwnDraws(index)
        else:
            made[at] = new
    return made


def _cut(part: nn.Module, path: str, division: Division, layouts: dict[str, Layout]) -> None:
    """Give the part's other divided parameters their local values."""
    _cut_to(part, path, division.along, layouts)


def _cut_to(part: nn.Module, path: str, names: Iterable[str], layouts: dict[str, Layout]) -> None:
    for name in names:
        place, _, own = name.rpartition(".")
        holder = part.get_submodule(place)
        whole = holder.get_parameter(own)
        holder.register_parameter(own, nn.Parameter(layouts[f"{path}.{name}"].part(whole.detach()),
                                                    requires_grad=whole.requires_grad))


def _vocabulary(model: Model) -> Iterator[str]:
    """The paths of token embedding and readout, if both divide by ids: a table that something else reads stays
    whole."""
    tables = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.Embedding)
              and module.num_embeddings == model.vocab_size and path == "embedding.tokens"]
    readouts = [(path, module) for path, module in model.named_modules() if isinstance(module, LinearReadout)
                and unadapted(module, LinearReadout)]
    if len(tables) != 1 or len(readouts) != 1 or not unadapted(tables[0][1], nn.Embedding):
        return
    shared = {id(tables[0][1].weight), id(readouts[0][1].weight)}
    users = {path for path, module in model.named_modules(remove_duplicate=False)
             for parameter in module.parameters(recurse=False) if id(parameter) in shared}
    if users == {tables[0][0], readouts[0][0]}:
        yield from (tables[0][0], readouts[0][0])


def _ids(model: Model, paths: tuple[str, ...], rows: OwnIds) -> dict[str, Layout]:
    return {f"{path}.{name}": Layout(tuple(whole.shape), 0, (EntryRange(rows.first, 0, rows.held),)) for path in paths
            for name, whole in model.get_submodule(path).named_parameters(recurse=False)}


def _divided_ids(model: Model, paths: tuple[str, ...], rows: OwnIds, group: str) -> dict[str, nn.Module]:
    table, readout = (model.get_submodule(path) for path in paths)
    assert isinstance(readout, LinearReadout) and isinstance(table, nn.Embedding), "as the plan found"
    own = slice(rows.first, rows.first + rows.held)

    def cut(whole: Tensor) -> nn.Parameter:
        return nn.Parameter(whole.detach()[own].clone(), requires_grad=whole.requires_grad)

    weight = cut(table.weight)
    other = weight if readout.weight is table.weight else cut(readout.weight)
    return {paths[0]: DividedEmbedding(weight, rows, group), paths[1]: DividedReadout(readout, other, rows, group)}
