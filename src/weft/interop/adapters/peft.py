"""Adapters in the format of `peft`, for models that have a family: adapter_config.json and adapter_model.safetensors.

`peft` names maps by the modules of `transformers`, which a family's rules translate. Where three of theirs are one map
here, such as queries, keys and values, each has a term beside its own rows; where one of theirs is several here, each
gets the rows of B that are its own, with a copy of A. Values are equal either way.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from weft.checkpoints.layout import PEFT_FILE, PEFT_TENSORS
from weft.checkpoints.load import Loaded
from weft.checkpoints.tensors import open_tensors, read_tensors
from weft.core.base_model import built_empty
from weft.core.errors import CheckpointError, UnsupportedError, nearest
from weft.core.model import LanguageModel, Model
from weft.disk.manifest import write_manifest
from weft.families.tensor_steps import TRANSPOSE
from weft.families.weights import Rule, TensorMap
from weft.interop.adapters.base import fill, fingerprint_of, open_base, put_on, trained_tensors
from weft.interop.adapters.peft_keys import PeftConfig, read_config, written
from weft.interop.adapters.spread import RowTerm, SpreadTerms, read_through, write_through
from weft.interop.huggingface.writing import fit
from weft.linear.linear import HoldsMatrix, Linear
from weft.linear.lora import LoRAConfig
from weft.linear.low_rank import Adapted, rows_of

PREFIX = "base_model.model."
ENDS = {"lora_A.weight": "a", "lora_B.weight": "b", "lora_magnitude_vector": "m", "lora_magnitude_vector.weight": "m"}
FINGERPRINT = "weft_base"
"""The key of the file's metadata that holds `fingerprint_of` the model under the adapter."""
READOUT = "readout"


class Place(NamedTuple):
    """A map of a model, or some of its outputs, and the term beside it."""

    path: str
    term: RowTerm


@dataclass(frozen=True, eq=False)
class MatrixNames:
    """How the matrices of a model are called in its family's files.

    Attributes:
        account: of the model without rewrites.
        model: that model on the meta device.
        readout: the name of the readout's matrix that is tied to the embedding's; None where it has its own.
    """

    account: TensorMap
    model: Model
    readout: str | None

    @classmethod
    def of(cls, loaded: Loaded) -> MatrixNames:
        """Those of a model, with adapters or without. Raises `UnsupportedError`: no family of `transformers` has such a
        model."""
        config = loaded.config.with_(rewrites=[])
        fitted = fit(config, dict(loaded.facts.get("kept") or {}), first=loaded.facts.get("family"))
        model = built_empty(config)
        account, native = fitted.family.account(model, fitted.facts), fitted.family.native
        tied = None if native is None or native.tied is None else native.tied[0]
        return cls(account, model, tied if tied in account.tied else None)

    def rule(self, theirs: str) -> Rule:
        """The rule of one of the file's tensors."""
        return next(rule for rule in self.account.rules if theirs in rule.theirs)

    def map(self, path: str) -> tuple[str, Linear] | None:
        """The linear map whose matrix has this name, with its path once its part is opened; None where it is none."""
        holder = self.model.get_submodule(path.rpartition(".")[0])
        opened = holder.opened() if isinstance(holder, HoldsMatrix) else holder
        found = opened.get_submodule(opened.child) if isinstance(opened, HoldsMatrix) else opened
        at = path.rpartition(".")[0] + (f".{opened.child}" if isinstance(opened, HoldsMatrix) else "")
        return (at, found) if isinstance(found, Linear) and path.endswith(".weight") else None


def read_peft(folder: Path, *, base: str | None = None, dtype: torch.dtype | None = None) -> Loaded:
    """The model under an adapter that `peft` or Weft wrote, with the adapter.

    Args:
        base: the model under it; None: the one that the folder names.
        dtype: of all weights; None: as the model's are stored.

    Raises:
        CheckpointError: a file is damaged, the adapter has keys or tensors that cannot be carried, the model under it
            is not there, or it is another one.
        UnsupportedError: the model has no family, or stores what is adapted in another form.
    """
    config, file = read_config(folder), folder / PEFT_TENSORS
    tensors = read_tensors(file)
    found = open_base(base or config.base, folder)
    if found.config.rewrites:
        raise CheckpointError(f"the model at {found.path} has rewrites of its own, under which `peft` has no adapters.",
                              where=str(folder), remedy="Give the model as it was before.")
    names = MatrixNames.of(found)
    places = list(_places(names, _theirs(tensors, config, names, str(file)), found.model))
    result = put_on(found, [_rewrite(places, config)], folder, _metadata(file).get(FINGERPRINT))
    result.model.to(dtype)
    fill(trained_tensors(result.model, "adapter"), dict(_tensors(places, result.model)), str(file))
    return result


def write_peft(loaded: Loaded, base: str, draft: Path) -> None:
    """Write a model's adapters into an empty folder that `peft` opens.

    Args:
        loaded: the model with adapters.
        base: where the model under them is.

    Raises:
        UnsupportedError: the model has no adapters or no family, or `peft` cannot express what it has.
    """
    model, rewrites = loaded.model, loaded.config.rewrites
    trained = trained_tensors(model, "peft")
    lora = [each for each in rewrites if isinstance(each, LoRAConfig)]
    if len(lora) != len(rewrites):
        raise _inexpressible("rewrites of other kinds than lora", "Write it as --to adapter.")
    if len({(each.dropout, each.rank_stabilised, each.dora) for each in lora}) > 1:
        raise _inexpressible("rewrites that differ in dropout, rank_stabilised or dora", "Write it as --to adapter.")
    adapted = {path: module for path, module in model.named_modules() if isinstance(module, Adapted)}
    if {id(p) for module in adapted.values() for p in module.trained()} != {
            id(p) for p in model.parameters() if p.requires_grad}:
        raise _inexpressible("parameters that were trained besides the adapters (also_train)",
                             "Write it as --to adapter.")
    names = MatrixNames.of(loaded)
    terms = dict(_outgoing(names, adapted))
    config = _settings(lora[0], base, terms)
    every = [name.removesuffix(".weight") for name in (*names.account.shapes, *names.account.tied)]
    content = written(config, _ends(list(terms), every), transposed=any(
        TRANSPOSE in rule.steps for rule in names.account.rules
        if any(f"{name}.weight" in rule.theirs for name in terms)),
        causal=isinstance(model, LanguageModel) and not model.takes_source)
    (draft / PEFT_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    assert trained, "a model with adapters trains some"
    save_file(dict(_named(terms, config)), draft / PEFT_TENSORS,
              metadata={"format": "pt", FINGERPRINT: fingerprint_of(model)})
    write_manifest(draft)


def _inexpressible(what: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(f"the format of `peft` cannot hold {what}.", where="peft", remedy=remedy)


def _metadata(path: Path) -> dict[str, str]:
    with open_tensors(path) as file:
        return dict(file.metadata() or {})


# Reading.

def _theirs(tensors: Mapping[str, Tensor], config: PeftConfig, names: MatrixNames, where: str) -> dict[str, RowTerm]:
    """The term beside each of the file's matrices, by its name in the family's files. Raises `CheckpointError`: names
    that are unknown, shapes that do not fit, or half a term; all are listed."""
    modules: dict[str, dict[str, Tensor]] = {}
    problems = []
    for name, tensor in tensors.items():
        end = next((end for end in ENDS if name.endswith(f".{end}")), None)
        if end is None or not name.startswith(PREFIX):
            problems.append(f"{name}: not a matrix of low rank beside a linear map, which alone can be read.")
        else:
            modules.setdefault(name.removeprefix(PREFIX).removesuffix(f".{end}"), {})[ENDS[end]] = tensor
    shapes = {f"{module}.weight": tuple(found["b"].shape[:1] + found["a"].shape[1:]) for module, found in
              modules.items() if {"a", "b"} <= set(found)}
    known = {stored: expected for expected, stored in names.account.reconcile(shapes)[0].items()}
    result = dict[str, RowTerm]()
    for module, found in modules.items():
        at = known.get(f"{module}.weight")
        if set(found) != ({"a", "b", "m"} if config.dora else {"a", "b"}):
            problems.append(f"{module}: of lora_A, lora_B and lora_magnitude_vector not all that it needs, or more.")
        elif at is None:
            every = [each.removesuffix(".weight") for each in names.account.shapes]
            problems.append(f"{module}: the model has no such map. {nearest(module, every)[:200]}")
        else:
            at = names.readout if names.readout == f"{module}.weight" else at
            result[at] = RowTerm(slice(None), found["a"], found["b"], config.scale(module), found.get("m"))
            problems += _misshapen(names, at, module, result[at], config.rank_of(module))
    if problems or not result:
        listed = "".join(f"\n  - {problem}" for problem in problems or ["there are none."])
        raise CheckpointError(f"the adapter's tensors do not fit this model:{listed}\n", where=where,
                              remedy="Give the model that it was trained on.")
    return result


def _misshapen(names: MatrixNames, at: str, module: str, term: RowTerm, rank: int) -> Iterator[str]:
    source = names.account.tied.get(at, at)
    shape = _outs_ins(names, source)
    a, b = tuple(term.a.shape), tuple(term.b.shape)
    if a[1:] != shape[1:] or b[:1] != shape[:1] or a[:1] != b[1:]:
        yield f"{module}: B {list(b)} A {list(a)} beside a map of {shape[0]} outputs and {shape[1]} inputs."
    elif a[0] != rank:
        yield f"{module}: A has {a[0]} rows, and the file of settings has the rank {rank}."


def _outs_ins(names: MatrixNames, theirs: str) -> tuple[int, int]:
    """Outputs and inputs of one of the file's matrices."""
    outs, *ins = names.account.shapes[theirs]
    shape = (outs, math.prod(ins))
    return (shape[1], shape[0]) if TRANSPOSE in names.rule(theirs).steps else shape


def _places(names: MatrixNames, theirs: Mapping[str, RowTerm], model: nn.Module) -> Iterator[Place]:
    """The term beside each map of the model, or beside some of its outputs."""
    if names.readout is not None and names.readout in theirs:  # whose matrix is the embedding's in the file
        yield Place(f"{READOUT}.map", theirs[names.readout])
    for rule in names.account.rules:
        given = [[theirs[name]] if name in theirs else [] for name in rule.theirs]
        if any(given):
            moved = read_through(rule, given, [_outs_ins(names, name) for name in rule.theirs])
            for name, spread in zip(rule.ours, moved, strict=True):
                yield from _beside(names, name, spread, model)


def _beside(names: MatrixNames, name: str, spread: SpreadTerms, model: nn.Module) -> Iterator[Place]:
    """The terms beside one of the model's maps."""
    whole = spread.term(slice(None))
    found = names.map(name)
    if whole is None:
        return
    if found is None:
        raise UnsupportedError(f"{name} is no linear map here.", where="adapter",
                               remedy="Merge the adapter into its model in `peft`.")
    path, rows = found[0], rows_of(found[1])
    terms = {part: spread.term(at) for part, at in rows.items()}
    if len(rows) > 1 and spread.divides(rows):
        yield from (Place(f"{path}.{part}", term) for part, term in terms.items() if term is not None)
    else:
        yield Place(path, _with_lengths(whole, model, name))


def _with_lengths(term: RowTerm, model: nn.Module, name: str) -> RowTerm:
    """The term, where rows without one have the lengths of the matrix."""
    if term.magnitude is None:
        return term
    own = model.get_parameter(name).detach().to(term.magnitude).norm(dim=1)
    return replace(term, magnitude=torch.where(term.magnitude.isnan(), own, term.magnitude))


def _rewrite(places: list[Place], config: PeftConfig) -> LoRAConfig:
    """The rewrite that puts these terms beside the maps of a model."""
    ranks = {place.path: len(place.term.a) for place in places}
    alphas = {place.path: _alpha(place.term, config.rank_stabilised) for place in places}
    rank, alpha = _most(ranks.values()), _most(alphas.values())
    return LoRAConfig(rank=rank, alpha=alpha, dropout=config.dropout, rank_stabilised=config.rank_stabilised,
                      dora=config.dora, maps=list(ranks), ranks={p: r for p, r in ranks.items() if r != rank},
                      alphas={p: a for p, a in alphas.items() if a != alpha})


def _alpha(term: RowTerm, rank_stabilised: bool) -> float:
    """The alpha that gives a term its scale; rounded, so that what was a whole number is one again."""
    rank = len(term.a)
    return round(term.scale * (math.sqrt(rank) if rank_stabilised else rank), 9)


def _most(values: object) -> int | float:
    return Counter(values).most_common(1)[0][0]  # type: ignore[call-overload, no-any-return]


def _tensors(places: list[Place], model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The model's tensors of these terms, by name."""
    for path, term in places:
        owner, _, part = path.rpartition(".")
        at = model.get_submodule(path if not isinstance(_at(model, owner), Adapted) else f"{owner}.parts.{part}")
        name = next(each for each, module in model.named_modules() if module is at)
        yield f"{name}.a.weight", term.a
        yield f"{name}.b.weight", term.b
        if term.magnitude is not None:
            yield f"{name}.magnitude", term.magnitude


def _at(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


# Writing.

def _outgoing(names: MatrixNames, adapted: Mapping[str, Adapted]) -> Iterator[tuple[str, RowTerm]]:
    """The term beside each of the modules of `transformers`, by its name."""
    ours = {f"{path.removesuffix('.map')}.weight": module for path, module in adapted.items()}
    own = dict(names.model.named_parameters())
    if names.readout is not None and f"{READOUT}.map" in adapted:
        yield names.readout.removesuffix(".weight"), _terms(ours.pop(f"{READOUT}.weight"))[0]
    for rule in names.account.rules:
        given = [_terms(ours[name]) if name in ours else [] for name in rule.ours]
        if any(given):
            shapes = [(own[name].shape[0], own[name].shape[1]) for name in rule.ours]
            for name, spread in zip(rule.theirs, write_through(rule, given, shapes), strict=True):
                term = spread.term(slice(None))
                if term is None:
                    continue
                if term.magnitude is not None and bool(term.magnitude.isnan().any()):
                    raise _inexpressible(f"DoRA on some rows of {name}", "Adapt all of its rows.")
                yield name.removesuffix(".weight"), term


def _terms(module: Adapted) -> list[RowTerm]:
    rows, found = rows_of(module.base), []
    for name, term in module.terms().items():
        lengths = None if term.magnitude is None else term.magnitude.detach()
        found.append(RowTerm(rows.get(name, slice(None)), term.a.weight.detach(), term.b.weight.detach(), term.scale,
                             lengths))
    return found


def _settings(lora: LoRAConfig, base: str, terms: Mapping[str, RowTerm]) -> PeftConfig:
    ranks = {name: len(term.a) for name, term in terms.items()}
    alphas = {name: _alpha(term, lora.rank_stabilised) for name, term in terms.items()}
    rank, alpha = _most(ranks.values()), _most(alphas.values())
    return PeftConfig(base, int(rank), _whole(alpha), lora.dropout, lora.rank_stabilised, lora.dora,
                      {re.escape(name): each for name, each in ranks.items() if each != rank},
                      {re.escape(name): _whole(each) for name, each in alphas.items() if each != alpha})


def _whole(number: float) -> float:
    """A whole number as an int, which `peft` declares alpha to be."""
    return int(number) if number == int(number) else number


def _ends(chosen: list[str], every: list[str]) -> list[str]:
    """The shortest ends of names by which these modules are chosen and no others."""
    found = []
    for name in chosen:
        names = name.split(".")
        ends = (".".join(names[-count:]) for count in range(1, len(names) + 1))
        found.append(next(end for end in ends if end == name or all(
            each in chosen for each in every if each.endswith(f".{end}"))))
    return sorted(set(found))


def _named(terms: Mapping[str, RowTerm], config: PeftConfig) -> Iterator[tuple[str, Tensor]]:
    """The file's tensors, by name."""
    for module, term in terms.items():
        yield f"{PREFIX}{module}.lora_A.weight", term.a.cpu().contiguous()
        yield f"{PREFIX}{module}.lora_B.weight", term.b.cpu().contiguous()
        if config.dora:
            assert term.magnitude is not None, "DoRA gives lengths"
            yield f"{PREFIX}{module}.lora_magnitude_vector", term.magnitude.cpu().contiguous()
