"""Writing a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from torch import Tensor

from weft.checkpoints.layout import CONFIG_FILE, FORMAT_VERSION, MODEL_FILE, TRAINING_FILE
from weft.checkpoints.tensors import own_tensors, write_tensors
from weft.core.model import Model
from weft.core.strict_json import dumps
from weft.core.version import VERSION
from weft.disk.atomic import not_written, replacing
from weft.disk.manifest import write_manifest
from weft.disk.ownership import by_manifest, require_free
from weft.tokenizers import Tokenizer

Describe: TypeAlias = Callable[[Path], None]
"""Writes all files of a checkpoint into its draft but the tensors and the manifest."""


def save_checkpoint(path: str | Path, model: Model, tokenizer: Tokenizer | None, *,
                    run: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None,
                    training: Mapping[str, Tensor] | None = None, replace: bool = False) -> Path:
    """Write a checkpoint, completely or not at all.

        config.json            format version, versions of Weft and torch, the model's configuration, run and facts
        model.safetensors      parameters and buffers, tied ones once
        weft_tokenizer.json    the tokenizer, with its files
        training.safetensors   further tensors that resuming needs
        MANIFEST.json          size and SHA-256 of each file

    Args:
        tokenizer: the tokenizer; None for a model without one.
        run: the run's configuration, as plain data.
        facts: further plain JSON data (step, validation).
        training: the tensors that resuming needs, such as the optimizer's state.
        replace: whether to replace an existing folder whose manifest proves that Weft wrote all its files.

    Raises:
        OccupiedError: ``path`` exists, and is not to be replaced or has files that Weft did not write.
        CheckpointError: there is no permission to write.
        FailedError: the disk is full.
    """
    folder = Path(path)
    require_free(folder, proof=by_manifest, replace=replace)
    try:
        with replacing(folder, proof=by_manifest if replace else None) as draft:
            fill_checkpoint(draft, model, tokenizer, run=run, facts=facts, training=training)
    except (OSError, SafetensorError) as error:
        tensors = (own_tensors(model), training or {})
        needed = sum(tensor.nbytes for named in tensors for tensor in named.values())
        raise not_written(error, folder, needed) from error
    return folder


def fill_checkpoint(draft: Path, model: Model, tokenizer: Tokenizer | None, *,
                    run: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None,
                    training: Mapping[str, Tensor] | None = None) -> None:
    """Write the files of a checkpoint into an empty folder; the arguments are those of `save_checkpoint`."""
    describe_checkpoint(draft, model, tokenizer, run=run, facts=facts)
    write_tensors(draft / MODEL_FILE, own_tensors(model))
    if training is not None:
        write_tensors(draft / TRAINING_FILE, training)
    write_manifest(draft)


def describe_checkpoint(draft: Path, model: Model, tokenizer: Tokenizer | None, *,
                        run: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None) -> None:
    """Write all files of a checkpoint but tensors and manifest; the arguments are those of `save_checkpoint`."""
    (draft / CONFIG_FILE).write_text(_content(model, run, facts), encoding="utf-8")
    if tokenizer is not None:
        tokenizer.save(draft)


def _content(model: Model, run: Mapping[str, Any] | None, facts: Mapping[str, Any] | None) -> str:
    content = {"weft_format": FORMAT_VERSION, "weft_version": VERSION, "torch_version": torch.__version__,
               "model": model.config.dump(), "run": run, "facts": dict(facts or {})}
    return dumps(content, indent=1) + "\n"
