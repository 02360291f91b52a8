"""Groups of parameters with their own learning rate and weight decay: by kind, by name, and by depth.

The kind of each parameter of a model, by which optimisers treat it.

Training of some parts: which parameters of a model train, by name and by kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Self, TypeAlias, TypeVar, get_args

from pydantic import Field, model_validator
from torch import nn

from weft.core.config import rule
from weft.core.errors import ConfigError
from weft.core.heads import Head
from weft.core.layer import Part, with_boundaries
from weft.core.part_config import Settings
from weft.linear.rewrite import matches, nearest_end

Kind: TypeAlias = Literal["matrices", "vectors", "embeddings", "readouts", "dynamics"]
"""``dynamics``: `Declared.dynamics`, whatever their shape; ``embeddings``: tables of tokens, types and positions, and
so a readout that is tied to one; ``readouts``: other tensors of two dimensions or more in readouts and heads;
``matrices``: all further ones; ``vectors``: what has one dimension or none, such as biases and gains."""


class Labelled(NamedTuple):
    """A trained parameter.

    Attributes:
        name: in the model, its first.
        hidden: whether it is the matrix [out,in] of a linear map that is not in a readout or head: not the kernel of a
            convolution, and not numbers that a layer keeps as a table, such as one gain for each feature of each head.
    """

    name: str
    parameter: nn.Parameter
    kind: Kind
    hidden: bool


def labelled(model: nn.Module) -> Iterator[Labelled]:
    """The trained parameters of a model, each once, in the model's order."""
    found = _Found(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            kind = found.kind(parameter)
            yield Labelled(name, parameter, kind, kind == "matrices" and id(parameter) in found.maps
                           and parameter.dim() == 2 and not parameter.is_complex())


class _Found:
    """Identities of the parameters of a model that are something particular."""

    def __init__(self, model: nn.Module) -> None:
        self.dynamics = {id(p) for part in model.modules() if isinstance(part, Part) for p in part.declares().dynamics}
        tables = [module for module in model.modules()
                  if isinstance(module, nn.Embedding) or (isinstance(module, Part) and module.declares().holds_table)]
        self.tables = {id(p) for table in tables for p in table.parameters(recurse=False)}
        self.heads = {id(p) for module in model.modules() if isinstance(module, Head) for p in module.parameters()}
        self.maps = {id(p) for module in model.modules() if isinstance(module, nn.Linear)
                     for p in module.parameters(recurse=False)}

    def kind(self, parameter: nn.Parameter) -> Kind:
        if id(parameter) in self.dynamics:
            return "dynamics"
        if parameter.dim() < 2:
            return "vectors"
        if id(parameter) in self.tables:
            return "embeddings"
        return "readouts" if id(parameter) in self.heads else "matrices"


PLACE = "training.optimizer"


class GroupSettings(Settings):
    """Parameters with a rate or decay of their own. Where several groups hold a parameter, the first one counts.

    Attributes:
        kinds: what the parameters are, see `weft.training.parameter_groups`: ``matrices``, ``vectors``, ``embeddings``,
            ``readouts``, ``dynamics``; None: of every kind.
        names: shell patterns (``*``, ``?``, ``[0-3]``) for the dotted name of a parameter, of a module that contains
            it, or of the end of such a name: ``norm``, ``stack.layers.0``, ``qkv.bias``; None: of every name.
        lr: their peak learning rate, which the schedule multiplies; None: that of the optimiser.
        weight_decay: of all of them, vectors too; None: that of the optimiser.
    """

    kinds: list[Kind] | None = Field(default=None, min_length=1)
    names: list[str] | None = Field(default=None, min_length=1)
    lr: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    weight_decay: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kinds is None and self.names is None:
            raise rule("", "a group without kinds and names.", "Say which parameters it holds.")
        if self.lr is None and self.weight_decay is None:
            raise rule("", "a group without lr and weight_decay.", "Give one of them, or leave the group out.")
        return self

    def holds(self, each: Labelled) -> bool:
        """Whether the group has this parameter."""
        return (self.kinds is None or each.kind in self.kinds) and (
            self.names is None or any(matches(each.name, pattern) for pattern in self.names))


def group_of(each: Labelled, groups: Sequence[GroupSettings]) -> GroupSettings | None:
    """The first group that holds a parameter; None: none does."""
    return next((group for group in groups if group.holds(each)), None)


def group_problems(model: nn.Module, groups: Sequence[GroupSettings]) -> Iterator[str]:
    """The problems of groups for this model: patterns and kinds that match no trained parameter, and groups whose
    parameters earlier ones hold."""
    every = list(labelled(model)) if groups else []
    split = [each.name.split(".") for each in every]
    paths = sorted({".".join(names[:end]) for names in split for end in range(1, len(names) + 1)})
    for index, group in enumerate(groups):
        place, found = f"{PLACE}.groups.{index}", False
        for number, pattern in enumerate(group.names or ()):
            if not any(matches(each.name, pattern) for each in every):
                found = True
                yield (f"{place}.names.{number}: {pattern!r} matches no parameter that trains. "
                       f"{nearest_end(pattern, paths)}")
        for number, kind in enumerate(group.kinds or ()):
            if not any(each.kind == kind for each in every):
                found = True
                yield f"{place}.kinds.{number}: no parameter that trains is one of the {kind}. Leave it out."
        if not found and not any(group_of(each, groups) is group for each in every):
            yield (f"{place}: it holds no parameter that an earlier group does not hold. Change it, move it before "
                   "the other, or leave it out.")


def blocks_of(model: nn.Module) -> list[list[Part]]:
    """The blocks of every stack of a model in order, a block that is used repeatedly once. A stack is a part that
    declares `kept_activations`; those inside a block belong to the block."""
    stacks = with_boundaries(model)
    inside = {id(inner) for stack in stacks for inner in stack.modules() if inner is not stack}
    return [list(_parts_in(stack)) for stack in stacks if id(stack) not in inside]


def _parts_in(module: nn.Module) -> Iterator[Part]:
    """The outermost parts in a module."""
    for child in module.children():
        if isinstance(child, Part):
            yield child
        else:
            yield from _parts_in(child)


def depths(model: nn.Module) -> dict[int, int]:
    """How far below the top each parameter lies, by its identity: 1 for the last block of a stack, L for the first of
    L; L + 1 for embeddings and for everything before the first block; parameters above the blocks, such as a last norm
    and a readout of its own, are left out. A parameter of several blocks counts for the first."""
    found = dict[int, int]()
    stacks = blocks_of(model)
    for blocks in stacks:
        for index, block in enumerate(blocks):
            for parameter in block.parameters():
                found.setdefault(id(parameter), len(blocks) - index)
    lowest, above = max(found.values(), default=0) + 1, False
    tables = {id(each.parameter) for each in labelled(model) if each.kind == "embeddings"}
    for module in model.modules():
        above = above or any(module is block for blocks in stacks for block in blocks)
        for parameter in module.parameters(recurse=False):
            if not above or id(parameter) in tables:
                found.setdefault(id(parameter), lowest)
    return found


M = TypeVar("M", bound=nn.Module)
TRAIN_PLACE = "training.train"
KINDS: frozenset[str] = frozenset(get_args(Kind))


def only_trained(model: M, patterns: Sequence[str] | None) -> M:
    """Freeze every parameter of a model that no pattern reaches, and return the model: what is frozen has no gradient
    and no state of the optimiser, does not decay and takes no part in clipping. What parts change otherwise than by
    gradients, such as running statistics, still changes.

    Args:
        model: which parameters that are frozen already stay so, such as the matrices that an adapter is added to.
        patterns: kinds of parameters (`weft.training.parameter_groups`), or shell patterns for their names as in
            `weft.training.parameter_groups`; a tied parameter has every name under which it is used. None: nothing is
            frozen.

    Raises:
        ConfigError: a pattern reaches no parameter that trains; all are listed.
    """
    if patterns is None:
        return model
    every, names = list(labelled(model)), _names(model)
    if problems := list(_unreached(every, names, patterns)):
        raise ConfigError(problems)
    for each in every:
        each.parameter.requires_grad_(any(_reaches(pattern, each, names) for pattern in patterns))
    return model


def _reaches(pattern: str, each: Labelled, names: Mapping[int, list[str]]) -> bool:
    return pattern == each.kind or any(matches(name, pattern) for name in names[id(each.parameter)])


def _names(model: nn.Module) -> dict[int, list[str]]:
    """Every name of each parameter, by its identity."""
    found: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


def _unreached(every: Sequence[Labelled], names: Mapping[int, list[str]], patterns: Sequence[str]) -> Iterator[str]:
    """The problems of patterns that reach nothing."""
    split = [name.split(".") for each in every for name in names[id(each.parameter)]]
    paths = sorted({".".join(parts[:end]) for parts in split for end in range(1, len(parts) + 1)})
    for index, pattern in enumerate(patterns):
        if any(_reaches(pattern, each, names) for each in every):
            continue
        if pattern in KINDS:
            yield f"{TRAIN_PLACE}.{index}: no parameter that trains is one of the {pattern}. Leave it out."
        elif not paths:
            yield f"{TRAIN_PLACE}.{index}: {pattern!r}, and this model has no parameter that trains. Leave it out."
        else:
            yield f"{TRAIN_PLACE}.{index}: {pattern!r} matches no parameter that trains. {nearest_end(pattern, paths)}"
