"""The tables of ``weft compare`` in a terminal of 80 columns."""

from __future__ import annotations

import dataclasses
import re

import pytest

from comparison.report.fixture import bare, identical, study, unfinished
from weft.cli.compare_table import print_study
from weft.comparison.results import Matched, StudyResult


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
        low, high = sorted((abs(pair.over_seeds.low or 0.0), abs(pair.over_seeds.high or 0.0)))
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
