"""The search for a learning rate, and the clock of a study."""

from __future__ import annotations

from comparison.studies import LSTM
from weft.comparison.contestants import Contestant
from weft.comparison.jobs import Outcome
from weft.comparison.matched import spread
from weft.comparison.progress import Clock, StudyProgress
from weft.comparison.study import Seeds, TrialSettings
from weft.comparison.trials import Search, search
from weft.training import parse_run

SEEDS = (Seeds(seed=8, order_seed=9), Seeds(seed=9, order_seed=10))


def _search(bits: dict[float, float | None], settings: TrialSettings) -> tuple[Search, list[tuple[float, int, int]]]:
    asked: list[tuple[float, int, int]] = []

    def attempt(model: Contestant, lr: float, seeds: Seeds, steps: int) -> Outcome:
        asked.append((lr, seeds.seed, steps))
        found = bits[lr]
        return Outcome("diverged", "the loss became nan") if found is None else Outcome("finished", bits_per_byte=found)

    run = parse_run({"model": LSTM, "training": {"steps": 40, "optimizer": {"lr": 0.2}}})
    return search(Contestant("m", run, True, {}, 1.0), settings, SEEDS, attempt), asked


def test_the_best_trial_is_chosen_and_repeated_with_other_seeds() -> None:
    found, asked = _search({0.1: 2.0, 0.2: 1.5, 0.4: 1.9}, TrialSettings(ratio=2.0))
    assert (found.lr, found.edge, found.repeats) == (0.2, False, (1.5, 1.5))
    assert asked == [(0.1, 8, 10), (0.2, 8, 10), (0.4, 8, 10), (0.2, 9, 10)]


def test_a_best_at_the_edge_is_flagged_and_a_stated_deviation_needs_no_repetition() -> None:
    found, asked = _search({0.1: 2.0, 0.2: 1.5, 0.4: None}, TrialSettings(values=[0.1, 0.2], deviation=0.01))
    assert (found.lr, found.edge, len(asked)) == (0.2, True, 2)


def test_trials_that_all_fail_leave_the_models_own_rate() -> None:
    found, _ = _search({0.1: None, 0.2: None, 0.4: None}, TrialSettings(ratio=2.0))
    assert (found.lr, found.edge, [trial.status for trial in found.trials]) == (0.2, False, ["diverged"] * 3)
    assert found.notes == ("m: no trial finished, so it keeps its own learning rate, 0.2.",)


def test_a_single_trial_is_none() -> None:
    found, asked = _search({}, TrialSettings(count=1))
    assert (found.trials, found.lr, asked) == ((), 0.2, [])


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
