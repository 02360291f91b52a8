"""Studies over budgets: known laws and turns are found as often as is said, equal models never turn, and a ladder that
was stopped goes on to the same result."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import call
from comparison.report.fixture import SHAPES, Shape, study
from comparison.studies import ATTENTION, NGRAM, study_of, write_text
from weft.api import config_path
from weft.comparison import ladder_findings
from weft.comparison.jobs import Options
from weft.comparison.ladder import LADDER, PAGE, run_ladder, together
from weft.comparison.ladder_findings import LadderResult, Runs, crossings, law_of, misfit, said_of, speed_ups, turns
from weft.comparison.progress import StudyProgress
from weft.comparison.report.ladder_page import choice_said, laws_said, render_ladder, savings_said, turns_said
from weft.comparison.rungs import Rungs, at_budget, parse_rungs
from weft.comparison.study_result import StudyResult
from weft.core.errors import CheckpointError, ConfigError, InputError

BUDGETS = tuple(float(each) for each in np.geomspace(1e5, 1e7, 5))


def law(floor: float, scale: float, exponent: float) -> list[float]:
    return [floor + scale * (budget / BUDGETS[-1]) ** -exponent for budget in BUDGETS]


def runs(means: list[float], count: int, seed: int, deviation: float = 0.02) -> Runs:
    generator = np.random.default_rng(seed)
    return [list(mean + deviation * generator.standard_normal(count)) for mean in means]


STEEP, FLAT = law(1.5, 0.6, 0.3), law(1.9, 0.25, 0.38)
"""Of which the second is better up to six million tokens."""


@pytest.fixture(autouse=True, scope="module")
def _fewer_draws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ladder_findings, "DRAWS", 400)
        yield


def test_a_law_without_noise_is_found() -> None:
    found = law_of(BUDGETS, runs(STEEP, 3, 0, 1e-9), 0.95)
    assert found.floor is not None and found.scale is not None and found.exponent is not None, found.refused
    # The exponents that are tried lie 3 % apart.
    assert found.exponent.mean == pytest.approx(0.3, rel=0.02)
    assert found.floor.mean == pytest.approx(1.5, abs=0.03) and found.scale.mean == pytest.approx(0.6, abs=0.03)
    said = said_of(BUDGETS, runs(STEEP, 3, 0, 1e-9)[:-1], 0.95)
    assert said is not None and said.mean == pytest.approx(STEEP[-1], abs=0.01)


def test_intervals_contain_what_is_true_as_often_as_they_say() -> None:
    """At 0.95, of 60 studies: less than 52 would be so in one of a thousand trials of exact intervals."""
    covered = dict.fromkeys(("floor", "exponent", "said", "turn", "factor"), 0)
    ((place, _),) = turns(np.log(BUDGETS), np.array(STEEP) - np.array(FLAT))
    wanted = math.exp(np.log(BUDGETS[-1]) - ladder_findings._reaching(np.log(BUDGETS), np.array(STEEP), FLAT[-1]))
    for seed in range(60):
        steep, flat = runs(STEEP, 5, seed), runs(FLAT, 5, 1000 + seed)
        found = law_of(BUDGETS, steep, 0.95)
        said = said_of(BUDGETS, steep[:-1], 0.95)
        for name, each, true in (("floor", found.floor, 1.5), ("exponent", found.exponent, 0.3),
                                 ("said", said, STEEP[-1])):
            covered[name] += each is not None and each.low <= true <= each.high
        covered["turn"] += any((each.low or 0) <= math.exp(place) <= (each.high or math.inf)
                               for each in crossings(BUDGETS, {"steep": steep, "flat": flat}, 0.95))
        ((_, _, _, low, high, _),) = [dataclasses.astuple(each) for each in speed_ups(
            BUDGETS, {"steep": steep, "flat": flat}, 0.95)]
        covered["factor"] += low <= wanted * 1.001 and wanted <= high * 1.001
    assert all(count >= 52 for count in covered.values()), covered


def test_equal_models_are_not_told_to_turn() -> None:
    told = sum(any(each.told for each in crossings(BUDGETS, {
        "one": runs(STEEP, 5, seed), "two": runs(STEEP, 5, 500 + seed)}, 0.95)) for seed in range(60))
    assert told <= 6, "at most 5 %, and 7 of 60 would be so in one of forty trials"


def test_a_clear_turn_is_told_with_its_models_in_order() -> None:
    (found,) = crossings(BUDGETS, {"steep": runs(STEEP, 5, 1, 0.005), "flat": runs(FLAT, 5, 2, 0.005)}, 0.95)
    assert found.told and (found.before, found.after) == ("flat", "steep")
    assert found.low is not None and found.high is not None and found.low < found.budget < found.high
    assert 4e6 < found.budget < 8e6


def test_what_is_no_law_is_refused_with_its_reason() -> None:
    bent = [3.9, 3.1, 3.05, 2.2, 2.15]
    assert misfit(np.array(BUDGETS) / BUDGETS[-1], runs(bent, 3, 0, 0.002)) < ladder_findings.WRONG
    assert "further from the law than runs lie apart" in law_of(BUDGETS, runs(bent, 3, 0, 0.002), 0.95).refused
    assert "needs 5 budgets" in law_of(BUDGETS[1:], runs(STEEP[1:], 3, 0), 0.95).refused
    assert "a single run" in law_of(BUDGETS, runs(STEEP, 1, 0), 0.95).refused
    assert said_of(BUDGETS, runs(STEEP[:3], 3, 0), 0.95) is None


def test_a_line_turns_where_its_sign_changes_and_zeros_are_no_turn() -> None:
    x = np.arange(5.0)
    assert turns(x, np.array([-1.0, -1, 1, 1, -3])) == [(1.5, 1), (3.25, -1)]
    assert turns(x, np.array([-1.0, 0, -1, -1, -1])) == []
    assert turns(x, np.array([0.0, 0, 0, 0, 0])) == []
    assert turns(x, np.array([-1.0, 0, 1, 1, 1])) == [(1.0, 1)]


@pytest.mark.parametrize(("given", "amounts"), [
    ("tokens=1e5:1e7:5", (1e5, 316000, 1e6, 3160000, 1e7)), ("flops=1e12,2e12", (1e12, 2e12)),
    ({"tokens": [1e3, 2e3, 4e3]}, (1e3, 2e3, 4e3)), ({"parameters": "1e5:1e6:2"}, (1e5, 1e6)),
    ("tokens=100_000,200_000", (1e5, 2e5))])
def test_budgets_are_read(given: str | Mapping[str, Any], amounts: tuple[float, ...]) -> None:
    assert parse_rungs(given).amounts == amounts


@pytest.mark.parametrize("given", [
    "tokens", "tokens=", "tokens=1e5", "tokens=2e5,1e5", "tokens=1e5,1e5", "bytes=1,2", "tokens=1e5:1e7",
    "tokens=1:2:1", "tokens=1:2:51", "tokens=1:2:2.5", "tokens=-1,2", "tokens=1,inf", "tokens=a,b", {},
    {"tokens": [1], "flops": [1]}, {"tokens": 5}])
def test_budgets_that_are_none_are_refused(given: str | Mapping[str, Any]) -> None:
    with pytest.raises(InputError, match=r"ladder: .*Give KIND=FIRST:LAST:COUNT"):
        parse_rungs(given)


def test_a_budget_stands_where_the_study_leaves_it_open() -> None:
    size = {"budget": {"kind": "parameters", "amount": 1e5}, "length": {"tokens": 5}}
    assert at_budget("tokens", 7.0, size, {}) == {"length": {"tokens": 7.0}}
    assert at_budget("parameters", 7.0, size, {}) == {"budget": {"kind": "parameters", "amount": 7.0}}
    assert at_budget("tokens", 7.0, {"length": {"steps": 5}}, {"seeds": 2}) == {
        "seeds": 2, "budget": {"kind": "tokens", "amount": 7.0}, "length": None}
    with pytest.raises(InputError, match="the length of the study beside a ladder that varies it"):
        at_budget("tokens", 7.0, size, {"length": {"tokens": 5}})
    with pytest.raises(InputError, match="the budget of the study beside a ladder"):
        at_budget("tokens", 7.0, {}, {"budget": {"kind": "tokens", "amount": 5}})


def made_up(levels: dict[str, list[float]]) -> list[StudyResult]:
    known = {shape.name: shape for shape in SHAPES}
    return [study(len(levels), 5, tuple(dataclasses.replace(known.get(name, Shape(name, "", 0, 1e4, 1e6, 1, False)),
                                                            level=each[place]) for name, each in levels.items()))
            for place in range(len(BUDGETS))]


@pytest.fixture
def climbed() -> tuple[LadderResult, list[StudyResult]]:
    found = made_up({"transformer": law(1.5, 0.6, 0.5), "lstm": law(1.9, 0.3, 0.5), "kneser-ney-5": [2.8] * 5})
    known = {"started": "2026-11-28T12:00:00Z", "said_at": "now", "said": {"lstm": {
        "mean": 2.25, "low": 2.2, "high": 2.3}}}
    return together(Rungs("tokens", BUDGETS), found, known, ""), found


def test_the_page_and_the_terminal_say_what_was_found(climbed: tuple[LadderResult, list[StudyResult]]) -> None:
    result, found = climbed
    said = " ".join([*turns_said(result), choice_said(result), *savings_said(result), *laws_said(result)])
    assert "tokens on" in said and "predicts better than kneser-ney-5, which is better below." in said
    assert "kneser-ney-5 has no law: it is counted, and not trained." in said
    assert "smaller budgets lstm would have come to 2.250 (2.200 to 2.300) at 10.0\u202fM tokens; it came to" in said
    assert "budgets transformer would" not in said, "nothing was written down of it"
    page = render_ladder(result, found)
    assert "each model\u2019s learning rate is tried anew" in page.replace("'", "\u2019").replace("&#x27;", "\u2019")
    assert page.count('class="series') == 3 and page.count('class="turn"') == sum(
        each.told for each in result.crossings) > 0
    assert all(f'href="{folder}/report.html"' in page for folder in result.folders)
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert LadderResult.from_json({name: value for name, value in json.loads(json.dumps(result.to_json())).items()
                                   if name != "format"}) == result


class StoppedError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LadderResult]:
    """A ladder's folder and its result."""
    out = tmp_path_factory.mktemp("ladder") / "whole"
    lines = list[str]()
    found = climb(text, out, lines)
    assert any("by the law of the others" in line for line in lines)
    return out, found


def climb(text: Path, out: Path, lines: list[str] | None = None, *, stop: str = "never",
          budgets: str = "tokens=64,96,128,160,192") -> LadderResult:
    """Run a ladder of tiny models; ``stop``: until a line has these words."""
    models = {"attention": {"config": ATTENTION}, "ngram": {"config": NGRAM}}

    def told(progress: StudyProgress) -> None:
        assert 0 <= progress.done <= 1
        if lines is not None:
            lines.append(progress.line())
        if stop in progress.line():
            raise StoppedError

    return run_ladder(parse_rungs(budgets), lambda amount: study_of(text, models, seeds=2, length={"tokens": amount}),
                      out, config_path, Options(threads=1, own_processes=False, command="weft compare test"), told)


def test_a_ladder_that_was_stopped_goes_on_to_the_same_result(text: Path, whole: tuple[Path, LadderResult],
                                                              tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        climb(text, tmp_path / "out", stop="128 tokens: attention, run 2")
    assert json.loads((tmp_path / "out" / LADDER).read_text())["complete"] is False
    went_on = climb(text, tmp_path / "out")
    for one, other in zip(went_on.curves, whole[1].curves, strict=True):
        assert (one.means, one.law) == (other.means, other.law)
    assert (went_on.crossings, went_on.speed_ups, went_on.best) == (
        whole[1].crossings, whole[1].speed_ups, whole[1].best)


def test_what_was_told_of_the_largest_budget_stays_and_nothing_is_told_of_one_that_was_run(
        text: Path, whole: tuple[Path, LadderResult], tmp_path: Path) -> None:
    out, found = whole
    kept, page = json.loads((out / LADDER).read_text()), (out / PAGE).read_text()
    assert found.said_at and found.curves[0].law.said is not None and "learning rate is that of its" in page
    assert kept["said"]["attention"]["mean"] == found.curves[0].law.said.mean
    assert climb(text, out).said_at == found.said_at and (out / PAGE).read_text() == page
    copied = Path(shutil.copytree(out, tmp_path / "copied"))
    fewer = climb(text, copied, budgets="tokens=64,96,128,160")
    assert fewer.said_at == "" and all(each.law.said is None for each in fewer.curves)


def test_a_folder_of_others_or_a_damaged_record_is_refused(text: Path, tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds notes\.txt, and no ladder"):
        climb(text, tmp_path / "mine")
    (tmp_path / "other" / LADDER).write_text("{}")
    with pytest.raises(CheckpointError, match="the file is no ladder's"):
        climb(text, tmp_path / "other")


def test_the_command_refuses_budgets_before_anything_is_written(tmp_path: Path) -> None:
    for given in ("tokens=5", "bytes=1,2"):
        told = call("compare", "lstm", "ngram", "--ladder", given, "--out", tmp_path / "out")
        assert told.code == 2 and "error: ladder:" in told.err and not (tmp_path / "out").exists()
