"""The task and tokenizer of a run's plain configuration, read before the whole is parsed, and the fields of the model
that follow from the data: vocabulary size and class names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.core.config import parse, parse_part
from weft.core.errors import ConfigError
from weft.core.registry import REGISTRY
from weft.data.settings import DataSettings
from weft.tasks import TaskConfig
from weft.tasks.next_token import NextTokenConfig
from weft.tasks.protocols import AddsIds, HasClasses, MakesIds, OwnTexts
from weft.tasks.token_streams import training_texts
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig

SAID = frozenset({"labels", "n_classes", "n_values"})
"""Fields of a head that set its number of outputs; with any of them, nothing is filled in."""


def task_of(plain: Mapping[str, Any]) -> TaskConfig:
    """The task of a run's configuration. Raises `ConfigError`: the task is unknown or cannot be parsed."""
    task = parse_part(("task",), plain.get("task", NextTokenConfig.kind))
    assert isinstance(task, TaskConfig), "the group task holds task configurations"
    return task


def tokenizer_of(plain: Mapping[str, Any]) -> TokenizerConfig:
    """The tokenizer of a run's configuration. Raises `ConfigError`: the tokenizer is unknown or cannot be parsed."""
    tokenizer = parse_part(("tokenizer",), plain.get("tokenizer", ByteTokenizerConfig.kind))
    assert isinstance(tokenizer, TokenizerConfig), "the group tokenizer holds tokenizer configurations"
    return tokenizer


def data_of(plain: Mapping[str, Any]) -> DataSettings:
    """The section ``data`` of a run's configuration. Raises `ConfigError`: it cannot be parsed."""
    try:
        return parse(DataSettings, plain.get("data", {}))
    except ConfigError as error:
        raise ConfigError([f"data.{problem}" for problem in error.problems]) from None


def vocab_size_of(plain: Mapping[str, Any]) -> int:
    """The number of ids of a run's tokenizer and task, or of rows that the task makes itself. A tokenizer that is
    learned is trained here, on the training texts, to count them.

    Raises:
        ConfigError: a task, tokenizer or data section that cannot be parsed.
        DataError: texts that cannot be read.
        TokenizerError: a tokenizer that cannot be learned from them.
    """
    tokenizer, task, data = tokenizer_of(plain), task_of(plain), data_of(plain)
    if isinstance(task, MakesIds):
        return task.vocabulary(data)
    known = tokenizer.known_vocab_size()
    if known is None:
        texts = task.texts(data) if isinstance(task, OwnTexts) else training_texts(data)
        known = tokenizer.fit(texts).vocab_size
    return known + ids_added(task, tokenizer)


def ids_added(task: TaskConfig, tokenizer: TokenizerConfig) -> int:
    """How many ids the model needs after the tokenizer's, such as one for the mask."""
    return task.extra_ids(tokenizer) if isinstance(task, AddsIds) else 0


def with_labels(plain: dict[str, Any]) -> dict[str, Any]:
    """Fill in the class names of the model's head from the training records, or the number of values from the task,
    where the head gives neither names nor a number of outputs. Other problems are left for parsing to report. Raises
    `DataError`: records that cannot be read."""
    model = plain.get("model")
    head = model.get("head") if isinstance(model, Mapping) else None
    head = {"kind": head} if isinstance(head, str) else head
    if not isinstance(model, Mapping) or not isinstance(head, Mapping) or SAID & set(head):
        return plain
    if head.get("kind") not in {part.kind for part in REGISTRY.parts("head") if "labels" in part.model_fields}:
        return plain
    try:
        task = task_of(plain)
        data = parse(DataSettings, plain.get("data", {}))
        labels = task.labels(data) if isinstance(task, HasClasses) else ()
    except ConfigError:
        return plain
    values = task.declares().values
    found = {"n_values": values} if values is not None else {"labels": list(labels)} if labels else {}
    return {**plain, "model": {**model, "head": {**head, **found}}} if found else plain
