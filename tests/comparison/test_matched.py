"""Whether what a study aimed at came out equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from comparison.report.fixture import study
from comparison.studies import LSTM, study_of
from weft.comparison.matched import matched
from weft.comparison.protocol import notes_of
from weft.comparison.results import Matched

TWO = {"a": {"config": LSTM}, "b": {"config": LSTM}}


def judged(tmp_path: Path, budget: dict[str, object]) -> dict[str, Matched]:
    """Of made-up models, whose seconds are up to 3.1 times those of the fastest."""
    entries = study(4).entries
    config = study_of(tmp_path / "text.txt", TWO, budget=budget, length={"seconds": 5})
    return {each.quantity: each for each in matched(config, entries, [100, 103])}


def test_an_aim_that_is_missed_is_told_from_one_that_is_held(tmp_path: Path) -> None:
    found = judged(tmp_path, {"kind": "state_bytes", "amount": 100})
    assert {name for name, each in found.items() if each.missed} == {"training seconds"}
    assert {name for name, each in found.items() if each.held} == {"training tokens", "state bytes"}
    assert found["training seconds"].tolerance == 0.1


@pytest.mark.parametrize(("tolerance", "held"), [(0.02, True), (0.01, False)])
def test_models_may_lie_on_both_sides_of_the_amount(tolerance: float, held: bool, tmp_path: Path) -> None:
    state = judged(tmp_path, {"kind": "state_bytes", "amount": 100, "tolerance": tolerance})["state bytes"]
    assert (state.held, state.missed) == (held, not held)
    assert state.tolerance == pytest.approx((1 + tolerance) / (1 - tolerance) - 1)


def test_a_missed_aim_is_a_note(tmp_path: Path) -> None:
    result, config = study(4), study_of(tmp_path / "text.txt", TWO)
    missed = Matched("training seconds", True, 0.59)
    notes = notes_of(config, (), result.entries, None, result.corpus, (missed, Matched("training tokens", True, 0.0)))
    assert [note for note in notes if "meant" in note] == [
        "training seconds: meant to be equal, but the largest is 1.59 times the smallest, so a model may owe its place "
        "to them."]
