"""Looks at a study that grows: counted in its folder, each at a level of its own, and told with what they cost."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from comparison.entries import entry, result_of
from comparison.report.fixture import study as plain_study
from comparison.studies import LSTM, NGRAM, run, study_of, write_text
from weft.comparison.folder import read_result, rerender
from weft.comparison.looks import Look, share_of
from weft.comparison.power import looked
from weft.comparison.progress import StudyProgress
from weft.comparison.report import render
from weft.comparison.study_result import StudyResult
from weft.comparison.verdict import disagreement, judged
from weft.core.errors import CheckpointError, ConfigError
from weft.drawing.numbers import THIN


def shares(runs: list[int], planned: int) -> list[float]:
    """Of the looks at a study that grows to so many runs of each model."""
    looks: list[Look] = []
    for count in runs:
        looks.append(Look("", count, 2, share_of(looks, count, planned)))
    return [look.share for look in looks]


def test_a_study_that_is_run_once_has_all_of_its_level() -> None:
    assert shares([5], 5) == [1] == shares([5], 3)


@pytest.mark.parametrize("runs", [[3, 5, 10], list(range(3, 11)), [3, 10], [1, 10]])
def test_planned_looks_spend_the_level_in_proportion_to_their_runs_and_no_more(runs: list[int]) -> None:
    found = shares(runs, 10)
    assert found == pytest.approx([(b - a) / 10 for a, b in itertools.pairwise([0, *runs])])
    assert sum(found) == pytest.approx(1)


def test_looks_that_were_not_planned_spend_ever_less_and_little_together() -> None:
    # A model that is added, in the second and third look, brings no new runs of the plan.
    found = shares([3, 3, 3, 5, 20], 5)
    assert found == pytest.approx([3 / 5, 6 / np.pi**2 / 4, 6 / np.pi**2 / 9, 2 / 5, 6 / np.pi**2 / 25])
    assert sum(shares(list(range(3, 200)), 3)) < 1.4


def two(spread: float, apart: float, runs: int = 4) -> StudyResult:
    """A study of two models whose means lie apart by a number of nats per cluster, on a text that adds no doubt."""
    values = np.linspace(-spread, spread, runs)
    return result_of([entry("a", [[60 + each] * 6 for each in values]),
                      entry("b", [[60 + apart + each] * 6 for each in values])])


def at(result: StudyResult, share: float, runs: tuple[int, ...], planned: int | None = 10) -> StudyResult:
    """The same runs at a later look."""
    looks = tuple(Look("2026-01-01T00:00:00+00:00", count, 2, share, ("a < b",)) for count in runs)
    return judged(dataclasses.replace(result, share=share, looks=looks, planned_runs=planned))


def test_a_look_multiplies_p_values_and_widens_intervals() -> None:
    once = two(1.0, 1.7)
    again = at(once, 0.2, (3, 5))
    assert again.level == pytest.approx(0.99)
    before, after = once.differences[0], again.differences[0]
    assert before.p_holm is not None and after.p_holm == pytest.approx(5 * before.p_holm)
    assert 0.01 < before.p_holm < 0.05 and not before.tied and after.tied, "the case lies between the two levels"
    bits = [[each.bits_per_byte for each in model.finished] for model in once.entries]
    low, high = stats.ttest_ind(*bits, equal_var=False).confidence_interval(0.99)
    assert (after.over_seeds.low, after.over_seeds.high) == pytest.approx((low, high), rel=1e-6)
    assert again.tied_sets == (("a", "b"),) and once.tied_sets == (("a",), ("b",))
    assert disagreement(again) is None, "all of it follows from the result alone"


def test_a_study_that_is_run_once_says_nothing_of_looks() -> None:
    once = two(1.0, 1.7)
    assert looked(once) is None
    counted = dataclasses.replace(once, looks=(Look("", 4, 2, 1.0),))
    assert judged(counted) == counted and looked(counted) is None


def test_what_looks_cost_is_told() -> None:
    said = looked(at(two(1.0, 1.7), 0.2, (3, 5)))
    wider = stats.t.ppf(0.995, 6) / stats.t.ppf(0.975, 6)
    assert said is not None and said.startswith(
        "Look 2 at this study (at 3 and 5 runs of each model) is judged at a level of 1 % of the study's 5 %: p-values "
        f"are multiplied by 5 for it, and intervals, at 99 %, are {wider:.2g} times as wide as with a single look. A "
        "single look at the same runs would tell 1 more of 1 pairs apart.")
    assert "together they tell equal models apart in at most 5 % of such studies" in said
    assert said.endswith("Told apart before (better < worse): at 3 runs of 2 models a < b.")
    unplanned = at(two(1.0, 9.0), 0.2, (3, 5), planned=None)
    looks = tuple(dataclasses.replace(each, share=share) for each, share in
                  zip(unplanned.looks, (1.0, 0.2), strict=True))
    said = looked(dataclasses.replace(unplanned, looks=looks))
    assert said is not None and "A single look at the same runs would tell no more pairs apart." in said
    assert "Growing so was not planned, and all looks together tell equal models apart in up to 6 % of" in said


def test_the_page_tells_it() -> None:
    page = render(at(plain_study(3), 0.2, (3, 5)))
    assert "is judged at a level of 1 %" in page and f"99{THIN}% interval" in page and f"95{THIN}%" not in page


def test_nothing_is_told_apart_before_all_runs_are_done() -> None:
    whole = two(1.0, 9.0)
    assert not whole.differences[0].tied
    runs = whole.entries[0].runs
    last = dataclasses.replace(runs[-1], status="pending", bits_per_byte=None, loss=None, document_nats=(), curve=())
    entries = (dataclasses.replace(whole.entries[0], runs=(*runs[:-1], last)), whole.entries[1])
    partial = judged(dataclasses.replace(whole, entries=entries))
    assert partial.differences[0].tied and partial.differences[0].p_holm is None
    assert partial.differences[0].p_value is not None and partial.differences[0].p_value < 0.001
    said = looked(partial)
    assert said is not None and said.startswith("Nothing is told apart yet: 7 of 8 runs are done")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


TWO = {"lstm": {"config": LSTM}, "ngram": {"config": NGRAM}}


def test_looks_are_counted_in_the_folder_and_showing_a_study_again_is_none(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "study"
    first = run(study_of(text, TWO, seeds=2, planned_runs=4), out)
    assert [(look.runs, look.models, look.share) for look in first.looks] == [(2, 2, 0.5)] and first.share == 0.5
    before = (out / "result.json").read_text()
    rerender(out)
    assert (out / "result.json").read_text() == before
    assert run(study_of(text, TWO, seeds=2, planned_runs=4), out).looks == first.looks
    (out / "result.json").unlink()
    grown = run(study_of(text, TWO, seeds=3, planned_runs=4), out)
    assert [look.share for look in grown.looks] == [0.5, 0.25] and grown.share == 0.25
    assert read_result(out) == grown and grown.looks[0] == first.looks[0]
    with pytest.raises(ConfigError, match="holds another study"):
        run(study_of(text, TWO, seeds=4, planned_runs=9), out)


def test_a_study_that_stops_while_it_grows_tells_of_the_looks_before(text: Path, tmp_path: Path) -> None:
    def stop(progress: StudyProgress) -> None:
        if progress.what == "lstm, run 3 of 3":
            raise KeyboardInterrupt

    out = tmp_path / "study"
    first = run(study_of(text, TWO, seeds=2), out)
    with pytest.raises(KeyboardInterrupt):
        run(study_of(text, TWO, seeds=3), out, stop)
    partial = read_result(out)
    assert partial.looks == first.looks and all(pair.tied for pair in partial.differences)
    assert partial.share == pytest.approx(6 / np.pi**2 / 4), "that of the look to come"
    assert partial.detectable[0].difference is not None
    assert "as those runs show it that were made before the study grew" in partial.detectable_basis
    assert first.detectable[0].difference is None
    assert "Told apart before (better < worse): at 2 runs of 2 models" in str(looked(partial))


def test_a_result_of_an_older_format_is_written_again_before_the_budget_grows(text: Path, tmp_path: Path) -> None:
    out, longer = tmp_path / "study", study_of(text, TWO, length={"steps": 6})
    first = run(study_of(text, TWO), out)
    result = out / "result.json"
    result.write_text(json.dumps(json.loads(result.read_text()) | {"format": 2}))
    with pytest.raises(CheckpointError, match="study format 2") as refused:
        run(longer, out)
    assert "once without the longer budget: finished runs are read back" in str(refused.value)
    lines: list[StudyProgress] = []
    assert run(study_of(text, TWO), out, lines.append).differences == first.differences
    assert not any(line.text == "begun" for line in lines), "every piece is read back"
    assert [each.bits_per_byte for each in run(longer, out).additions[0].figures] == [
        entry.bits_per_byte for entry in first.entries]
