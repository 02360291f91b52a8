"""Reading a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from weft.checkpoints.layout import CONFIG_FILE, FORMAT_VERSION, MODEL_FILE, TRAINING_FILE
from weft.checkpoints.locate import find_checkpoint
from weft.checkpoints.tensors import assign_tensors, read_tensors
from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import Model, ModelConfig, language_model, parse_model
from weft.disk.manifest import COPY_AGAIN, check_manifest
from weft.linear.rewrite import require_rewritten
from weft.tokenizers import Tokenizer, load_tokenizer
from weft.tokenizers.base import SETTINGS_FILE
from weft.tokenizers.config import known_tokenizers


@final
@dataclass(frozen=True, eq=False)
class Loaded:
    """A checkpoint in memory.

    Attributes:
        model: in evaluation mode.
        tokenizer: None when the checkpoint has none.
        config: the model's configuration.
        run: the configuration of the run that wrote it, as plain data; None when there was no run.
        facts: what else was known (step, seconds, validation).
        path: where it was read.
    """

    model: Model
    tokenizer: Tokenizer | None
    config: ModelConfig
    run: dict[str, Any] | None
    facts: dict[str, Any]
    path: Path


def load_checkpoint(path: str | Path, *, device: torch.device | str = "cpu", verify: bool = True,
                    purpose: str | None = None) -> Loaded:
    """The model and tokenizer of a checkpoint. The weights keep the dtype they were saved in.

    Args:
        path: a checkpoint, or a run folder, whose last checkpoint is taken.
        device: where the model goes.
        verify: compare SHA-256 sums; without it only the sizes of the files.
        purpose: for which a language model is needed, in words; any other is refused before its weights are read.

    Raises:
        CheckpointError: missing, no checkpoint, damaged, of a newer format, or of parts that are not known here.
        UnsupportedError: no language model, where one is needed.
    """
    folder = find_checkpoint(path)
    content = _read_config(folder)
    check_manifest(folder, hashes=verify)
    config, model = _build(content, folder)
    if purpose is not None:
        language_model(model, purpose, where=str(folder))
    assign_tensors(model, read_tensors(folder / MODEL_FILE), where=str(folder / MODEL_FILE))
    has_tokenizer = (folder / SETTINGS_FILE).exists()
    tokenizer = load_tokenizer(folder, kinds=known_tokenizers()) if has_tokenizer else None
    return Loaded(model.to(device).eval(), tokenizer, config, content.get("run"), content.get("facts") or {}, folder)


def read_model_config(path: str | Path) -> ModelConfig:
    """The configuration of a checkpoint's model, without its weights.

    Raises:
        CheckpointError: missing, no checkpoint, damaged, of a newer format, or of parts that are not known here.
    """
    folder = find_checkpoint(path)
    content = _read_config(folder)
    with _naming_parts(content, folder):
        return parse_model(content["model"])


def read_training(path: str | Path) -> dict[str, Tensor]:
    """What resuming needs besides the model: optimiser state and the like.

    Raises:
        CheckpointError: the checkpoint was saved without it.
    """
    file = find_checkpoint(path) / TRAINING_FILE
    if not file.exists():
        raise CheckpointError(f"there is no {TRAINING_FILE}, so training cannot go on from here.",
                              where=str(file.parent), remedy="Resume from a checkpoint that a run has written.")
    return read_tensors(file)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path), remedy=COPY_AGAIN) from None
    version = content.get("weft_format") if isinstance(content, dict) else None
    if not isinstance(version, int) or not isinstance(content.get("model"), dict):
        raise CheckpointError("not a checkpoint of Weft: no weft_format number and model in it.", where=str(path),
                              remedy="Give a folder that `weft train` or save_checkpoint has written.")
    if version > FORMAT_VERSION:
        raise CheckpointError(f"format {version} is newer than this Weft reads ({FORMAT_VERSION}); it was written by "
                              f"Weft {content.get('weft_version')}.", where=str(path), remedy="Update Weft.")
    return dict(content)


def _build(content: dict[str, Any], folder: Path) -> tuple[ModelConfig, Model]:
    with _naming_parts(content, folder):
        config = parse_model(content["model"])
        model = config.build()
        require_rewritten(model)
        return config, model


@contextmanager
def _naming_parts(content: dict[str, Any], folder: Path) -> Iterator[None]:
    """Around what a configuration of parts that are not known here makes fail."""
    try:
        yield
    except ConfigError as error:
        listed = "".join(f"\n  - {problem}" for problem in error.problems)
        raise CheckpointError(
            f"the model of this checkpoint cannot be built here:{listed}\n", where=str(folder / CONFIG_FILE),
            remedy="If it was trained with a plugin, give that file with --plugin; it was written by Weft "
                   f"{content.get('weft_version')}.") from None
