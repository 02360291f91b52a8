"""The laws in plain words, and what usually breaks each."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from weft.laws.report import Finding

ORDER = ("forms", "finite", "causality", "split", "slopes", "split gradients", "training", "stability", "ragged",
         "ragged gradients", "packed", "packed gradients", "bounded", "persistence", "saving", "forks", "selection",
         "coordinates", "masks", "memory", "compile", "readout", "inference", "continuation", "precision")
"""The laws from the most to the least specific: a defect that breaks several is reported under the first of them. Laws
that are not listed rank with "inference"."""

MEANING = MappingProxyType({
    "finite": "outputs must be numbers, however long the row",
    "split": "a sequence run in pieces must equal the sequence run whole",
    "split gradients": "a sequence run in pieces must have the gradients of the sequence run whole",
    "slopes": "gradients must be those of what is computed",
    "causality": "later tokens must not change the outputs of earlier ones",
    "ragged": "a row must not depend on its padding or on other rows",
    "ragged gradients": "a row's gradients must not depend on its padding or on other rows",
    "selection": "rows of a state can be reordered, copied, split and joined",
    "packed": "documents packed into one row must equal each document alone",
    "packed gradients": "documents packed into one row must have the gradients of each document alone",
    "persistence": "weights and states that were saved and loaded must give the same outputs",
    "precision": "results in other dtypes must stay near those in float64",
    "bounded": "a state may grow only along dimensions that are declared to grow",
    "stability": "outputs must not depend on how a very long sequence is cut, nor on earlier calls",
    "readout": "log_prob must equal the log-softmax of the logits",
    "inference": "the form for inference must compute what the part computes",
    "reuse": "a state that a call has consumed must be refused",
    "seeds": "a part that chooses experts must obey the laws with any weights",
    "inputs": "an encoder must read the inputs that it declares, and refuse others",
    "head": "the outputs of a head must not depend on padding or other rows",
    "rewriting": "a part whose linear maps are adapted or quantised must compute with what replaced them",
    "continuation": "a sequence continued in float32, several tokens at a time, must stay near float64",
    "training": "training mode must compute what evaluation mode does, except for dropout",
    "forks": "copies of a state that are continued with different tokens must not affect each other",
    "saving": "a state can be saved and restored at any time",
    "admission": "rows of a running batch can be replaced by others",
    "trimming": "a state can be trimmed to the tokens that its rows have read",
    "rewinding": "a state can be rewound to an earlier token",
    "coordinates": "explicit coordinates must have the same effect in pieces as in the whole sequence",
    "masks": "a mask must repeat after as many heads as it declares",
    "memory": "a bounded state must need as much memory after many tokens as after few",
    "compile": "torch.compile must trace a call as one graph",
    "forms": "a form of an operation must compute what the operation's reference computes",
})

CAUSE = MappingProxyType({
    "finite": "a power, an exponential or a division that overflows.",
    "split": "the state does not hold everything that the next piece needs, or positions restart at each piece.",
    "split gradients": "the state is detached or written in place where gradients flow.",
    "slopes": "a backward that was written by hand is wrong, or a value is detached that depends on what is trained.",
    "causality": "a mask or a shift is off by one, or a norm or a sum runs over time.",
    "ragged": "tokens beyond a row's count are used, or a norm or a sum runs over the rows of the batch.",
    "ragged gradients": "tokens beyond a row's count are used.",
    "selection": "data are stored outside the state or in a field without tensor_field, or copies share them.",
    "packed": "data of the previous document are used after a new one begins: reset or mask them at span.begins.",
    "packed gradients": "gradients flow from one document into another.",
    "persistence": "a tensor is not declared as a field of the state, or as a parameter or buffer of the module.",
    "precision": "a constant, an accumulator or a branch that only one dtype takes.",
    "bounded": "a tensor grows with the sequence: declare it with tensor_field(grows=...).",
    "stability": "a sum, a counter or a buffer that overflows, drifts or is kept on the module.",
    "readout": "log_prob and logits differ in a cap, a bias or a scale.",
    "inference": "the module that `inference()` returns computes something else.",
    "reuse": "the part replaces the state, or its clock, before the check that refuses consumed states.",
    "seeds": "something depends on which experts are chosen, such as an order or a capacity shared by rows.",
    "inputs": "an input is declared and not used, or padding of an input is used.",
    "head": "the head pools or normalises over padding, or log_prob and logits differ.",
    "rewriting": "a matrix is read from a second reference, or from its map instead of by calling the map.",
    "training": "something besides dropout depends on `self.training`.",
    "forks": "copies of a state share memory that is written in place.",
    "saving": "a tensor or a plain value that the state needs is not declared as a field.",
    "admission": "data of a row are stored outside the state, or computed over the rows of the batch.",
    "trimming": "slots beyond the tokens that a row has read hold data, or a plain value counts those slots.",
    "rewinding": "a field that grows is also written at slots of earlier tokens: declare it without grows.",
    "coordinates": "positions are rounded, or counted although the call gave coordinates.",
    "masks": "the rule reads its head, and `heads()` does not say how many differ.",
    "memory": "data are stored outside the state, or grow with every call.",
    "compile": "a tensor's value decides what is computed (.item(), bool(), a loop over a tensor).",
    "continuation": "float32 takes another branch, or loses precision that float64 keeps.",
    "forms": "the form itself, in the file that adds it: its formula, or the gradient of its operator.",
})


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
