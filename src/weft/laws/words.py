"""The laws in plain words, and what usually breaks each."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from weft.laws.report import Finding

ORDER = ("finite", "causality", "split", "split gradients", "training", "stability", "ragged", "ragged gradients",
         "packed", "packed gradients", "bounded", "persistence", "saving", "forks", "selection", "coordinates",
         "memory", "compile", "readout", "inference", "continuation", "precision")
"""Which of several laws that one defect breaks tells most about it, first to last; others come in between."""

MEANING = MappingProxyType({
    "finite": "outputs must be numbers, however long the row",
    "split": "a sequence run in pieces must equal the sequence run whole",
    "split gradients": "a sequence run in pieces must have the gradients of the sequence run whole",
    "causality": "what comes later must not change what came before",
    "ragged": "a row must not depend on its padding or on other rows",
    "ragged gradients": "a row's gradients must not depend on its padding or on other rows",
    "selection": "states can be reordered, forked, divided and joined",
    "packed": "documents packed into one row must equal each alone",
    "packed gradients": "documents packed into one row must have the gradients of each alone",
    "persistence": "weights and states that are saved and read back must go on the same",
    "precision": "other dtypes must stay near float64",
    "bounded": "a state grows only in dimensions that declare it",
    "stability": "a very long sequence must stay finite and independent of the cuts",
    "readout": "log-probabilities must be those of the logits",
    "inference": "the inference form must equal the part",
    "rewriting": "a part whose linear maps are adapted or quantised must compute with what replaced them",
    "continuation": "float32 must stay near float64 in pieces of several tokens too",
    "training": "training mode must be evaluation but for dropout",
    "forks": "copies of a state that go on differently must see nothing of each other",
    "saving": "a state can be saved and restored whenever there is one",
    "admission": "rows can be retired and admitted in a running batch",
    "trimming": "a state can be trimmed to what its rows have read",
    "rewinding": "a state can be rewound to a mark",
    "coordinates": "explicit coordinates must mean the same in pieces",
    "memory": "a bounded state costs as much after many tokens as after few",
    "compile": "a call must compile into one graph",
})

CAUSE = MappingProxyType({
    "finite": "a power, an exponential or a division that overflows.",
    "split": "the state does not hold all that the next piece needs, or positions restart with a piece.",
    "split gradients": "the state is detached or written in place where gradients flow.",
    "causality": "a mask or a shift is off by one, or something is normalised or summed over time.",
    "ragged": "tokens beyond a row's count are used, or something is computed over the rows of a batch.",
    "ragged gradients": "tokens beyond a row's count are used.",
    "selection": "something is kept outside the state, in a field without tensor_field, or shared by its copies.",
    "packed": "what came before is used after a document has begun: reset it, or fence it, where span.begins says.",
    "packed gradients": "gradients flow from one document into another.",
    "persistence": "a tensor is no declared field of the state, or no parameter or buffer of the module.",
    "precision": "a constant, an accumulator or a path that only one dtype takes.",
    "bounded": "a tensor that gets longer needs tensor_field(grows=...).",
    "stability": "a sum, a counter or a buffer that overflows or drifts.",
    "readout": "log_prob and logits are computed in different ways (a cap, a bias, a scale).",
    "inference": "what `inference` returns computes something else.",
    "rewriting": "a matrix is read from a second reference, or from its map instead of by calling the map.",
    "training": "something besides dropout asks whether the module trains.",
    "forks": "copies of a state share memory that is written in place.",
    "saving": "a tensor or a fact that the state needs is no declared field.",
    "admission": "something of a row is kept outside the state, or computed over the rows of a batch.",
    "trimming": "slots beyond the tokens that a row has read hold something, or a fact counts them.",
    "rewinding": "a field that grows is written in slots of earlier tokens: declare it without grows.",
    "coordinates": "positions are rounded, or counted where the call gave coordinates.",
    "memory": "something is kept outside the state, or grows with every call.",
    "compile": "a value is read on the host (.item(), bool(), a loop over a tensor) to choose what is computed.",
    "continuation": "float32 takes another path, or loses what float64 still holds.",
})


def rank(law: str) -> int:
    """The place of a law in `ORDER`."""
    return ORDER.index(law) if law in ORDER else ORDER.index("inference")


def meaning(law: str, documented: str | None) -> str:
    """The law in plain words; of one that is not listed here the first sentence of its documentation."""
    if law in MEANING:
        return MEANING[law]
    text = " ".join((documented or "").split("\n\n")[0].split())
    return text.split(". ")[0].rstrip(".") or law


def likely_cause(law: str, broken: Sequence[Finding], held: Sequence[Finding], steps: int) -> str:
    """What probably breaks the law.

    Args:
        law: the one that tells most.
        broken: the findings that break any law, worst first.
        held: the others.
        steps: tokens of the rows that they come from.
    """
    raised = next((finding for finding in broken if finding.case.startswith("raised ")), None)
    if raised is not None and raised.law == law:
        return f"it {raised.case}"
    first = [finding.token for finding in broken if finding.law == law and finding.token is not None]
    if law in ("finite", "split", "causality", "ragged", "packed", "inference", "stability") and first and steps > 11 \
            and min(first) > 11:
        return (f"all is well for {min(first) - 1:,} tokens, so a chunk, a window, a buffer or a counter that ends "
                f"there. Otherwise: {CAUSE[law]}")
    if law == "split":
        return _split_cause(broken, held)
    return CAUSE.get(law, "")


def _split_cause(broken: Sequence[Finding], held: Sequence[Finding]) -> str:
    """Which pieces go wrong tells what is forgotten."""
    wrong = [finding.case for finding in broken if finding.law == "split"]
    right = [finding.case for finding in held if finding.law == "split"]

    def single(case: str) -> bool:
        return case.startswith(("pieces 1+1+1", "single tokens"))

    if any(map(single, right)) and not any(map(single, wrong)):
        if all(case.startswith("rows advance") for case in wrong):
            return "tokens beyond a row's count enter the state."
        return "the state is dropped or misread in a piece of several tokens, or of none; single tokens are right."
    if wrong and all(map(single, wrong)) and any(not single(case) for case in right):
        return "a call of a single token computes something else."
    if wrong and all("reserved" in case for case in wrong) and any("reserved" not in case for case in right):
        return "a path that is taken with reserved buffers or plain facts (span.bound, span.uniform) is wrong."
    return CAUSE["split"]
