"""The law ``repeats``: the same question has the same answer, whatever was asked before and in any process."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from weft.judge.case import Case, OutputForm, first_difference
from weft.judge.judgement import Found, LawResult, ids, result

NAME = "repeats"
CALLS, SECONDS = 10_000, 2.5
"""Calls of one short row, and the seconds that they may take; of slower models there are fewer."""
KEPT = "kept_cache"
"""The exhibit that an answer resembles which earlier calls have changed."""
OTHERS = 64
"""Other rows that are asked of the second process before: a cache with a short key has kept theirs."""


def repeats(case: Case) -> LawResult:
    """The law for every way in which the model gives probabilities."""
    length, tried = min(64, case.length), "nothing"
    for view in case.views:
        rows = case.rows(4, length, 51)
        places = case.places(view, length, 4)
        asked = _Repeated(case, view, rows, places)
        found = asked.in_one_process() or asked.in_another()
        if found is None and case.changes_input:  # so that whoever asks with the same array asks something else
            found = Found(sentence="A call changes the ids that it is given, so that they are others in the next call.",
                          input=ids(rows[0]), resembles="changed_input")
        tried = ", ".join(asked.tried)
        if found:
            return result(NAME, tried, found)
    return result(NAME, tried, None)


class _Repeated:
    """Questions about the same rows, and what was done between them."""

    def __init__(self, case: Case, view: OutputForm, rows: np.ndarray, places: list[int]) -> None:
        self._case, self._view, self._rows, self._places = case, view, rows, places
        self.tried: list[str] = []
        self._first = case.log_probs(view, rows, places)

    def in_one_process(self) -> Found | None:
        """The first answer of the first process that differs when it is asked again."""
        case = self._case
        between: dict[str, tuple[str | None, Callable[[], None]]] = {
            "at once": (None, lambda: None),
            "after other rows": (
                KEPT, lambda: self._ask(case, case.rows(3, self._rows.shape[1] // 2 + 1, 52))),
            "with the clock 401 days ahead": ("prompt_hash", lambda: self._world(case, 401 * 86_400.0, 1)),
            "with other random numbers": ("dropout_left_on", lambda: self._world(case, 0.0, 987_654_321))}
        for name, (exhibit, act) in between.items():
            act()
            if found := self._same(case, name, exhibit):
                return found
        return self._one_row_after_another() or self._after_many()

    def in_another(self) -> Found | None:
        """The difference of another process, in other surroundings and asked in another order."""
        other = self._case.of(self._case.other)
        self._ask(other, self._case.rows(OTHERS, self._rows.shape[1], 53))
        return self._same(other, "in another process with other time, random numbers, HOME, working folder and "
                                 "environment, asked in another order", "prompt_hash")

    def _world(self, case: Case, clock: float, seed: int) -> None:
        case.worker.ask("world", clock=clock, seed=seed)

    def _ask(self, case: Case, rows: np.ndarray) -> None:
        case.log_probs(self._view, rows, [rows.shape[1] - 1])

    def _one_row_after_another(self) -> Found | None:
        """The rows of the batch again, the last first: a cache of rows that were seen shows."""
        again = [self._case.log_probs(self._view, self._rows[at : at + 1], self._places)
                 for at in reversed(range(len(self._rows)))]
        return self._compared(np.concatenate(again[::-1]), "row by row, the last first", KEPT)

    def _after_many(self) -> Found | None:
        short = self._rows[:1, :4]
        begun = time.monotonic()
        self._case.raw(self._view, short, times=8)
        each = (time.monotonic() - begun) / 8
        calls = max(8, min(CALLS, int(SECONDS / max(each, 1e-6))))
        self._case.raw(self._view, short, times=calls)
        return self._same(self._case, f"after {calls:,} calls", KEPT)

    def _exhibit(self) -> str:
        """The exhibit that another answer at once resembles: of random numbers a seed alone gives the same ones."""
        told = []
        for seeded in (True, False, True):
            if seeded:
                self._world(self._case, 0.0, 7)
            told.append(self._case.log_probs(self._view, self._rows, self._places))
        first, unseeded, again = told
        drawn = first_difference(self._case, first, unseeded) and not first_difference(self._case, first, again)
        return "dropout_left_on" if drawn else KEPT

    def _same(self, case: Case, name: str, exhibit: str | None) -> Found | None:
        return self._compared(case.log_probs(self._view, self._rows, self._places), name, exhibit)

    def _compared(self, got: np.ndarray, name: str, exhibit: str | None) -> Found | None:
        self.tried.append(name)
        seen = first_difference(self._case, self._first, got)
        if seen is None:
            return None
        row, place, gap = seen
        return Found(sentence=f"The same rows have another output at token {self._places[place]} {name}.", row=row,
                     token=self._places[place], input=ids(*self._rows), measured=gap, allowed=self._case.allowed,
                     resembles=exhibit or self._exhibit())
