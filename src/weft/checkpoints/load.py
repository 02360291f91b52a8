"""Reading a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.checkpoints.layout import CONFIG_FILE, FORMAT_VERSION, MODEL_FILE, TRAINING_FILE
from weft.checkpoints.locate import find_checkpoint
from weft.checkpoints.sharded import MODEL, TRAINING, StoredTensors, is_sharded
from weft.checkpoints.tensors import assign_tensors, read_tensors, require_fitting
from weft.core.base_model import built_empty
from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import Model, ModelConfig, built_model, language_model, parse_model
from weft.disk.documents import read_json
from weft.disk.manifest import COPY_AGAIN, check_manifest
from weft.linear.rewrite import require_rewritten
from weft.tokenizers import Tokenizer, load_tokenizer
from weft.tokenizers.base import SETTINGS_FILE
from weft.tokenizers.config import known_tokenizers


@dataclass(frozen=True, eq=False)
class Loaded:
    """A checkpoint in memory.

    Attributes:
        model: the model, in evaluation mode.
        tokenizer: the tokenizer; None if the checkpoint has none.
        run: the configuration of the run that wrote the checkpoint, as plain data; None without a run.
        facts: further plain data (step, seconds, validation).
    """

    model: Model
    tokenizer: Tokenizer | None
    config: ModelConfig
    run: dict[str, Any] | None
    facts: dict[str, Any]
    path: Path


def load_checkpoint(path: str | Path, *, device: torch.device | str = "cpu", verify: bool = True,
                    purpose: str | None = None) -> Loaded:
    """Load the model and the tokenizer of a checkpoint. The weights keep the dtype in which they were saved.

    Args:
        path: a checkpoint, or a run folder, whose last checkpoint is loaded.
        verify: whether to compare SHA-256 sums of the files; otherwise only their sizes.
        purpose: if a language model is needed, for what, in words; another model is then refused before its weights
            are read. None: any model.

    Raises:
        CheckpointError: the folder is missing, not a checkpoint, damaged, of a newer format, or needs parts that are
            not registered.
        UnsupportedError: a language model is needed, and this is none.
    """
    folder = find_checkpoint(path)
    content = _read_config(folder)
    check_manifest(folder, hashes=verify)
    config, empty = _build(content, folder)
    if purpose is not None:
        language_model(empty, purpose, where=str(folder))
    tensors = (StoredTensors(folder).whole(MODEL) if is_sharded(folder) else read_tensors(folder / MODEL_FILE))
    # The model without memory is asked first: a configuration may name sizes that its files do not hold.
    require_fitting(empty, tensors, where=str(folder / MODEL_FILE))
    with naming_parts("model", str(folder / CONFIG_FILE), content.get("weft_version")):
        model = built_model(config)
    assign_tensors(model, tensors, where=str(folder / MODEL_FILE))
    has_tokenizer = (folder / SETTINGS_FILE).exists()
    tokenizer = load_tokenizer(folder, kinds=known_tokenizers()) if has_tokenizer else None
    return Loaded(model.to(device).eval(), tokenizer, config, content.get("run"), content.get("facts") or {}, folder)


def read_model_config(path: str | Path) -> ModelConfig:
    """The configuration of a checkpoint's model; its weights are not read. Raises `CheckpointError`: the folder is
    missing, not a checkpoint, damaged, of a newer format, or needs parts that are not registered."""
    folder = find_checkpoint(path)
    content = _read_config(folder)
    with naming_parts("model", str(folder / CONFIG_FILE), content.get("weft_version")):
        return parse_model(content["model"])


def read_run(path: str | Path) -> dict[str, Any] | None:
    """The configuration of the run that wrote a checkpoint, as plain data; None without a run. Raises
    `CheckpointError`: the folder is missing, not a checkpoint of Weft, damaged or of a newer format."""
    run = _read_config(find_checkpoint(path)).get("run")
    return run if isinstance(run, dict) else None


def read_facts(path: Path) -> dict[str, Any]:
    """The facts of a checkpoint, whose files are compared with their SHA-256 sums; its tensors are not read. Raises
    `CheckpointError`: it is damaged."""
    content = _read_config(path)
    check_manifest(path)
    return dict(content.get("facts") or {})


def read_training(path: str | Path) -> dict[str, Tensor]:
    """The tensors that resuming needs besides the model, such as the optimizer's state. Raises `CheckpointError`: the
    checkpoint was saved without them."""
    file = find_checkpoint(path) / TRAINING_FILE
    if is_sharded(file.parent):
        return StoredTensors(file.parent).whole(TRAINING)
    if not file.exists():
        raise CheckpointError(f"there is no {TRAINING_FILE}, so training cannot be resumed from it.",
                              where=str(file.parent), remedy="Resume from a checkpoint that a run has written.")
    return read_tensors(file)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    try:
        content = read_json(path)
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
    """The configuration of a checkpoint's model, and the model without memory for its weights."""
    with naming_parts("model", str(folder / CONFIG_FILE), content.get("weft_version")):
        config = parse_model(content["model"])
        model = built_empty(config)
        require_rewritten(model)
        return config, model


@contextmanager
def naming_parts(what: str, where: str, version: object = None) -> Iterator[None]:
    """Turn a configuration error inside the block into one that names the checkpoint and suggests a plugin.

    Args:
        what: the part of a checkpoint that is built, such as ``model``.
        where: the checkpoint, or its file.
        version: of Weft, that wrote it; None: it is not known.
    """
    try:
        yield
    except ConfigError as error:
        listed = "".join(f"\n  - {problem}" for problem in error.problems)
        written = "" if version is None else f"; it was written by Weft {version}"
        raise CheckpointError(
            f"the {what} of this checkpoint cannot be built here:{listed}\n", where=where,
            remedy=f"If it was trained with a plugin, give that file with --plugin{written}.") from None
