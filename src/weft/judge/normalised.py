"""The law ``sums-to-one``: the probabilities of all tokens sum to one after every prefix."""

from __future__ import annotations

import math

import numpy as np

from weft.judge.case import Case, OutputForm
from weft.judge.judgement import Found, LawResult, ids, result
from weft.judge.sample import SURE_BITS

NAME = "sums-to-one"
ASKED = 512
"""Rows of one question: a token each in the place of the next one."""
TOO_MANY = 2_048
"""Ids of a vocabulary from which on every token is put in place at fewer positions."""


def sums_to_one(case: Case) -> LawResult:
    """The law for every way in which the model gives probabilities."""
    tried = []
    for view in case.views:
        said, found = _scores(case, view) if view.scores else _distributions(case, view)
        tried.append(said)
        found = found or (beats_chance(case, view) if view.scores else None)
        if found:
            break
    return result(NAME, "; ".join(tried), found)


def _distributions(case: Case, view: OutputForm) -> tuple[str, Found | None]:
    """The sums of distributions, which whoever normalises logits has only to find finite."""
    count, found = 0, None
    for number, length in ((8, min(64, case.length)), (2, min(1024, case.length))):
        rows = case.rows(number, length, 11)
        places = case.places(view, length, number)
        values = case.log_probs(view, rows, places)
        count += values.shape[0] * values.shape[1]
        with np.errstate(all="ignore"):
            sums = np.exp(values).sum(axis=-1)
        found = _wrong_sum(case, view, rows, places, sums)
        if found:
            break
    normalised = " (logits, which are normalised here)" if view.gives in ("logits", "next") else ""
    return f"the sum of {view.vocab:,} probabilities{normalised} after {count:,} prefixes", found


def _wrong_sum(case: Case, view: OutputForm, rows: np.ndarray, places: list[int], sums: np.ndarray) -> Found | None:
    wrong = ~(np.abs(sums - 1) <= allowed_of_sums(case))
    if not wrong.any():
        return None
    # The earliest place shows it with the fewest tokens; among those the row that is furthest off.
    place = int(np.argmax(wrong.any(axis=0)))
    row = int(np.argmax(np.where(np.isnan(sums[:, place]), np.inf, np.abs(sums[:, place] - 1))))
    worst = float(sums[row, place])
    shown = rows[row, : places[place] + 1]
    sentence = (f"After {_tokens(len(shown))} a probability is no number (nan or infinite)." if not math.isfinite(worst)
                else f"After {_tokens(len(shown))} the probabilities of the next token sum to {worst:.6g}, not to 1.")
    resembles = (None if not math.isfinite(worst) else "maximum_of_models" if len(shown) == 1 else
                 "late_inflation" if not view.scores else "hashed_cache" if worst > 1.5 else "target_gate")
    return Found(sentence=sentence, row=row, token=places[place], input=ids(shown), measured=worst,
                 allowed=allowed_of_sums(case), resembles=resembles)


def allowed_of_sums(case: Case) -> float:
    """The difference of a sum from 1 that float32 (or 16-bit numbers) explains, for 100,000 tokens."""
    return 2e-2 if case.low else 1e-3


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count:,} tokens"


def _scores(case: Case, view: OutputForm) -> tuple[str, Found | None]:
    """The sums of scores, with every token of the vocabulary in the place of one token of a row."""
    length = min(48, case.length)
    few = view.vocab > TOO_MANY
    rows = case.rows(1 if few else 4, length, 12)
    asked = [(row, place) for row in range(len(rows))
             for place in ([1, 3] if few else sorted({0, 1, 2, 5, length // 2, length - 1}))]
    if view.vocab <= ASKED:  # in any one row, each other place
        asked += [(place % 4, place) for place in range(length)]
    sums, whole = np.full((len(rows), length), 1.0), False
    for row, place in asked:
        whole = not few and not whole  # with the tokens that follow, and without
        shown = rows[row] if whole else rows[row, : place + 1]
        if not (math.isnan(total := _sum_over(case, view, shown, place)) and place == 0):
            sums[row, place] = total  # of the first token nothing need be said
    tried = (f"{view.how}: the sum of the probabilities of all {view.vocab:,} tokens in the place of one, at "
             f"{len(asked):,} places, and {view.how} of random tokens")
    return tried, _wrong_sum(case, view, rows, list(range(length)), sums)


def _sum_over(case: Case, view: OutputForm, row: np.ndarray, place: int) -> float:
    total = 0.0
    for begin in range(0, view.vocab, ASKED):
        tokens = np.arange(begin, min(begin + ASKED, view.vocab))
        asked = np.repeat(row[None], len(tokens), axis=0)
        asked[:, place] = tokens
        total += float(np.exp(case.log_probs(view, asked, [place])[:, 0]).sum())
    return total


def beats_chance(case: Case, view: OutputForm) -> Found | None:
    """Random tokens that are predicted better than anything can that does not read them."""
    length = min(256, case.length)
    draw = np.random.default_rng(13)
    for few in (False, True):
        symbols = draw.choice(case.vocab, 2, replace=False) if few else np.arange(case.vocab)
        rows = draw.choice(symbols, (4, length)).astype(np.int64)
        if view.scores:
            told = case.log_probs(view, rows)[:, 1:]
        else:
            places = case.places(view, length, len(rows))[:-1]
            values = case.log_probs(view, rows, places)
            told = np.take_along_axis(values, rows[:, [at + 1 for at in places], None], axis=-1)[..., 0]
        gained = float(told.sum()) + told.size * math.log(len(symbols))
        if gained > SURE_BITS * math.log(2):
            row = int(told.sum(axis=1).argmax())
            return Found(sentence=f"Of {told.size:,} tokens drawn at random from {len(symbols):,} it predicts each "
                         f"with a probability of {math.exp(told.mean()):.3g} on average; nothing that does not read "
                         f"them exceeds 1 in {len(symbols):,}.", row=row, token=None, input=ids(rows[row, :64]),
                         measured=gained, allowed=SURE_BITS * math.log(2), resembles="target_gate")
    return None
