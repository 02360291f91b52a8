"""The law ``causality``: no output depends on a later token, near the end of a row, at any border, or far behind it."""

from __future__ import annotations

import numpy as np

from weft.judge.case import LENGTHS, Case, OutputForm, first_difference, smallest
from weft.judge.judgement import Found, LawResult, ids, result
from weft.judge.normalised import beats_chance

NAME = "causality"
ROUNDS = 6
"""Times that short rows are changed, each row at a place of its own."""
SHORT, SHARE = 256, 0.4
"""Rows that are no longer are always tried; longer ones until this share of the time for the verdict is up, since other
laws must be tried too."""
TOGETHER = 8
"""Changes of a longer row that are rows of one batch, but for the first two, if they need no more memory than the
longest row: a model that goes from token to token takes little longer for a few rows than for one."""


def causality(case: Case) -> LawResult:
    """The law for every way in which the model gives probabilities, at growing lengths."""
    tried, count, why = [], 0, case.why_length
    lengths = [each for each in (8, 64, 256, 1024, 2048, 4096) if each < case.length] + [case.length]
    for view in case.views:
        if view.gives.startswith("next"):
            tried.append("it is given the tokens before and no other")
            continue
        for length in lengths:
            if _late(case, length):
                lengths = [each for each in lengths if each < length]
                why = f"rows of {length:,} tokens and more were left out, when {SHARE:.0%} of the time was up"
                break
            found, asked, left_out = _at_length(case, view, length)
            count, why = count + asked, left_out or why
            if found:
                return result(NAME, _tried(count, lengths[: lengths.index(length) + 1]), found)
        if found := (None if view.scores else beats_chance(case, view)):
            return result(NAME, _tried(count, lengths), found)
    tried += [_tried(count, lengths)] if count else []
    return result(NAME, "; ".join(tried), None, why)


def _tried(count: int, lengths: list[int]) -> str:
    return (f"one token, all tokens from one on, and the last one were changed ({count:,} times in all), in rows of "
            f"{', '.join(f'{each:,}' for each in lengths)} tokens")


def _late(case: Case, length: int) -> bool:
    """Whether rows of a length must leave what is left of the time to other laws."""
    return length > SHORT and case.left() < (1 - SHARE) * case.limits.seconds


def _at_length(case: Case, view: OutputForm, length: int) -> tuple[Found | None, int, str]:
    """The first change that shows in an earlier output, how many were tried, and why no more."""
    count = 8 if length <= 64 else 2 if length <= 256 else 1
    rows = case.rows(count, length, 21) if count > 1 else case.rows(3, length, 21)[2:]
    draw = np.random.default_rng(length)
    cuts = _cuts(draw, length, count)
    near = [int(each) for each in cuts.flatten()]
    places = case.places(view, length, count, near)
    before = case.log_probs(view, rows, places)
    each = rows if length <= SHORT else rows.repeat(min(TOGETHER, max(1, (LENGTHS[-1] // length) ** 2)), axis=0)
    index = 0
    while index < len(cuts):
        if index and _late(case, length):
            return None, index * count, f"{SHARE:.0%} of the time was up after {index} changes of {length:,} tokens"
        same = rows if index < 2 else each[: (len(cuts) - index) * count]
        some = cuts[index: index + len(same) // count]
        changed = same.copy()
        for row, at in enumerate(some.flat):
            end = length if (index + row // count) % 3 == 0 else at + 1
            changed[row, at:end] = (same[row, at:end] + draw.integers(1, case.vocab, end - at)) % case.vocab
        after, index = case.log_probs(view, changed, places), index + len(some)
        # What may depend on the change is compared with itself.
        expected = np.resize(before, after.shape)
        may = np.asarray(places)[None] >= some.reshape(-1, 1)
        after[may] = expected[may]
        if first_difference(case, expected, after):
            case.require_steady(view, rows, places, before)
            return _shown(case, view, same, changed, some.flatten()), index, ""
    return None, len(cuts) * count, ""


def _cuts(draw: np.random.Generator, length: int, count: int) -> np.ndarray:
    """Where rows are changed [rounds, rows]: at random places, at the last one, and at multiples of powers of two,
    before which chunks and blocks end."""
    borders = [at for at in (length // 2, length * 3 // 4, 2048, 3072, 1024) if 0 < at < length]
    rounded = [at & -64 if at >= 128 else at for at in borders]
    some = [*rounded, *(at + 1 for at in rounded if at + 1 < length)]
    if length > 256:
        late = int(draw.integers(length // 2, length))
        return np.asarray([[late], [length - 1], [late], *([each] for each in dict.fromkeys(some))][: 3 + ROUNDS])
    cuts = draw.integers(1, length, (ROUNDS, count))
    cuts[1] = length - 1
    if length > 130:
        cuts[2:4] = [[64], [128]] + np.arange(count) % 2  # with the token after each
    return cuts


def _shown(case: Case, view: OutputForm, rows: np.ndarray, changed: np.ndarray, cut: np.ndarray) -> Found | None:
    """The finding with the fewest tokens: a row alone, without the tokens that are not needed."""
    def seen(pair: np.ndarray) -> tuple[int, int, float] | None:
        differ = np.flatnonzero(pair[0] != pair[1])
        if not differ.size or not differ[0]:
            return None
        places = case.places(view, pair.shape[1], 1, [int(differ[0])])
        places = [at for at in places if at < differ[0]]
        return first_difference(case, *(case.log_probs(view, row[None], places) for row in pair)) if places else None

    for row in range(len(rows)):
        pair = np.stack([rows[row], changed[row]])
        if seen(pair):
            pair = smallest(case, pair, lambda shorter: seen(shorter) is not None)
            _, place, gap = seen(pair) or (0, 0, 0.0)
            first = int(np.flatnonzero(pair[0] != pair[1])[0])
            at = [at for at in case.places(view, pair.shape[1], 1, [first]) if at < first][place]
            return Found(sentence=f"The output at token {at} changes when token {first} is replaced, which comes later "
                         "and must not be read there.", row=0, token=at, input=ids(*pair), measured=gap,
                         allowed=case.allowed, resembles="mask_beyond_2048" if at >= 2048 else "mask_off_by_one"
                         if first == at + 1 else "norm_over_time")
    return Found(sentence=f"Outputs change when later tokens are replaced (from token {int(cut.min())} on), but only "
                 f"with all {len(rows)} rows in one batch.", token=int(cut.min()) - 1, input=ids(*rows, *changed),
                 measured=None, allowed=case.allowed, resembles="batch_norm")
