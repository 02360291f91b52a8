"""The laws ``pieces`` and ``saved``: decoding token by token equals the whole row, and weights that were saved and
loaded give the same model."""

from __future__ import annotations

import numpy as np

from weft.judge.case import Case, OutputForm, first_difference, smallest
from weft.judge.judgement import Found, LawResult, ids, result
from weft.judge.questions import EndedError, output_of

SIZE_SLACK = 1 << 16
"""Bytes by which a file may exceed the size that is claimed: names, alignment and a header."""


def pieces(case: Case) -> LawResult:
    """The law ``pieces``."""
    missing = {"start", "step"} - set(case.offered)
    view = case.views[0]
    if missing or view.scores:
        return LawResult(name="pieces", outcome="not tried", why="it has no start and step to decode by" if missing
                         else "it gives scores, which are no distributions to decode from")
    found, tried = None, []
    for count, length, used in ((1, 12, 0), (3, 12, 5), (2, min(160, case.length), 0), (1, 24, 24)):
        rows = case.rows(count, min(length, case.length), 61 + used)
        tried.append(f"{count} of {rows.shape[1]} tokens")
        if found := _differs(case, view, rows, min(used, rows.shape[1])):
            break
    return result("pieces", f"rows token by token against whole rows: {', '.join(tried)}; also after a state was used, "
                  "and with two states in turns", found)


def _differs(case: Case, view: OutputForm, rows: np.ndarray, used: int) -> Found | None:
    def seen(asked: np.ndarray) -> tuple[int, int, float] | None:
        values = output_of(case.worker.ask("steps", asked, used=min(used, asked.shape[1]))[1]).astype(float)
        if values.shape != (*asked.shape, view.vocab):
            raise EndedError(f"its steps return {list(values.shape)} where {[*asked.shape, view.vocab]} was expected")
        stepped = case.normalised(values) if view.gives in ("logits", "next") else values
        return first_difference(case, case.log_probs(view, asked), np.maximum(stepped, -80.0))

    if seen(rows) is None:
        return None
    rows = smallest(case, rows, lambda shorter: seen(shorter) is not None)
    row, place, gap = seen(rows) or (0, 0, 0.0)
    after = " after a state has been used before" if used else ""
    return Found(sentence=f"Decoded token by token{after}, the output at token {place} is not that of the whole row.",
                 row=row, token=place, input=ids(*rows), measured=gap, allowed=case.allowed,
                 resembles="scaled_positions")


def saved(case: Case) -> LawResult:
    """The law ``saved``: a second model, made in another process, into which the weights are loaded."""
    if not case.about["remade"]:
        return LawResult(name="saved", outcome="not tried", why="it is no module that a class or a function of the "
                         "file makes, so nothing can be loaded into a second one")
    view, rows = case.views[0], case.rows(3, min(48, case.length), 71)
    before = case.log_probs(view, rows)
    message, arrays = case.worker.ask("save")
    found = _size(case, output_of(arrays).nbytes)
    if found is None:
        case.other.ask("restore", *arrays, size=message.get("size"))
        if seen := first_difference(case, before, case.of(case.other).log_probs(view, rows)):
            found = Found(sentence="After its weights were saved and loaded into a second model, the output at token "
                          f"{seen[1]} is another one: not all that it computes with is saved.", row=seen[0],
                          token=seen[1], input=ids(rows[seen[0], : seen[1] + 1]), measured=seen[2],
                          allowed=case.allowed, resembles="missing_buffer")
    return result("saved", "the weights saved, read weights-only into a second model in another process, and the same "
                  "rows asked of it", found)


def _size(case: Case, size: int) -> Found | None:
    claimed = (case.stated.get("claims") or {}).get("size_bytes")
    if not isinstance(claimed, int | float) or size <= claimed * 1.02 + SIZE_SLACK:
        return None
    return Found(sentence=f"Its weights take {size:,} bytes in a file, where it claims {claimed:,.0f}.", measured=size,
                 allowed=claimed * 1.02 + SIZE_SLACK, resembles="claimed_size")
