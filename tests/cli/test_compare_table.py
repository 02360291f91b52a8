"""The tables of ``weft compare`` in a terminal of 80 columns."""

from __future__ import annotations

import dataclasses
import re

import pytest

from comparison.report.fixture import bare, identical, study, unfinished
from weft.cli.compare_table import print_study
from weft.comparison.study_result import Matched, StudyResult


def shown(result: StudyResult, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("weft.cli.compare_table.PIPE_WIDTH", 80)
    print_study(result)
    return capsys.readouterr().out


def test_a_study_fits_into_80_columns_and_no_figure_is_cut(capsys: pytest.CaptureFixture[str],
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    for result in (study(), unfinished(study()), bare(study()), identical(study())):
        text = shown(result, capsys, monkeypatch)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_differences_name_the_better_model_first_and_are_above_zero(capsys: pytest.CaptureFixture[str],
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    result = study()
    text = shown(result, capsys, monkeypatch)
    bits = {entry.name: entry.bits_per_byte or 0.0 for entry in result.entries}
    told = [pair for pair in result.differences if not pair.tied]
    assert told, "the case has some"
    for pair in told:
        better, worse = sorted((pair.first, pair.second), key=bits.__getitem__)
        low, high = sorted((abs(pair.over_both.low or 0.0), abs(pair.over_both.high or 0.0)))
        row = rf"{re.escape(better)} +{re.escape(worse)} +{abs(pair.over_seeds.mean):.4f} +{low:.4f} to {high:.4f} "
        assert re.search(row, text), row
    assert text.index("Told apart: how much better") < text.index("Not told apart: second minus first")


def test_what_was_missed_and_what_was_counted_say_so(capsys: pytest.CaptureFixture[str],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    result = study()
    matched = (Matched("training seconds", True, 0.59), Matched("training tokens", True, 0.0))
    text = shown(dataclasses.replace(result, budget=dataclasses.replace(result.budget, matched=matched)), capsys,
                 monkeypatch)
    assert re.search(r"^training seconds +aimed at, missed by 59% +1\.590$", text, re.MULTILINE)
    assert re.search(r"^training tokens +yes +1\.000$", text, re.MULTILINE)
    assert "(what is counted is not learned)" in text
    assert re.search(r"^kneser-ney-5 +107 k counted +\S+ B", text, re.MULTILINE)


def test_ratios_read_well_however_large(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    result = study()
    matched = tuple(Matched(name, False, spread) for name, spread in (("a", 0.008), ("b", 40.24), ("c", 1023.444)))
    text = shown(dataclasses.replace(result, budget=dataclasses.replace(result.budget, matched=matched)), capsys,
                 monkeypatch)
    assert re.findall(r"^[abc] +no +(\S+)$", text, re.MULTILINE) == ["1.008", "41.2", "1,024"]


def test_what_can_be_detected_stands_before_the_figures(capsys: pytest.CaptureFixture[str],
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(study(test="paired"), capsys, monkeypatch)
    assert text.index("Detectable difference, with the t test of runs paired by their number") < text.index(
        "Bits per byte (two models share a letter exactly where they are not told apart)")
    # Two degrees of freedom and fifteen pairs.
    assert re.search(r"^3 \(this study\) +17\.28 +0\.\d{4} +0\.\d{4}$", text, re.MULTILINE)
    assert re.search(r"^5 +6\.25 +0\.\d{4} +0\.\d{4}$", text, re.MULTILINE)
    welch, single = shown(study(), capsys, monkeypatch), shown(study(seeds=1), capsys, monkeypatch)
    assert re.search(r"^3 \(this study\) +6\.25 to 17\.28 +0\.\d{4} +0\.\d{4}$", welch, re.MULTILINE)
    assert re.search(r"^1 \(this study\) +not known *$", single, re.MULTILINE)


def test_every_rate_is_shown_and_an_edge_is_flagged_and_explained(capsys: pytest.CaptureFixture[str],
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(study(), capsys, monkeypatch)
    assert re.search(r"^s4d .* 0\.001, 0\.003  decoder", text, re.MULTILINE)
    assert re.search(r"^lstm .* 0\.003!  decoder", text, re.MULTILINE)
    assert "! behind a learning rate: the best was the lowest or highest" in text
    assert "!" not in shown(study(2), capsys, monkeypatch)


def test_the_order_of_all_models_and_of_every_pair_is_shown(capsys: pytest.CaptureFixture[str],
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(study(), capsys, monkeypatch)
    assert re.search(r"^10% to 40% +s4d, lstm, transformer, convolution, feed-forward$", text, re.MULTILINE)
    assert re.search(r"^90% to 100% +transformer, s4d, lstm, convolution, feed-forward$", text, re.MULTILINE)
    assert re.search(r"^transformer +lstm +changes between 40% and 50% *$", text, re.MULTILINE)
    assert re.search(r"^convolution +feed-forward +holds from 10% on *$", text, re.MULTILINE)
    courses = text[text.index("Order of every pair during training"):text.index("What was matched")]
    assert len(re.findall(r"^\S+ +\S+ +(?:holds|changes|means cross) ", courses, re.MULTILINE)) == 10


def test_what_the_intervals_rest_on_is_said(capsys: pytest.CaptureFixture[str],
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.sub(r"\s+", " ", shown(study(), capsys, monkeypatch))
    for said in ("From run to run of a model vary the initial weights", "Runs of the same number correlate by",
                 "Runs weigh more in", "Runs chose different learning rates in s4d"):
        assert said in text


def test_many_sets_have_letters_that_can_be_told_apart(capsys: pytest.CaptureFixture[str],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    sets = (*((f"other{place}",) for place in range(25)), ("transformer", "s4d"), ("transformer",))
    text = shown(dataclasses.replace(study(2), tied_sets=sets), capsys, monkeypatch)
    assert re.search(r"^transformer +1\.5112 +0\.\d+ +z aa ", text, re.MULTILINE)
