"""The exploits of the museum by what they show, so that a finding can name the one that it resembles."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from types import MappingProxyType

from weft.judge.judgement import LawResult

BY_WORDS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType({
    "sums-to-one": (("drawn at random", "target_gate"), ("After 1 token ", "maximum_of_models")),
    "causality": (("drawn at random", "target_gate"), ("only with all", "batch_norm")),
    "separate-rows": (("padding", "shifted_padding"), ("beside|batch", "batch_norm")),
    "repeats": (("at once|random numbers", "dropout_left_on"), ("other rows|calls|row by row", "kept_cache"),
                ("process|clock", "prompt_hash")),
    "pieces": (("", "scaled_positions"),), "documents": (("", "carried_state"),),
    "saved": (("claims", "claimed_size"), ("", "missing_buffer")),
    "bytes": ((r"\\xef\\xbf\\xbd", "replacement_bytes"), ("upper and lower case|comes back", "casefold"),
              ("stand for", "unknown_words")),
    "evaluation": (("It counts [0-9,]* bytes", "padding_counted"), ("seconds", "compile_left_out"),
                   ("learns|asked again|drawn at random", "trained_first"), ("tokens in a text", "first_part")),
    "seen": (("", "memorised_text"),)})
"""For each law the exploits that a finding's words point to, the most telling first."""


def resembled(law: LawResult, gives: str) -> str | None:
    """The exhibit that the finding of a broken law resembles; None if none does."""
    found = law.found
    if found is None:
        return None
    for words, exhibit in BY_WORDS.get(law.name, ()):
        if re.search(words, found.sentence):
            return exhibit
    match law.name:
        case "sums-to-one":
            return "late_inflation" if gives != "scores" else "hashed_cache" if (found.measured or 0) > 1.5 else (
                "target_gate")
        case "causality":
            return _ahead(found.token or 0, found.input)
        case "evaluation":
            ratio = (found.measured or 0.0) / max(found.allowed or 0.0, 1e-9)
            return "natural_log" if abs(ratio - math.log(2)) < 0.02 else "chosen_seed" if ratio > 0.8 else "first_part"
    return None


def _ahead(token: int, rows: tuple[tuple[int, ...], ...]) -> str:
    """The look-ahead that reads a later token from so far."""
    if token >= 2048:
        return "mask_beyond_2048"
    changed = next((at for at, pair in enumerate(zip(*rows[:2], strict=False)) if len(set(pair)) > 1), token + 1)
    return "mask_off_by_one" if changed == token + 1 else "norm_over_time"
