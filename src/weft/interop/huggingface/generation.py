"""The settings of a foreign folder for generating text: generation_config.json, read, followed and written back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.checkpoints.layout import CONFIG_FILE
from weft.core.errors import CheckpointError
from weft.disk.documents import read_json
from weft.families.common import GENERATION as IN_CONFIG
from weft.interop.huggingface.stored import COPY_AGAIN
from weft.tokenizers import Tokenizer

GENERATION_FILE = "generation_config.json"
GENERATION = "generation"
"""The key of a checkpoint's facts for the content of that file."""

ORIGIN = "generation_from"
"""The key of a checkpoint's facts for the name of another file that the settings are from."""

NOT_OF_TEXT = frozenset({"sep_token_id", "cls_token_id", "prefix", "task_specific_params", "generation_config"})
"""Keys that stand among those of generation in config.json and that `transformers` does not take for a generation."""

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
NO_SETTINGS = frozenset({*SPECIAL, "_from_model_config", "transformers_version"})
"""Keys that are ids of tokens or describe the origin of the file."""

MOST = "max_new_tokens"
FOLLOWED: Mapping[str, Callable[[Any], bool]] = MappingProxyType({
    "do_sample": lambda value: isinstance(value, bool), "temperature": lambda value: _number(value) and value >= 0,
    "top_k": lambda value: type(value) is int and value >= 0, "top_p": lambda value: _number(value) and 0 < value <= 1,
    "min_p": lambda value: _number(value) and 0 <= value <= 1,
    "repetition_penalty": lambda value: _number(value) and value > 0,
    MOST: lambda value: type(value) is int and value >= 1})
"""Settings that Weft follows, each with the values that it can follow."""

SAMPLE_TOP_K = 50
"""The k of `transformers` where a file that asks for sampling names none (version 5.24)."""

NEUTRAL: Mapping[str, float] = MappingProxyType({
    "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "typical_p": 1, "num_beams": 1,
    "num_beam_groups": 1, "num_return_sequences": 1, "length_penalty": 1, "encoder_repetition_penalty": 1,
    "guidance_scale": 1})
"""Values, besides 0, false and nothing, at which a setting changes no text."""

SILENT = NO_SETTINGS | {
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "_commit_hash",
    "remove_invalid_values", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind", "assistant_early_exit",
    "prompt_lookup_num_tokens", "max_matching_ngram_size", "use_mtp", "compile_config", "disable_compile", "low_memory",
    "prefill_chunk_size", "continuous_batching_config", "trust_remote_code"}
"""Keys that change how text is computed, never which."""


def _number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < float("inf")


def followed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that Weft follows and that change a text, by their keys in the file; with the ``top_k`` that
    `transformers` takes where the file asks for sampling and names none."""
    content: Mapping[str, Any] = facts.get(GENERATION) or {}
    found = {key: value for key, value in content.items() if key in FOLLOWED and FOLLOWED[key](value)}
    if found.get("do_sample"):
        found.setdefault("top_k", SAMPLE_TOP_K)
    return {key: value for key, value in found.items() if value != NEUTRAL.get(key)}


def told(facts: Mapping[str, Any], used: Mapping[str, Any], settled: Collection[str]) -> str:
    """A line that says which settings of the file are used, and which change its text in `transformers` and are not
    followed; empty where there is neither.

    Args:
        used: the settings that decide something here, with their values.
        settled: further keys that are not to be named, since explicit options decide in their place.
    """
    content: Mapping[str, Any] = facts.get(GENERATION) or {}
    left = {key: value for key, value in content.items() if key not in SILENT and key not in used
            and key not in settled and value and value != NEUTRAL.get(key)}
    file = facts.get(ORIGIN, GENERATION_FILE)
    parts = [f"{file} sets {_listed(used)}; options win over it" if used else "",
             f"{'its' if used else f'{file}:'} {_listed(left)} {'is' if len(left) == 1 else 'are'} not "
             "followed" if left else ""]
    line = "; ".join(filter(None, parts))
    return f"note: {line}." if line else ""


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())


def read_generation(folder: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a folder's settings: the content of generation_config.json, or where there is none the settings in
    config.json, where they stood before there was such a file, and from where `transformers` reads them still. Raises
    `CheckpointError`: generation_config.json is damaged."""
    path = folder / GENERATION_FILE
    if not path.is_file():
        old = {key: raw[key] for key in IN_CONFIG if key not in NOT_OF_TEXT and raw.get(key) is not None}
        return {GENERATION: old, ORIGIN: CONFIG_FILE} if old else {}
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the file is damaged ({error}).", where=str(path), remedy=COPY_AGAIN) from None
    return {GENERATION: content} if content and isinstance(content, dict) else {}


def special_ids(content: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of special tokens among the content of generation_config.json."""
    return {key: content[key] for key in SPECIAL if content.get(key) is not None}


def generation_of(facts: Mapping[str, Any], kept: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The content of generation_config.json for a folder to be written: that of the folder the model came from, or else
    the ids of its special tokens, with all that end a generation.

    Args:
        facts: facts of the model to be written.
        kept: ids of special tokens by their keys in config.json.
        tokenizer: the model's; None: it has none.
    """
    known: Mapping[str, Any] = facts.get(GENERATION) or {}
    if known and ORIGIN not in facts:
        return dict(known)
    ends = () if tokenizer is None else tokenizer.end_ids
    several = {"eos_token_id": list(ends)} if len(ends) > 1 else {}
    return {"_from_model_config": not several and not known, **special_ids(kept), **several, **known}


def end_ids(facts: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """The ids that end a generation, for a model without a tokenizer; those beyond its vocabulary are left out."""
    for source in (facts.get(GENERATION) or {}, facts.get("kept") or {}):
        found = source.get("eos_token_id")
        if found is not None:
            return tuple(place for place in (found if isinstance(found, list) else [found]) if 0 <= place < vocab_size)
    return ()
