"""The parameters of a model by part."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from torch import nn

from weft.core.layer import EMBEDDINGS, Part, label_modules
from weft.core.model import Model, Readout, trained_count
from weft.core.strict_json import Record


@dataclass(frozen=True)
class PartParameters(Record):
    """The number of parameters of one part; shared ones count for the first part that has them."""

    part: str
    numbers: int
    share: float


@dataclass(frozen=True)
class ParameterGroup(Record):
    """Parameters of equal shape whose names differ in block numbers only, written as ``*``."""

    path: str
    shape: tuple[int, ...]
    copies: int
    numbers: int


@dataclass(frozen=True)
class Parameters(Record):
    """The number of parameters of a model.

    Attributes:
        total: all parameters; tied ones count once.
        embeddings: those of token embeddings, also if the readout shares them.
        active: those that one token uses, which excludes experts that are not chosen.
        tied: whether the readout's matrix is the token embedding.
        trained: those that training changes.
    """

    total: int
    embeddings: int
    active: int
    tied: bool
    trained: int
    parts: tuple[PartParameters, ...]
    groups: tuple[ParameterGroup, ...]


def count_parameters(model: Model) -> Parameters:
    """The parameters of a model by part and by path; a shared one counts for the first part that has it."""
    labels = label_modules(model)
    parts: dict[str, int] = {}
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    for path, parameter in model.named_parameters():
        label = labels[path.rpartition(".")[0]] or path
        parts[label] = parts.get(label, 0) + parameter.numel()
        key = (re.sub(r"(?<=\.)\d+(?=\.)", "*", path), tuple(parameter.shape))
        groups[key] = groups.get(key, 0) + parameter.numel()
    total = sum(parts.values())
    listed = tuple(PartParameters(part, numbers, numbers / total) for part, numbers in parts.items())
    idle = sum(part.declares().idle_parameters for part in model.modules() if isinstance(part, Part))  # for one token
    return Parameters(total, sum(n for part, n in parts.items() if part.endswith(EMBEDDINGS)), total - idle,
                      _is_tied(model), trained_count(model), listed,
                      tuple(_group(path, shape, n) for (path, shape), n in groups.items()))


def _group(path: str, shape: tuple[int, ...], numbers: int) -> ParameterGroup:
    size = math.prod(shape)
    return ParameterGroup(path, shape, numbers // size if size else 1, numbers)


def _is_tied(model: Model) -> bool:
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    readouts = [module for module in model.modules() if isinstance(module, Readout)]
    return any(id(parameter) in tables for readout in readouts for parameter in readout.parameters())
