"""A study's folder: whose it is, wherever it lies, and which code made its pieces."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from comparison.studies import ATTENTION, LSTM, NGRAM, run, study_of, write_text
from weft.comparison import work
from weft.comparison.folder import rerender
from weft.comparison.jobs import Job, Outcome
from weft.comparison.progress import StudyProgress
from weft.comparison.study import StudyConfig
from weft.comparison.study_result import StudyResult
from weft.core.errors import ConfigError, DataError, FailedError, OccupiedError, TokenizerError, UnsupportedError


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyConfig:
    text = write_text(tmp_path_factory.mktemp("study"))
    return study_of(text, {"a": {"config": ATTENTION}, "b": {"config": LSTM}}, length={"steps": 2})


@pytest.fixture(scope="module")
def finished(study: StudyConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyResult]:
    folder = tmp_path_factory.mktemp("finished") / "study"
    return folder, run(study, folder)


@pytest.fixture
def copy(finished: tuple[Path, StudyResult], tmp_path: Path) -> Path:
    """A finished study, moved elsewhere."""
    return Path(shutil.copytree(finished[0], tmp_path / "moved"))


def told(study: StudyConfig, folder: Path) -> tuple[list[StudyProgress], StudyResult]:
    lines: list[StudyProgress] = []
    result = run(study, folder, lines.append)
    return lines, result


def begun(lines: list[StudyProgress]) -> list[str]:
    return [line.what for line in lines if line.text == "begun"]


def test_a_study_does_not_depend_on_where_its_folder_lies(
        study: StudyConfig, finished: tuple[Path, StudyResult], copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, moved = told(study, copy)
    assert begun(lines) == [], "every piece is read back"
    monkeypatch.chdir(copy.parent)
    lines, relative = told(study, Path("moved"))
    assert begun(lines) == []
    for result in (moved, relative):
        assert [entry.config_sha256 for entry in result.entries] == [
            entry.config_sha256 for entry in finished[1].entries]
    assert len({entry.config_sha256 for entry in moved.entries}) == 2
    assert moved.entries[0].config == finished[1].entries[0].config, "the text is named from the study's folder on"
    assert "path: data/tokens" in moved.entries[0].config and str(copy) not in str(moved.to_json()["entries"])


def test_an_interrupted_run_that_was_moved_is_begun_anew(study: StudyConfig, copy: Path) -> None:
    """It knows its text by where that was; its figures are those of the study that stayed."""
    place = copy / "runs/a/0"
    before = json.loads((place / "result.json").read_text())
    (place / "result.json").unlink()
    lines, result = told(study, copy)
    assert begun(lines) == ["a, run 1 of 1"] and result.entries[0].runs[0].status == "finished"
    assert json.loads((place / "result.json").read_text())["cluster_nats"] == before["cluster_nats"]


def test_counting_that_was_interrupted_is_done_again(tmp_path: Path) -> None:
    """Its checkpoint may stand by then, and is replaced."""
    counted = study_of(write_text(tmp_path), {"a": {"config": LSTM}, "n": {"config": NGRAM}}, length={"steps": 2})
    run(counted, tmp_path / "out")
    (tmp_path / "out/runs/n/0/result.json").unlink()
    lines, result = told(counted, tmp_path / "out")
    assert begun(lines) == ["n, run 1 of 1"]
    assert [entry.runs[0].status for entry in result.entries] == ["finished", "finished"]


def test_no_time_left_is_worked_out_from_counting(tmp_path: Path) -> None:
    """A token that is counted costs no operations, and takes no time beside one that is trained on."""
    counted = study_of(write_text(tmp_path), {"n": {"config": NGRAM}, "a": {"config": LSTM}}, length={"steps": 2})
    lines, result = told(counted, tmp_path / "out")
    first = next(index for index, line in enumerate(lines) if line.text.startswith("step"))
    assert {line.seconds_left for line in lines[:first]} == {None} and lines[first].seconds_left is not None
    assert result.notes[0] == "No learning rate was tried for any model; a study that tunes tries at least 3."


def test_pieces_that_other_code_made_are_named_and_done_again(study: StudyConfig, copy: Path) -> None:
    place = copy / "runs/a/0"
    job = json.loads((place / "job.json").read_text())
    outcome = json.loads((place / "result.json").read_text())
    assert {"weft/mixers/attention.py", "comparison/measures.py"} <= {*job["code"]} | {
        name.removeprefix("weft/") for name in job["code"]}
    assert not [name for name in job["code"] if name.startswith(("weft/cli/", "weft/comparison/report/"))]
    code = {**job["code"], "weft/mixers/attention.py": "0" * 16}
    (place / "job.json").write_text(json.dumps({**job, "key": "another", "code": code}))
    (place / "result.json").write_text(json.dumps({**outcome, "key": "another"}))
    lines, _ = told(study, copy)
    assert begun(lines) == ["a, run 1 of 1"]
    assert [line.text for line in lines if "other code" in line.text] == [
        "was made by other code (Weft's own code has changed: weft/mixers/attention.py), so it is done again"]
    assert json.loads((place / "result.json").read_text())["key"] == job["key"]
    assert begun(told(study, copy)[0]) == []


def test_a_piece_is_not_done_over_what_is_not_its_own(study: StudyConfig, copy: Path) -> None:
    place = copy / "runs/b/0"
    (place / "notes.txt").write_text("mine")
    assert begun(told(study, copy)[0]) == [], "it is in nobody's way"
    (place / "result.json").unlink()
    job = json.loads((place / "job.json").read_text())
    (place / "job.json").write_text(json.dumps({**job, "key": "another"}))
    with pytest.raises(OccupiedError, match=r"runs/b/0: the folder of a piece of work holds what none has written: "
                                            r"notes\.txt\. Move it away, and the study does this piece"):
        run(study, copy)
    assert (place / "notes.txt").read_text() == "mine" and (place / "run").is_dir()
    (place / "notes.txt").unlink()
    for name in ("job.json", "curve.jsonl"):
        (place / name).unlink(missing_ok=True)
    with pytest.raises(OccupiedError, match=r"holds what none has written: memory\.txt, run\. Move it away"):
        run(study, copy)
    shutil.rmtree(place)
    place.symlink_to(copy / "data")
    with pytest.raises(OccupiedError, match="holds what none has written: 0"):
        run(study, copy)
    assert (copy / "data/test").is_dir()


@pytest.mark.parametrize("name", ["study.yaml", "settled.json", "result.json", "report.html", "configs", "data", "pace",
                                  "trials", "runs"])
def test_a_folder_with_what_a_study_would_write_is_refused(study: StudyConfig, tmp_path: Path, name: str) -> None:
    for link in (False, True):
        folder = tmp_path / f"out-{link}"
        folder.mkdir()
        if link:
            (folder / name).symlink_to("nowhere")
        else:
            (folder / name).mkdir()
            (folder / name / "mine.txt").write_text("mine")
        message = (rf"{folder.name} holds {name}, which a study would write, and no study\.json beside "
                   r"it\. Choose another folder, or move them away")
        with pytest.raises(ConfigError, match=message):
            run(study, folder)
        assert [path.name for path in folder.iterdir()] == [name]


def test_a_folder_with_files_of_others_is_refused_until_a_study_is_there(study: StudyConfig, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for name in ("configs", ".study.yaml.1.draft/weft-draft"):  # as a study that was killed at once leaves it
        (folder / name).mkdir(parents=True)
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"out holds mine\.txt, and no study\. Choose a new folder, such as "
                                          r".*/out/study, or an empty one"):
        run(study, folder)
    assert sorted(path.name for path in folder.iterdir()) == [".study.yaml.1.draft", "configs", "mine.txt"]
    (folder / "mine.txt").unlink()
    run(study, folder)
    (folder / "mine.txt").write_text("mine")
    run(study, folder)
    assert (folder / "mine.txt").read_text() == "mine", "what lies beside a study later is left alone"


def test_the_statement_is_completed_where_a_kill_came_before_it(study: StudyConfig, copy: Path) -> None:
    text = (copy / "study.yaml").read_text()
    (copy / "study.yaml").unlink()
    run(study, copy)
    assert (copy / "study.yaml").read_text() == text


def test_a_report_is_replaced_where_it_is_as_weft_wrote_it(copy: Path, tmp_path: Path) -> None:
    page = (copy / "report.html").read_text()
    (copy / "report.html").write_text("an earlier version's")
    rerender(copy)  # study.json says that the folder is a study's
    assert (copy / "report.html").read_text() == page
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(copy / "result.json", alone)
    assert rerender(alone).read_text() == page
    rerender(alone)
    for content in (page.replace("study", "STUDY", 1), "my page", f"{page}<p>mine</p>", page[:-40]):
        (alone / "report.html").write_text(content)
        with pytest.raises(OccupiedError, match=r"report\.html: there is a file at this path already, and nothing"):
            rerender(alone)
        assert (alone / "report.html").read_text() == content
    (alone / "report.html").unlink()
    os.symlink(copy / "report.html", alone / "report.html")
    with pytest.raises(OccupiedError, match="a symbolic link"):
        rerender(alone)


def test_a_study_that_cannot_begin_leaves_room_for_the_corrected_one(study: StudyConfig, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    large = study.model_copy(update={"tokenizer": {"kind": "bpe", "vocab_size": 100_000}})
    with pytest.raises(TokenizerError, match="vocab_size"):
        run(large, folder)
    assert not folder.exists()
    assert len(run(study, folder).entries) == 2


def test_a_study_whose_pace_cannot_be_measured_leaves_room_for_the_corrected_one(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, folder = write_text(tmp_path), tmp_path / "out"
    models = {"a": {"config": ATTENTION}, "b": {"config": LSTM}}

    def full_disk(job: Job) -> Outcome:
        raise OSError("why")

    wrong, right = (study_of(text, models, length={"seconds": seconds}) for seconds in (0.05, 0.06))
    with monkeypatch.context() as patch:
        patch.setattr(work, "_pace", lambda job: Outcome("failed" if job.name == "b" else "finished", "why", steps=2))
        with pytest.raises(UnsupportedError, match=r"b: its pace cannot be measured: why Correct its configuration"):
            run(wrong, folder)
        assert not folder.exists()
        # An interruption is no fault of the settings, with which the study goes on.
        patch.setattr(work, "_pace", full_disk)
        with pytest.raises(FailedError, match=r"a: its pace cannot be measured: why Give the same command again"):
            run(right, folder)
        with pytest.raises(ConfigError, match="holds another study"):
            run(wrong, folder)
        patch.setattr(work, "_pace", lambda job: Outcome("finished", steps=2))
        assert len(run(right, folder).entries) == 2


def test_a_study_that_has_begun_before_keeps_what_stands_there(study: StudyConfig, copy: Path) -> None:
    text = Path(str((study.data or {})["path"]))
    before, stands = text.read_text(), sorted(copy.rglob("*"))
    text.write_text(before + "more\n" * 50)
    try:
        with pytest.raises(DataError, match="the text has changed since the study"):
            run(study, copy)
    finally:
        text.write_text(before)
    assert sorted(copy.rglob("*")) == stands
