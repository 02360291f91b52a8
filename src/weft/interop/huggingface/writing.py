"""Writing a model as a folder that its native class in `transformers` opens."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from weft.checkpoints.layout import CONFIG_FILE
from weft.checkpoints.tensors import own_tensors
from weft.core.errors import InputError, UnsupportedError, nearest
from weft.core.model import Model, ModelConfig
from weft.families.canonical import canonical
from weft.families.family import Family, families
from weft.families.template import Facts
from weft.families.weights import TensorMap
from weft.interop.huggingface.stored import INDEX, SINGLE


@dataclass(frozen=True)
class Fit:
    """A family that can express a model: its configuration in that format, and the facts."""

    family: Family
    raw: Mapping[str, Any]
    facts: Facts


def fit(config: ModelConfig, kept: Mapping[str, Any], *, family: str | None = None, first: str | None = None) -> Fit:
    """The family whose native class can hold a model.

    Args:
        kept: see `Family.write`.
        family: the only family to try; None: all.
        first: the family to try first, such as the one that the model came from.

    Raises:
        InputError: no family of that name has a foreign format.
        UnsupportedError: none can; the message lists what does not fit into the nearest.
    """
    able = {name: each for name, each in families().items() if each.native is not None}
    widening = {name for name, each in able.items() if each.native is not None and each.native.widens}
    if family is not None and family not in able:
        raise InputError(f"no family with a format is called {family!r}.", where="family", remedy=nearest(family, able))
    alike = [name for name, each in able.items() if each.template["kind"] == config.kind]
    candidates = [family] if family else sorted(alike or able, key=lambda name: (name != first, name in widening, name))
    found: dict[str, list[str]] = {}
    for name in candidates:
        raw, facts, found[name] = able[name].write(config, kept)
        if not found[name]:
            return Fit(able[name], raw, facts)
    raise _nothing_fits(found, canonical(config))


def _nothing_fits(found: Mapping[str, list[str]], data: Mapping[str, Any]) -> UnsupportedError:
    name = min(found, key=lambda each: sum(_settings(data, problem.partition(":")[0]) for problem in found[each]))
    lines = "".join(f"\n  - {problem}" for problem in found[name])
    what = f"the family {name!r} cannot express this model" if len(found) == 1 else (
        f"none of {len(found)} native classes can express this model; the nearest is {name!r}")
    return UnsupportedError(f"{what}, which does not fit in {len(found[name])} "
                            f"place{'s' if len(found[name]) > 1 else ''}:{lines}\n", where="model",
                            remedy="Change the model there, keep it as a Weft checkpoint, or write it with --with-code "
                                   "(with_code=True): the folder then has a modelling file, which needs Weft.")


def _settings(data: Any, place: str) -> int:
    """How many settings of a configuration lie at or below a place: a list of layers that differs, or a part of another
    kind, counts for all that is in it."""
    for name in place.removesuffix(".kind").split("."):
        if isinstance(data, list) and (name == "*" or name.isdigit()) and data:
            data = data[0 if name == "*" else min(int(name), len(data) - 1)]
        elif isinstance(data, Mapping) and name in data:
            data = data[name]
        else:
            return 1
    return _leaves(data)


def _leaves(data: Any) -> int:
    inside = data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else None
    return 1 if inside is None else max(1, sum(map(_leaves, inside)))


def write_model(fitted: Fit, model: Model, draft: Path, *, shard_bytes: int) -> None:
    """Write configuration and tensors into an empty folder, one shard in memory at a time."""
    account = fitted.family.account(model, fitted.facts)
    own = own_tensors(model)
    dtype = next(iter(own.values())).dtype
    name = str(dtype).removeprefix("torch.")
    raw = {**fitted.raw, "dtype": name, "torch_dtype": name}
    write_json(draft / CONFIG_FILE, raw)
    sizes = {name: math.prod(account.shapes[name]) * dtype.itemsize for rule in account.rules for name in rule.theirs}
    write_weights(_written(account, own), sizes, draft, shard_bytes=shard_bytes)


def write_weights(produced: Iterator[tuple[str, Tensor]], sizes: Mapping[str, int], draft: Path, *,
                  shard_bytes: int) -> None:
    """Write safetensors files, with an index where there are several, one of them in memory at a time.

    Args:
        sizes: bytes of each tensor by name, in the order in which they are produced.
        shard_bytes: most bytes of one file (a larger tensor has a file of its own).
    """
    shards = _shards(sizes, shard_bytes)
    places: dict[str, str] = {}
    for index, names in enumerate(shards):
        file = SINGLE if len(shards) == 1 else f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
                   for name, tensor in islice(produced, len(names))}
        save_file(tensors, draft / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    if len(shards) > 1:
        write_json(draft / f"{SINGLE}{INDEX}", {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places})


def _written(account: TensorMap, own: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The file's tensors in the order of the rules."""
    with torch.no_grad():
        for rule in account.rules:
            yield from zip(rule.theirs, rule.write([own[each].detach() for each in rule.ours]), strict=True)


def _shards(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """The tensors' names, in their order, in groups of at most ``most`` bytes (a larger tensor is a group)."""
    groups: list[list[str]] = [[]]
    size = 0
    for name, own in sizes.items():
        if groups[-1] and size + own > most:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += own
    return groups


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file as `transformers` does, with sorted keys."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
