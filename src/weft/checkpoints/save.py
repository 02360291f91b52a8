"""Writing a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

import weft
from weft.checkpoints.atomic import replacing
from weft.checkpoints.layout import CONFIG_FILE, FORMAT_VERSION, MODEL_FILE, TRAINING_FILE
from weft.checkpoints.manifest import write_manifest
from weft.checkpoints.room import not_written
from weft.checkpoints.tensors import own_tensors, write_tensors
from weft.core.errors import CheckpointError
from weft.core.model import LanguageModel
from weft.core.strict_json import dumps
from weft.tokenizers import Tokenizer


def save_checkpoint(path: str | Path, model: LanguageModel, tokenizer: Tokenizer | None, *,
                    run: Mapping[str, Any] | None = None, facts: Mapping[str, Any] | None = None,
                    training: Mapping[str, Tensor] | None = None) -> Path:
    """Write a checkpoint: whole, or not at all. One that stands at ``path`` is replaced.

        config.json            format version, versions of Weft and torch, the model's configuration, run and facts
        model.safetensors      parameters and buffers, tied ones once
        weft_tokenizer.json    the tokenizer, with its files
        training.safetensors   what resuming needs besides
        MANIFEST.json          size and SHA-256 of each file

    Args:
        path: the folder.
        model: any language model.
        tokenizer: None for a model of bare ids.
        run: the run's configuration, as plain data.
        facts: whatever else is known (step, validation), as plain JSON data.
        training: optimiser state and the like.

    Raises:
        CheckpointError: something that is not a checkpoint stands at ``path``, or it may not be written.
        FailedError: the disk is full.
    """
    folder = Path(path)
    _require_replaceable(folder)
    weights = own_tensors(model)
    try:
        with replacing(folder) as draft:
            (draft / CONFIG_FILE).write_text(_content(model, run, facts), encoding="utf-8")
            write_tensors(draft / MODEL_FILE, weights)
            if tokenizer is not None:
                tokenizer.save(draft)
            if training is not None:
                write_tensors(draft / TRAINING_FILE, training)
            write_manifest(draft)
    except (OSError, SafetensorError) as error:
        needed = sum(tensor.nbytes for tensors in (weights, training or {}) for tensor in tensors.values())
        raise not_written(error, folder, needed) from error
    return folder


def _content(model: LanguageModel, run: Mapping[str, Any] | None, facts: Mapping[str, Any] | None) -> str:
    content = {"weft_format": FORMAT_VERSION, "weft_version": weft.__version__, "torch_version": torch.__version__,
               "model": model.config.dump(), "run": run, "facts": dict(facts or {})}
    return dumps(content, indent=1) + "\n"


def _require_replaceable(folder: Path) -> None:
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not (folder / CONFIG_FILE).exists()):
        raise CheckpointError("something that is not a checkpoint stands here, and it will not be replaced.",
                              where=str(folder), remedy="Choose another folder.")
