"""Studies that grow keep every run that still counts, and say what was added when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comparison.studies import ATTENTION, LSTM, NGRAM, run, study_of, write_text
from weft.comparison.assemble import commit, determinism, elsewhere
from weft.comparison.folder import read_result, rerender
from weft.comparison.growth import growth
from weft.comparison.progress import StudyProgress
from weft.core.errors import ConfigError


def plain(**changes: Any) -> dict[str, Any]:
    study = {"name": "s", "seeds": [{"seed": 0}], "budget": None, "length": {"steps": 4}, "test": "welch", **changes}
    return {"study": study, "runs": {"a": {"model": 1, "training": {"steps": 4, "lr": 2}}}}


def test_what_is_more_is_growth() -> None:
    before, more = plain(), plain(seeds=[{"seed": 0}, {"seed": 1}, {"seed": 2}])
    more["runs"]["b"] = {"model": 2, "training": {"steps": 4}}
    assert growth(before, more) == ["the model b", "runs 2, 3 of each model"]
    longer = plain(length={"steps": 8})
    longer["runs"]["a"] = {"model": 1, "training": {"steps": 8, "lr": 2}}
    assert growth(before, longer) == ["a longer budget, 8 steps instead of 4"]
    tokens = [plain(length=None, budget={"kind": "tokens", "amount": amount, "tolerance": 0.02}) for amount in (4, 9)]
    assert growth(*tokens) == ["a longer budget, 9 tokens instead of 4"]


@pytest.mark.parametrize("changes", [
    {"test": "paired"}, {"seeds": [{"seed": 7}]}, {"seeds": []}, {"length": {"steps": 2}}, {"length": {"tokens": 9}},
    {"budget": {"kind": "parameters", "amount": 9}}])
def test_what_is_other_or_less_is_another_study(changes: dict[str, Any]) -> None:
    assert growth(plain(), plain(**changes)) is None


def test_a_larger_model_is_another_study() -> None:
    sizes = [plain(budget={"kind": "parameters", "amount": amount}) for amount in (5, 9)]
    assert growth(*sizes) is None


def test_a_model_that_changed_or_is_gone_is_another_study() -> None:
    other = plain(seeds=[{"seed": 0}, {"seed": 1}])
    other["runs"]["a"]["training"]["lr"] = 3
    gone = plain(seeds=[{"seed": 0}, {"seed": 1}])
    gone["runs"] = {"b": gone["runs"]["a"]}
    assert growth(plain(), other) is growth(plain(), gone) is None


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


def begun(lines: list[StudyProgress]) -> list[str]:
    return [line.what for line in lines if line.text == "begun"]


def test_a_finished_study_takes_another_model_more_seeds_and_a_longer_budget(text: Path, tmp_path: Path) -> None:
    out, two = tmp_path / "study", {"lstm": {"config": LSTM}, "ngram": {"config": NGRAM}}
    first = run(study_of(text, two), out)
    assert first.additions == () and first.machine.determinism.startswith("bit for bit")
    three = {**two, "attention": {"config": ATTENTION}}
    lines: list[StudyProgress] = []
    grown = run(study_of(text, three, seeds=2), out, lines.append)
    assert begun(lines) == ["attention, run 1 of 2", "lstm, run 2 of 2", "ngram, run 2 of 2", "attention, run 2 of 2"]
    assert grown.entries[0].runs[0].bits_per_byte == first.entries[0].runs[0].bits_per_byte
    assert [each.what for each in grown.additions] == ["the model attention; run 2 of each model"]
    lines = []
    longer = run(study_of(text, three, seeds=2, length={"steps": 6}), out, lines.append)
    assert set(begun(lines)) >= {"lstm, run 1 of 2", "attention, run 2 of 2"}
    assert [each.what for each in longer.additions][1:] == ["a longer budget, 6 steps instead of 4"]
    assert {each.name: each.bits_per_byte for each in longer.additions[1].figures} == {
        entry.name: entry.bits_per_byte for entry in grown.entries}
    assert read_result(out).additions == longer.additions
    assert any(note.startswith("Added on ") and "the model attention" in note for note in longer.notes)
    page = rerender(out).read_text()
    assert "What was added" in page and "a longer budget, 6 steps instead of 4" in page
    with pytest.raises(ConfigError, match=r"holds another study\. It has grown since it began: the model attention"):
        run(study_of(text, two), out)


def test_a_fourth_model_says_that_it_brings_more_runs_before_anything_is_made(text: Path, tmp_path: Path) -> None:
    """Three models have three runs each by default and four have five: a study that grows past that says so first."""
    counted = {name: {"config": NGRAM} for name in "abc"}
    out, lines = tmp_path / "study", list[StudyProgress]()
    found = run(study_of(text, counted, seeds=None), out, lines.append)
    assert found.seeds == 3 and not any(line.what == "runs" for line in lines)
    lines.clear()
    found = run(study_of(text, {**counted, "d": {"config": NGRAM}}, seeds=None), out, lines.append)
    first = lines[0]
    assert (found.seeds, first.what, first.lasting) == (5, "runs", True)
    assert first.text == (
        "the study in this folder has 3 of each of 3 models. With 4 it gets 5 of each, the default from four models "
        "on, whose many pairs take more runs to tell apart: 2 more of every model that it has are made, too. "
        "--seeds 3 leaves it at 3.")
    assert any("5 runs of every model (the default from four models on" in line for line in found.protocol)
    lines.clear()
    run(study_of(text, {**counted, "d": {"config": NGRAM}}, seeds=None), out, lines.append)
    assert not any(line.what == "runs" for line in lines), "nothing is new"


def test_four_models_say_how_many_runs_they_have_by_default(text: Path, tmp_path: Path) -> None:
    four, lines = {name: {"config": NGRAM} for name in "abcd"}, list[StudyProgress]()
    run(study_of(text, four, seeds=None), tmp_path / "five", lines.append)
    assert lines[0].line().endswith("runs: 5 of each of 4 models, the default from four models on, whose many pairs "
                                    "take more runs to tell apart. --seeds N makes N.")
    lines.clear()
    found = run(study_of(text, four, seeds=2), tmp_path / "two", lines.append)
    assert found.seeds == 2 and not any(line.what == "runs" for line in lines)
    assert "2 runs of every model; " in " ".join(found.protocol)


def test_commands_lose_the_paths_of_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = f"weft compare a --out {tmp_path}/runs/x --data /far/my.txt data.path=/far/other.txt --seeds 3"
    assert elsewhere(said) == "weft compare a --out runs/x --data my.txt data.path=other.txt --seeds 3"
    assert elsewhere("") == ""


def test_where_code_comes_from(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("")
    assert commit(tmp_path / "file.py") == "", "no checkout"
    assert determinism([], "cpu").startswith("bit for bit, on the same processor")
