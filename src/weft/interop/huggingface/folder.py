"""Opening a foreign folder: its configuration and the headers of its files are read, but no tensor."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.checkpoints.layout import CONFIG_FILE
from weft.core.base_model import built_empty
from weft.core.errors import CheckpointError, ConfigError
from weft.core.model import Model, ModelConfig
from weft.disk.documents import read_json
from weft.families.family import Family, family_of
from weft.families.keys import KEPT
from weft.families.template import Facts
from weft.families.weights import TensorMap
from weft.interop.huggingface.generation import GENERATION, read_generation, special_ids
from weft.interop.huggingface.stored import COPY_AGAIN, Stored, StoredTensor, listed, open_stored

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Opened:
    """A folder of a known family.

    Attributes:
        family: the family of its format.
        config: Weft's configuration of its model.
        kept: values of `Kept` keys of config.json (ids of special tokens, the dtype).
        generation: the facts of its settings for generating text.
        model: the model on the meta device.
        account: the correspondence of its tensors to the model's.
        places: the stored name of each of the family's tensors.
        problems: what is wrong with single tensors, one line each.
    """

    folder: Path
    family: Family
    config: ModelConfig
    kept: Mapping[str, Any]
    generation: Mapping[str, Any]
    model: Model
    stored: Stored
    account: TensorMap
    places: Mapping[str, str]
    problems: tuple[str, ...]


def is_foreign(folder: Path) -> bool:
    """Whether a folder's config.json is one of `transformers`, not of Weft."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return False
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and "weft_format" not in content and bool({"model_type", "architectures"}
                                                                               & set(content))


def open_folder(folder: Path, *, strict: bool = False) -> Opened:
    """Open a folder that `transformers` wrote, reading its configuration and the headers of its files.

    Args:
        strict: refuse keys of its configuration that are unknown and not used, of which it otherwise logs a note.

    Raises:
        CheckpointError: an unknown family, a configuration with keys that cannot be read, no weights. Problems
            of single tensors are in ``problems``, for which `refuse` makes an error when tensors are read.
    """
    raw = read_raw(folder)
    family = family_of(raw, str(folder / CONFIG_FILE))
    config, facts, model = _build(family, raw, folder, strict)
    for note in family.notes(raw):
        LOGGER.warning("note: %s: %s", folder / CONFIG_FILE, note)
    stored = open_stored(folder)
    account = family.account(model, facts, stored.entries)
    places, problems = account.reconcile(stored.shapes())
    problems += [problem for name in places.values() if (problem := unusable(name, stored.entries[name]))]
    generation = read_generation(folder, raw)
    kept = {**special_ids(generation.get(GENERATION, {})), **facts.get(KEPT, {})}
    return Opened(folder, family, config, kept, generation, model, stored, account, places, tuple(problems))


def read_raw(folder: Path) -> dict[str, Any]:
    """The content of a folder's config.json. Raises `CheckpointError`: it is damaged."""
    path = folder / CONFIG_FILE
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path), remedy=COPY_AGAIN) from None
    if not isinstance(content, dict):
        raise CheckpointError("the file does not hold an object.", where=str(path), remedy=COPY_AGAIN)
    found: dict[str, Any] = _floats(content)
    return found


def _floats(value: Any) -> Any:
    """Decode numbers that JSON lacks, which transformers 5 writes as ``{"__float__": "Infinity"}``."""
    if isinstance(value, dict):
        return float(value["__float__"]) if set(value) == {"__float__"} else {
            key: _floats(item) for key, item in value.items()}
    return [_floats(item) for item in value] if isinstance(value, list) else value


def _build(family: Family, raw: Mapping[str, Any], folder: Path, strict: bool) -> tuple[ModelConfig, Facts, Model]:
    try:
        config, facts = family.read(raw, strict=strict)
        return config, facts, built_empty(config)
    except ConfigError as error:
        lines = "".join(f"\n  - {problem}" for problem in error.problems)
        raise CheckpointError(f"this {family.name} configuration cannot be read:{lines}\n",
                              where=str(folder / CONFIG_FILE),
                              remedy="Correct it; a key that changes nothing can be removed.") from None


def unusable(name: str, entry: StoredTensor) -> str:
    """Why a tensor cannot be read as weights; empty if it can."""
    if isinstance(entry.dtype, torch.dtype):
        return ""
    return f"{name}: its numbers are {entry.dtype}; only float64, float32, float16 and bfloat16 weights can be read."


def refuse(opened: Opened, problems: list[str]) -> CheckpointError:
    """An error that lists all problems of a folder's tensors."""
    return listed(problems, "tensor", opened.folder,
                  f"Its config.json describes a {opened.family.name} model of other tensors: copy both again, whole.")
