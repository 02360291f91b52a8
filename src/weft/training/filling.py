"""What a run's configuration leaves out of the model because its tokenizer and its data say it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.config import parse, parse_part
from weft.core.errors import ConfigError
from weft.data.settings import DataSettings
from weft.tasks import TaskConfig
from weft.tasks.next_token import NextTokenConfig
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig


def with_sizes(plain: dict[str, Any]) -> dict[str, Any]:
    """Fill ``model.vocab_size``, that of a model's encoder, and the labels of a head that says nothing of its classes,
    where they are left out. Parsing reports whatever else is wrong."""
    model = plain.get("model")
    if isinstance(model, str):
        model = {"kind": model}
    if not isinstance(model, dict):
        return plain
    try:
        filled = {**_sizes(plain, model), **_head(plain, model)}
    except ConfigError:
        # Parsing the whole names the fault in the task, the tokenizer or the data; the model is not to blame.
        filled = {"vocab_size": 1} if "vocab_size" not in model else {}
    return {**plain, "model": {**model, **filled}} if filled else plain


def task_of(plain: Mapping[str, Any]) -> TaskConfig:
    """The task that a run's plain configuration names.

    Raises:
        ConfigError: it names none that is known.
    """
    task = parse_part(("task",), plain.get("task", NextTokenConfig.kind))
    assert isinstance(task, TaskConfig), "the group task holds task configurations"
    return task


def tokenizer_of(plain: Mapping[str, Any]) -> TokenizerConfig:
    """The tokenizer's configuration, likewise."""
    tokenizer = parse_part(("tokenizer",), plain.get("tokenizer", ByteTokenizerConfig.kind))
    assert isinstance(tokenizer, TokenizerConfig), "the group tokenizer holds tokenizer configurations"
    return tokenizer


def _sizes(plain: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    encoder = model.get("encoder")
    bare = isinstance(encoder, Mapping) and "vocab_size" not in encoder
    if "vocab_size" in model and not bare:
        return {}
    size = int(model["vocab_size"]) if "vocab_size" in model else _vocab_size(plain)
    return {"vocab_size": size, **({"encoder": {**encoder, "vocab_size": size}} if isinstance(encoder, Mapping)
                                   and bare else {})}


def _vocab_size(plain: Mapping[str, Any]) -> int:
    tokenizer, task = tokenizer_of(plain), task_of(plain)
    known = tokenizer.known_vocab_size()
    if known is None:
        known = tokenizer.fit(task.texts(parse(DataSettings, plain.get("data", {})))).vocab_size
    return known + task.extra_ids(tokenizer)


def _head(plain: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """The head with the labels of the training records, where it says nothing of its classes."""
    head = {"kind": model["head"]} if isinstance(model.get("head"), str) else model.get("head")
    if not isinstance(head, Mapping) or {"labels", "n_classes", "n_values"} & set(head):
        return {}
    labels = task_of(plain).labels(parse(DataSettings, plain.get("data", {})))
    return {"head": {**head, "labels": list(labels)}} if labels else {}
