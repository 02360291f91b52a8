"""Which part of a model each of its modules belongs to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from weft.analysis.result import Result
from weft.blocks.base import Block
from weft.core.config import PartConfig, Shared
from weft.core.layer import Layer
from weft.core.model import Encoder, Head, Model, Readout
from weft.feedforward.moe import MixtureOfExperts
from weft.mixers.attention import Attention
from weft.mixers.cross_attention import CrossAttention
from weft.models.decoder import Decoder, StackedConfig
from weft.models.encoder import TokenEncoder
from weft.norms.base import Norm
from weft.positions.base import PositionScheme

EMBEDDINGS, POSITIONS, NORMS = "embeddings", "positions", "norms"
PROJECTIONS, SCORES = "attention projections", "attention scores"
FEEDFORWARD, LOGITS, ENCODER = "feed-forward", "logits", "encoder"

NAMED = ((Head, LOGITS), (nn.Embedding, EMBEDDINGS), (PositionScheme, POSITIONS), (Norm, NORMS))
"""Modules that are a part wherever they stand."""


@dataclass(frozen=True)
class PartParameters(Result):
    """Numbers in one part, those that it shares with an earlier part not counted again."""

    part: str
    numbers: int
    share: float


@dataclass(frozen=True)
class ParameterGroup(Result):
    """Tensors of one name and shape, block numbers written ``*``."""

    path: str
    shape: tuple[int, ...]
    copies: int
    numbers: int


@dataclass(frozen=True)
class Parameters(Result):
    """How many numbers a model learns.

    Attributes:
        total: tied ones counted once.
        embeddings: of these, in token embeddings (also when they are the readout's matrix).
        active: that one token uses: of a mixture of experts, the experts chosen.
        tied: the readout's matrix is the token embedding.
    """

    total: int
    embeddings: int
    active: int
    tied: bool
    parts: tuple[PartParameters, ...]
    groups: tuple[ParameterGroup, ...]


def label_modules(model: Model) -> dict[str, str]:
    """The part of every module, by its path."""
    kinds = {id(layer): name for layer, name in _layers(model)}
    labels: dict[str, str] = {}
    for path, module in model.named_modules():
        parent = path.rpartition(".")[0]
        inherited = labels.get(parent, "")
        labels[path] = _label(module, path, inherited, kinds.get(id(module)))
    return labels


def _label(module: nn.Module, path: str, inherited: str, layer: str | None) -> str:
    if isinstance(module, Encoder) and path:
        return ENCODER
    own = layer or next((label for kind, label in NAMED if isinstance(module, kind)), None)
    if own is not None:
        return f"{ENCODER} {own}" if inherited.startswith(ENCODER) else own
    if inherited.endswith(SCORES) and isinstance(module, nn.Linear):
        return inherited.replace(SCORES, PROJECTIONS)
    if inherited or "." in path or isinstance(module, Layer | nn.ModuleDict):
        return inherited
    return path


def _layers(model: Model) -> Iterator[tuple[nn.Module, str]]:
    """Every layer inside a block with the name of its part."""
    shared = _shared(model)
    for holder in model.modules():
        if isinstance(holder, Block):
            for config, layer in zip(holder.config.layers, holder.children_layers(), strict=True):
                yield layer, _layer_name(config, layer, shared)


def _shared(model: Model) -> Mapping[str, PartConfig]:
    """The parts declared under ``shared:``, by name."""
    found: dict[str, PartConfig] = {}
    for module in model.modules():
        if isinstance(module, Decoder | TokenEncoder) and isinstance(module.config, StackedConfig):
            found |= module.config.shared
    return found


def _layer_name(config: PartConfig, layer: Layer, shared: Mapping[str, PartConfig]) -> str:
    if isinstance(layer, Attention | CrossAttention):
        return SCORES if isinstance(layer, Attention) else f"cross-{SCORES}"
    known = shared.get(config.shared, config) if isinstance(config, Shared) else config
    return FEEDFORWARD if known.group == "feedforward" else known.kind


def count_parameters(model: Model) -> Parameters:
    """The parameters of a model by part and by path; a parameter belongs to the first part that holds it."""
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
    return Parameters(total, sum(n for part, n in parts.items() if part.endswith(EMBEDDINGS)), total - _idle(model),
                      _is_tied(model), listed, tuple(_group(path, shape, n) for (path, shape), n in groups.items()))


def _group(path: str, shape: tuple[int, ...], numbers: int) -> ParameterGroup:
    size = math.prod(shape)
    return ParameterGroup(path, shape, numbers // size if size else 1, numbers)


def _idle(model: Model) -> int:
    """Numbers of experts that a token does not choose."""
    idle = 0
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            count = sum(parameter.numel() for parameter in module.experts.parameters())
            idle += count - count * module.top_k // len(module.experts)
    return idle


def _is_tied(model: Model) -> bool:
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    readouts = [module for module in model.modules() if isinstance(module, Readout)]
    return any(id(parameter) in tables for readout in readouts for parameter in readout.parameters())
