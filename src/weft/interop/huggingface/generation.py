"""How text is generated, as a folder of `transformers` says in generation_config.json: kept whole, and written back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import CheckpointError
from weft.interop.huggingface.stored import COPY_AGAIN
from weft.tokenizers import Tokenizer

GENERATION_FILE = "generation_config.json"
GENERATION = "generation"
"""The key of a checkpoint's facts that has it."""

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
NO_SETTINGS = frozenset({*SPECIAL, "_from_model_config", "transformers_version"})
"""Keys that are ids of tokens, or say where the file comes from."""


def read_generation(folder: Path) -> dict[str, Any]:
    """All that the file holds; nothing where there is none.

    Raises:
        CheckpointError: it is damaged.
    """
    path = folder / GENERATION_FILE
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path), remedy=COPY_AGAIN) from None
    return dict(content) if isinstance(content, dict) else {}


def special_ids(content: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of special tokens in it."""
    return {key: content[key] for key in SPECIAL if content.get(key) is not None}


def generation_of(facts: Mapping[str, Any], kept: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What the file of a folder that is written holds: all that the one the model came from held, or else the ids of
    its special tokens, those that end a generation whole.

    Args:
        facts: of the model that is written.
        kept: ids of special tokens by their keys in config.json.
        tokenizer: the model's; None: it has none.
    """
    known: Mapping[str, Any] = facts.get(GENERATION) or {}
    if known:
        return dict(known)
    ends = () if tokenizer is None else tokenizer.end_ids
    several = {"eos_token_id": list(ends)} if len(ends) > 1 else {}
    return {"_from_model_config": not several, **special_ids(kept), **several}


def end_ids(facts: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """The ids that end a generation, of those that the model has, where no tokenizer says."""
    for source in (facts.get(GENERATION) or {}, facts.get("kept") or {}):
        found = source.get("eos_token_id")
        if found is not None:
            return tuple(place for place in (found if isinstance(found, list) else [found]) if 0 <= place < vocab_size)
    return ()


def settings_of(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of what it says besides ids of tokens (temperature, top_p, ...)."""
    return tuple(sorted(set(facts.get(GENERATION) or {}) - NO_SETTINGS))
