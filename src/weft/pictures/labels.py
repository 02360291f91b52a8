"""Words about a part: its settings, and the sizes of what it multiplies by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from torch import nn

from weft.core.model import parameter_count
from weft.core.part_config import PartConfig, Shared
from weft.drawing.numbers import si
from weft.linear.linear import Linear
from weft.masks import Mask
from weft.positions.base import POINTS, PositionScheme

HIDDEN = frozenset({"kind", "backend", "scores", "layers", "dropout", "std"})
"""Settings that a drawing leaves out: how something is computed or drawn at random, and what is drawn by itself."""

HARD = "\u00a0"
"""A space at which no line is broken."""


def resolved(config: PartConfig, shared: Mapping[str, PartConfig]) -> PartConfig:
    """The configuration of a part that may be declared under ``shared``."""
    return shared.get(config.shared, config) if isinstance(config, Shared) else config


def settings(config: PartConfig, shared: Mapping[str, PartConfig], beside: Set[str] = frozenset()) -> list[str]:
    """The settings of a part: sizes, the parts that it names, then other values that are not the default.

    Args:
        shared: what is declared under ``shared``.
        beside: fields to leave out, which are drawn by themselves.
    """
    numbers, words, parts = list[str](), list[str](), list[str]()
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        if name in HIDDEN | beside or value is None or value is False:
            continue
        if isinstance(value, PartConfig):
            inner = resolved(value, shared)
            parts += [f"{name}{HARD}{inner.kind}{in_brackets(inner)}"] if inner.kind != "none" else []
        elif isinstance(value, Mask):
            parts.append(f"{name} {value!r}")
        elif isinstance(value, int) and not isinstance(value, bool):
            numbers.append(f"{name}{HARD}{value:,}")
        elif isinstance(value, str | float | bool) and value != field.default:
            words.append(name if value is True else f"{name}{HARD}{value}")
    return [*([", ".join(numbers)] if numbers else []), *parts, *([", ".join(words)] if words else [])]


def in_brackets(config: PartConfig) -> str:
    """The plain values of a part that are not the default, in brackets."""
    found = [f"{name}{HARD}{value:g}" if isinstance(value, float) else f"{name}{HARD}{value}"
             for name, field in type(config).model_fields.items()
             if isinstance(value := getattr(config, name), str | int | float) and not isinstance(value, bool)
             and value != field.default]
    return f" ({', '.join(found)})" if found else ""


def sizes(module: nn.Module) -> list[str]:
    """The linear maps of a module as ``name in→out``, tables as ``name rows×columns``; equal ones once."""
    found = dict.fromkeys(_maps(module))
    return [f"{HARD}· ".join(found)] if found else []


def _maps(module: nn.Module) -> Iterator[str]:
    for path, inner in module.named_modules():
        name = path.rpartition(".")[2]
        if isinstance(inner, Linear):
            yield f"{name}{HARD}{inner.in_features:,}→{inner.out_features:,}".strip(HARD)
        elif isinstance(inner, nn.Embedding):
            yield f"{inner.num_embeddings:,}×{inner.embedding_dim:,}"
        else:
            yield from (f"{key}{HARD}{'×'.join(f'{size:,}' for size in value.shape)}"
                        for key, value in inner.named_parameters(recurse=False) if value.dim() > 1 and key != "weight")


def amount(module: nn.Module) -> str:
    """The number of parameters; nothing for none."""
    count = parameter_count(module)
    return si(count) if count else ""


def acting(scheme: PositionScheme) -> str:
    """Where a position scheme acts, in words; empty for one that does not."""
    return " and ".join(words for point, words in POINTS.items() if point in scheme.acts_on)
