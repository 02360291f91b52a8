"""The verdict over pairs, and the clock of a study."""

from __future__ import annotations

import numpy as np
import pytest

from weft.comparison.jobs import Outcome
from weft.comparison.matched import spread
from weft.comparison.measures import TokenScores
from weft.comparison.progress import Clock, StudyProgress
from weft.comparison.results import CurvePoint
from weft.comparison.verdict import Runs, at_share, differences, sets_of


def _outcome(nats: np.ndarray) -> Outcome:
    sizes = tuple([100] * len(nats))
    return Outcome("finished", bits_per_byte=float(nats.sum()) / np.log(2) / sum(sizes), cluster_nats=tuple(nats),
                   cluster_bytes=sizes)


def _runs(name: str, mean: float, seed: int) -> Runs:
    draws = np.random.default_rng(seed)
    return Runs(name, True, tuple(_outcome(draws.normal(mean, 1.0, 40)) for _ in range(4)))


def test_pairs_are_of_the_runs_that_both_finished() -> None:
    good, bad = _runs("good", 100.0, 0), _runs("bad", 120.0, 1)
    broken = Runs("bad", True, (Outcome("failed"), *bad.outcomes[1:], ))
    pair, = differences([good, broken], 0.95, 1000)
    expected = [_bits(a) - _bits(b) for a, b in zip(good.outcomes[1:], bad.outcomes[1:], strict=True)]
    assert pair.over_seeds.mean == pytest.approx(np.mean(expected))
    assert not pair.tied and pair.over_documents.high is not None and pair.over_documents.high < 0
    assert differences([good, Runs("none", True, (Outcome("failed"),) * 4)], 0.95, 1000) == ()


def _bits(outcome: Outcome | None) -> float:
    assert outcome is not None and outcome.bits_per_byte is not None
    return outcome.bits_per_byte


def test_the_wider_doubt_decides_and_holm_corrects_it() -> None:
    models = [_runs("a", 100.0, 0), _runs("b", 100.1, 1), _runs("c", 120.0, 2)]
    found = {(pair.first, pair.second): pair for pair in differences(models, 0.95, 2000)}
    assert [pair.tied for pair in found.values()] == [True, False, False]
    clear = found["a", "c"]
    assert clear.p_value is not None and clear.p_value >= 2 / 2001  # what 2,000 resamples can say at the least
    assert clear.p_holm is not None and clear.p_holm == pytest.approx(3 * clear.p_value, rel=0.6)
    assert sets_of(models, list(found.values())) in ((("a", "b"), ("c",)), (("b", "a"), ("c",)))


def test_single_runs_are_not_told_apart() -> None:
    models = [Runs(each.name, True, each.outcomes[:1]) for each in (_runs("a", 100.0, 0), _runs("b", 150.0, 1))]
    pair, = differences(models, 0.95, 1000)
    assert (pair.over_seeds.low, pair.p_value, pair.p_holm, pair.tied) == (None, None, None, True)


def test_a_curve_between_its_points() -> None:
    curve = [CurvePoint(step, step, 0.0, 0.0, bits, 0.0) for step, bits in ((4, 3.0), (8, 2.0))]
    assert [at_share(curve, share) for share in (0.1, 0.5, 0.75, 1.0)] == [None, 3.0, 2.5, 2.0]
    assert at_share([], 1.0) is None


def test_few_documents_are_cut_into_blocks_by_bytes_and_many_are_kept() -> None:
    few = TokenScores(np.ones(200), np.full(200, 2), np.zeros(200, np.int64), np.ones(200, np.int64))
    nats, sizes = few.clusters()
    assert (nats, sizes) == ([4.0] * 50, [8] * 50)
    many = TokenScores(np.ones(60), np.full(60, 2), np.repeat(np.arange(30), 2), np.ones(60, np.int64))
    assert many.clusters() == ([2.0] * 30, [4] * 30)


def test_spreads() -> None:
    assert [spread(each) for each in ([2.0, 3.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0])] == [0.5, 0.0, float("inf"), 0.0]


def test_the_time_left_is_by_the_pace_of_what_was_done_now() -> None:
    told: list[StudyProgress] = []
    moments = iter([0.0, 0.0, 0.0, 10.0, 10.0, 10.0, 10.0])
    clock = Clock(told.append, lambda: next(moments))
    for name, work in (("read", 4.0), ("a", 1.0), ("b", 3.0)):
        clock.expect(name, work)
    clock.finish("read", "finished", now=False)
    clock.tell("a", "step", 1.0)
    assert [(each.done, each.seconds_left) for each in told] == [(0.5, None), (0.625, 30.0)]
    assert told[0].line() == " 50%  time left not known yet  read: finished"
    assert told[1].line() == " 62%  study 00:30 left  a: step"
