"""A small configuration in which a part is used: a model's file, or a run's where the part is none of a model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any, final

from pydantic import BaseModel

from weft.core.base_model import MODELS, built_empty, parse_model
from weft.core.errors import ConfigError, UnsupportedError, WeftError
from weft.core.layer import source_width
from weft.core.model import LanguageModel
from weft.core.part_config import PartConfig, Repeat, Shared
from weft.data.settings import DataSettings
from weft.tasks.base import TaskConfig, TaskSettings
from weft.tasks.protocols import MakesIds

WIDTH, CONTEXT, VOCABULARY = 64, 128, 257
"""Of the models; the vocabulary is that of bytes."""
LONGEST = 8192
"""The context of a model for rows that a task makes by itself."""
MLP = "mlp"
ATTENTION: Mapping[str, Any] = MappingProxyType({"kind": "attention", "position": "rope"})
BOTH_WAYS: Mapping[str, Any] = MappingProxyType({"kind": "attention", "mask": "bidirectional"})
PREFIX: Mapping[str, Any] = MappingProxyType({"kind": "attention", "mask": "causal | prefix"})
IMAGE: Mapping[str, Any] = MappingProxyType({"height": 16, "width": 16})


@final
@dataclass(frozen=True)
class InUse:
    """A configuration that works.

    Attributes:
        data: the content of the file.
        command: what to do with it, where FILE is its name.
    """

    data: Mapping[str, Any]
    command: str


def in_use(part: type[PartConfig]) -> InUse | None:
    """A small configuration with the part; None for a part of a group that nothing is known to hold."""
    if part.group == "benchmark":
        return InUse({"kind": part.kind}, f"weft eval RUN --task {part.kind} --data DATA")
    own = plain(part)
    if issubclass(part, TaskConfig):
        return _with_task(part, own)
    if part.group in ("optimizer", "schedule"):
        return InUse({"model": _open(_stack([dict(ATTENTION), MLP])), "tokenizer": "bytes",
                      "training": {part.group: own}}, "weft train FILE")
    if part.group == "tokenizer":
        return InUse({"model": _open(_stack([dict(ATTENTION), MLP])), "tokenizer": own}, "weft train FILE")
    return next((InUse(each, "weft check FILE") for each in _models(part.group, own) if _builds(each)), None)


def mask_in_use(expression: str) -> InUse | None:
    """A small model with a mask."""
    layer = {"kind": "attention", "mask": expression}
    return next((InUse(each, "weft check FILE") for each in _models("mixer", layer) if _builds(each)), None)


def plain(part: type[PartConfig]) -> Any:
    """A part as a file has it, with the fields that are not their defaults; its kind where there are none."""
    required = any(field.is_required() for field in part.model_fields.values())
    return brief(part.examples()[0] if required else part())


def brief(value: Any) -> Any:
    """A configuration as a file may have it: the fields that are not left to their defaults, and equal blocks counted.

    A field that was given its default stays: where it is left out, something else may prescribe it (the deviation of
    embeddings, `weft.models.decoder.EmbeddingSettings`).
    """
    if isinstance(value, BaseModel):
        fields = {name: brief(getattr(value, name)) for name, field in type(value).model_fields.items()
                  if name in value.model_fields_set
                  or getattr(value, name) != field.get_default(call_default_factory=True)}
        if isinstance(value, Repeat):
            return {"repeat": value.repeat, "of": brief(value.of)}
        if isinstance(value, Shared):
            return {"shared": value.shared}
        if not isinstance(value, PartConfig):
            return fields
        return {"kind": value.kind, **fields} if fields else value.kind
    if isinstance(value, Mapping):
        return {name: brief(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return _counted([brief(each) for each in value])
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _counted(items: list[Any]) -> list[Any]:
    """Equal mappings in a row as one that is repeated, as blocks are written."""
    found: list[Any] = []
    for item, same in groupby(items):
        times = len(list(same))
        found += [{"repeat": times, "of": [item]}] if times > 1 and isinstance(item, Mapping) else [item] * times
    return found


def _models(group: str, own: Any) -> Iterator[dict[str, Any]]:
    """Models with a part of this group, the most usual first."""
    if group in MODELS:
        yield own
    elif group == "mixer":
        given = [each for each in ({"kind": "rwkv7"},) if own != each]
        yield _stack([own, MLP])
        yield _encoder([own, MLP])
        yield _translator([dict(ATTENTION), own, MLP])
        yield _stack([*given, own, MLP])
    elif group == "feedforward":
        yield _stack([dict(ATTENTION), own])
    elif group == "block":
        yield {**_stack([]), "blocks": [own]}
    elif group == "position":
        yield _stack([{"kind": "attention", "position": own}, MLP])
        yield {**_stack([{"kind": "attention"}, MLP]), "position": own}
        yield {**_encoder([dict(BOTH_WAYS), MLP]), "position": own}
    else:
        yield from _around(group, own)


def _around(group: str, own: Any) -> Iterator[dict[str, Any]]:
    """Models with a part that stands in other parts, or before or behind the blocks."""
    if group == "position_table":
        yield _stack([{"kind": "attention", "position": {"kind": "deberta", "table": own}}, MLP])
    elif group == "rope_scaling":
        scaled = {"kind": "attention", "position": {"kind": "rope", "scaling": own}}
        yield _stack([scaled, MLP])
        yield _stack([{**scaled, "d_head": 4}, MLP])
    elif group == "norm":
        yield {**_stack([dict(ATTENTION), MLP], norm=own), "norm": own}
    elif group == "readout":
        yield {**_stack([dict(ATTENTION), MLP]), "readout": own}
        yield {**_stack([dict(ATTENTION), MLP]), "embedding": {"adaptive": {"cutoffs": [100]}}, "readout": own}
    elif group == "head":
        yield _encoder([dict(BOTH_WAYS), MLP], head=own)
        yield _encoder([dict(BOTH_WAYS), MLP], head={"kind": own, "n_classes": 2} if isinstance(own, str) else own)
    elif group == "rewrite":
        yield {**_stack([dict(ATTENTION), MLP]), "rewrites": [own]}


def _stack(layers: list[Any], **block: Any) -> dict[str, Any]:
    """A decoder with a block of these layers."""
    return {"kind": "decoder", "vocab_size": VOCABULARY, "d_model": WIDTH, "context": CONTEXT, "norm": "layernorm",
            "blocks": [{"kind": "pre", **block, "layers": layers}]}


def _encoder(layers: list[Any], head: Any = "masked_token") -> dict[str, Any]:
    return {"kind": "encoder", "vocab_size": VOCABULARY, "d_model": WIDTH, "context": CONTEXT, "position": "learned",
            "norm": "layernorm", "blocks": [{"kind": "pre", "layers": layers}], "head": head}


def _translator(layers: list[Any]) -> dict[str, Any]:
    source = _encoder([dict(BOTH_WAYS), MLP])
    return {**_stack(layers), "kind": "encoder_decoder",
            "encoder": {name: value for name, value in source.items() if name != "head"}}


def _builds(data: Mapping[str, Any]) -> bool:
    """Whether a model can be built, and reads a source only if it encodes one."""
    try:
        model = built_empty(parse_model(dict(data)))
    except (ConfigError, UnsupportedError):
        return False
    return not isinstance(model, LanguageModel) or model.takes_source or source_width(model) is None


def _with_task(part: type[TaskConfig], own: Any) -> InUse | None:
    """A run with the task, and the first of the usual models that fits it."""
    config = part.examples()[0] if isinstance(own, dict) else part()
    ids = _ids(config)
    for model in _usual():
        if ids is not None:
            model = {**model, "vocab_size": ids, "context": LONGEST}
        if not _builds(model):
            continue
        built = built_empty(parse_model(model))
        task = config.create(TaskSettings(rows=2, context=built.config.context, labels=("no", "yes")))
        if not task.problems(built):
            source = {} if ids is not None else {"data": {"path": "DATA"}}
            return InUse({"model": _open(model), "task": own, **source}, "weft train FILE")
    return None


def _open(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model whose number of ids a run fills in."""
    return {name: value for name, value in model.items() if name != "vocab_size"}


def _ids(config: TaskConfig) -> int | None:
    """The number of ids of rows that a task makes by itself; None for one that reads data."""
    try:
        return config.vocabulary(DataSettings()) if isinstance(config, MakesIds) else None
    except WeftError:
        return None


def _usual() -> Iterator[dict[str, Any]]:
    """Models of every kind, the most usual first."""
    classes = {"kind": "pooled", "n_classes": 2}
    yield _stack([dict(ATTENTION), MLP])
    yield _encoder([dict(BOTH_WAYS), MLP])
    yield {"kind": "image_encoder", "d_model": WIDTH, "image": dict(IMAGE), "head": classes,
           "blocks": [{"kind": "pre", "layers": [dict(BOTH_WAYS), MLP]}]}
    yield {"kind": "dense", "image": dict(IMAGE), "widths": [64, 32], "back": {}, "head": classes}
    yield _stack([dict(PREFIX), MLP])
    yield _encoder([dict(BOTH_WAYS), MLP], classes)
    yield _encoder([dict(BOTH_WAYS), MLP], {"kind": "pooled", "n_values": 1})
    yield _encoder([dict(BOTH_WAYS), MLP], {"kind": "per_token", "n_classes": 2})
    yield _translator([dict(ATTENTION), "cross_attention", MLP])
