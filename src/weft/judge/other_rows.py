"""The laws ``separate-rows`` and ``documents``: a row's output depends on no other row, on no padding, and on nothing
before a document's beginning."""

from __future__ import annotations

import numpy as np

from weft.judge.case import Case, OutputForm, first_difference, smallest
from weft.judge.judgement import Found, LawResult, ids, result

SLOTS = ((2, (0,)), (2, (1,)), (9, (0,)), (9, (8,)), (9, (3,)), (33, (0, 17, 32)))
"""Numbers of rows, and the places among them at which a row is asked again: the last row of 33 begins another block of
most kernels."""
BATCHES = (2, 9, 33)


def separate_rows(case: Case) -> LawResult:
    """The law ``separate-rows``."""
    length = min(64, case.length)
    found = None
    for view in case.views:
        found = _beside_others(case, view, length) or _padded(case, view, length)
        if found:
            break
    return result("separate-rows", f"rows of {length:,} tokens alone, as one of {', '.join(map(str, BATCHES))} rows, "
                  "in another order of rows, beside other rows, and with tokens of padding on the right", found)


def _beside_others(case: Case, view: OutputForm, length: int) -> Found | None:
    row = case.rows(3, length, 31)[2]
    places = case.places(view, length, BATCHES[-1])
    alone = case.log_probs(view, row[None], places)
    for count, slots in SLOTS:
        batch = case.rows(count, length, 32 + count + slots[0])
        batch[list(slots)] = row
        got = case.log_probs(view, batch, places)
        for at in slots:
            if seen := first_difference(case, alone, got[at : at + 1]):
                case.require_steady(view, batch, places, got)
                return _smaller(case, view, row, batch, at, places[seen[1]])
    return None


def _smaller(case: Case, view: OutputForm, row: np.ndarray, batch: np.ndarray, at: int, token: int) -> Found:
    """The finding with the fewest other rows and tokens."""
    def seen(rows: np.ndarray) -> tuple[int, int, float] | None:
        # The row that is asked is the last of these.
        return first_difference(case, case.log_probs(view, rows[-1:]), case.log_probs(view, rows)[-1:])

    rows = np.concatenate([np.delete(batch, at, axis=0), row[None]])
    while len(rows) > 2 and seen(rows[len(rows) // 2 :] if len(rows) > 3 else rows[1:]):
        rows = rows[len(rows) // 2 :] if len(rows) > 3 else rows[1:]
    if seen(rows):
        rows = smallest(case, rows, lambda shorter: seen(shorter) is not None)
        _, token, gap = seen(rows) or (0, token, 0.0)
        beside = "another row" if len(rows) == 2 else f"{len(rows) - 1} other rows"
        said = f"The output of a row at token {token} is another one beside {beside} than alone."
        return Found(sentence=said, row=len(rows) - 1, token=token, input=ids(*rows), measured=gap,
                     allowed=case.allowed, resembles="batch_norm")
    return Found(sentence=f"The output of row {at} at token {token} is another one in a batch of {len(batch)} rows "
                 "than alone.", row=at, token=token, input=ids(*batch), allowed=case.allowed,
                 resembles="batch_norm")


def _padded(case: Case, view: OutputForm, length: int) -> Found | None:
    """A row alone, and followed by tokens of padding, in its own batch and beside a full row."""
    short = max(2, length // 2 - 3)
    row = case.rows(3, length, 33)[2]
    places = case.places(view, short, 2)
    alone = case.log_probs(view, row[None, :short], places)
    for token in (0, case.vocab - 1):
        for beside in (False, True):
            padded = np.full((1 + beside, length), token, np.int64)
            padded[0, :short] = row[:short]
            padded[1:] = row
            if seen := first_difference(case, alone, case.log_probs(view, padded, places)[:1]):
                at = places[seen[1]]
                return Found(sentence=f"The output of a row of {short} tokens is another one at token {at} where "
                             "tokens of padding follow.", row=0, token=at, input=ids(row[:short], padded[0]),
                             measured=seen[2], allowed=case.allowed, resembles="shifted_padding")
    return None


def documents(case: Case) -> LawResult:
    """The law ``documents``: after the end of a document the output is the same whatever the document was."""
    end, length = case.stated.get("end_of_document"), min(64, case.length)
    if not isinstance(end, int) or not 0 <= end < case.vocab or length < 8:
        return LawResult(name="documents", outcome="not tried",
                         why="no end_of_document is stated at which it would begin anew")
    found, half = None, length // 2
    for view in case.views:
        first, second = case.rows(4, length, 41), case.rows(4, length, 42)
        second[:, half:] = first[:, half:]
        first[:, half - 1] = second[:, half - 1] = end
        places = [at for at in case.places(view, length, 4) if at >= half - (not view.scores)]
        if seen := first_difference(case, case.log_probs(view, first, places), case.log_probs(view, second, places)):
            row, at = seen[0], places[seen[1]]
            found = Found(sentence=f"The output at token {at} depends on a document that ended at token {half - 1}.",
                          row=0, token=at, input=ids(first[row], second[row]), measured=seen[2], allowed=case.allowed,
                          resembles="carried_state")
            break
    return result("documents", f"4 rows of {length} tokens with another first document each", found)
