"""The laws in plain words, and what usually breaks each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from weft.laws.report import Finding

ORDER = ("forms", "finite", "causality", "split", "slopes", "split gradients", "training", "stability", "ragged",
         "ragged gradients", "packed", "packed gradients", "bounded", "persistence", "saving", "forks", "selection",
         "coordinates", "masks", "memory", "compile", "readout", "inference", "continuation", "precision")
"""The laws from the most to the least specific: a defect that breaks several is reported under the first of them. Laws
that are not listed rank with "inference"."""

_WORDS = tomllib.loads((Path(__file__).parent / "plain_words.toml").read_text(encoding="utf-8"))
MEANING: Mapping[str, str] = MappingProxyType({law: words["meaning"] for law, words in _WORDS.items()})
CAUSE: Mapping[str, str] = MappingProxyType({law: words["cause"] for law, words in _WORDS.items() if "cause" in words})


def rank(law: str) -> int:
    """The place of a law in `ORDER`."""
    return ORDER.index(law) if law in ORDER else ORDER.index("inference")


def meaning(law: str, documented: str | None) -> str:
    """The law in plain words, or the first sentence of its documentation if it is not listed in `MEANING`."""
    if law in MEANING:
        return MEANING[law]
    text = " ".join((documented or "").split("\n\n")[0].split())
    return text.split(". ")[0].rstrip(".") or law


def likely_cause(law: str, broken: Sequence[Finding], held: Sequence[Finding], steps: int) -> str:
    """The probable cause of a broken law, as a sentence.

    Args:
        law: the law that is reported.
        broken: the comparisons of all laws that fail, worst first.
        steps: tokens of the rows that were compared.
    """
    raised = next((finding for finding in broken if finding.case.startswith("raised ")), None)
    if raised is not None and raised.law == law:
        return f"it {raised.case}"
    first = [finding.token for finding in broken if finding.law == law and finding.token is not None]
    if law in ("finite", "split", "causality", "ragged", "packed", "inference", "stability") and first and steps > 11 \
            and min(first) > 11:
        return (f"the first {min(first) - 1:,} tokens are right, so a chunk, a window, a buffer or a counter may end "
                f"there. Otherwise, {CAUSE[law]}")
    if law == "split":
        return _split_cause(broken, held)
    return CAUSE.get(law, "")


def _split_cause(broken: Sequence[Finding], held: Sequence[Finding]) -> str:
    """The probable cause, by the kinds of pieces that fail."""
    wrong = [finding.case for finding in broken if finding.law == "split"]
    right = [finding.case for finding in held if finding.law == "split"]

    def single(case: str) -> bool:
        return case.startswith(("pieces 1+1+1", "single tokens"))

    if any(map(single, right)) and not any(map(single, wrong)):
        if all(case.startswith("rows advance") for case in wrong):
            return "tokens beyond a row's count enter the state."
        return "the state is dropped or misread by calls of several tokens or of none; calls of one token are right."
    if wrong and all(map(single, wrong)) and any(not single(case) for case in right):
        return "calls of one token compute something else than calls of several."
    if wrong and all("reserved" in case for case in wrong) and any("reserved" not in case for case in right):
        return "a branch for reserved buffers or for plain facts (span.bound, span.uniform) is wrong."
    return CAUSE["split"]
