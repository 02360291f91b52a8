"""Whole studies that tune: every attempt with its own seeds, wider at the edge, and nothing done twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comparison.studies import ATTENTION, LSTM, NGRAM, run, study_of, write_text
from weft.comparison import work
from weft.comparison.jobs import Job, Outcome
from weft.comparison.progress import StudyProgress
from weft.comparison.results import StudyModel
from weft.comparison.study_result import StudyResult
from weft.core.errors import FailedError

MODELS: dict[str, Any] = {"a": {"config": LSTM}, "b": {"config": ATTENTION}, "ngram": {"config": NGRAM}}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


def told(study: Any, out: Path) -> tuple[StudyResult, list[StudyProgress]]:
    lines: list[StudyProgress] = []
    return run(study, out, lines.append), lines


def begun(lines: list[StudyProgress]) -> list[str]:
    return [each.what for each in lines if each.text == "begun"]


@pytest.fixture(scope="module")
def tuned(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResult, list[StudyProgress], Path]:
    out = tmp_path_factory.mktemp("tuned") / "out"
    study = study_of(text, MODELS, seeds=3, trials={"learning_rates": [0.001, 0.01], "share": 0.5, "widest": 1})
    return *told(study, out), out


def test_each_attempt_tries_the_rates_with_its_own_seeds_and_runs_the_best(
        tuned: tuple[StudyResult, list[StudyProgress], Path]) -> None:
    result, _, out = tuned
    for entry in result.entries[:2]:
        for each in entry.runs:
            assert each.trials and [trial.lr for trial in each.trials] == sorted(trial.lr for trial in each.trials)
            best = min(each.trials, key=lambda trial: trial.bits_per_byte or 0.0)
            assert each.lr == best.lr
            assert each.edge is (best in (each.trials[0], each.trials[-1]))
        figures = [tuple(trial.bits_per_byte for trial in each.trials) for each in entry.runs]
        assert len(set(figures)) == 3, "other seeds, other figures"
        assert entry.edge is any(each.edge for each in entry.runs)
        assert entry.rates == tuple(sorted({each.lr for each in entry.runs if each.lr is not None}))
    config = (out / "configs" / "a.yaml").read_text()
    assert f"lr: {result.entries[0].runs[0].lr:g}\n" in config and "seed: 0\n" in config


def test_all_models_try_as_many_rates(tuned: tuple[StudyResult, list[StudyProgress], Path]) -> None:
    """So few steps want a rate above 0.01, which widens the search for both."""
    first, second = tuned[0].entries[:2]
    for mine, other in zip(first.runs, second.runs, strict=True):
        assert [trial.lr for trial in mine.trials] == [trial.lr for trial in other.trials]
    assert any(len(each.trials) == 3 and each.trials[-1].lr == pytest.approx(0.1) for each in first.runs)


def test_what_can_be_detected_is_told_before_anything_is_done_and_without_a_figure_of_trials(
        tuned: tuple[StudyResult, list[StudyProgress], Path]) -> None:
    """Trials are shorter than runs, and their spread is no measure of that of runs."""
    result, lines, _ = tuned
    assert lines[0].what == "detectable difference"
    assert begun(lines)[0].startswith("a, attempt 1 of 3")
    assert [each.runs for each in result.detectable] == [3, 5, 10]
    assert [each.difference for each in result.detectable] == [None] * 3
    sizes = [each.spreads or 0.0 for each in result.detectable]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] > 0
    assert f"standard deviations by runs of each model: {sizes[0]:.2g} with 3 (this study), {sizes[1]:.2g} with 5" in (
        lines[0].text)
    assert "is not known before the runs" in result.detectable_basis


def test_a_stated_deviation_is_told_before_anything_is_done(text: Path, tmp_path: Path) -> None:
    study = study_of(text, MODELS, trials={"count": 2, "deviation": 0.02, "widest": 0}, seeds=2)
    _, lines = told(study, tmp_path / "out")
    assert lines[0].what == "detectable difference" and lines[0].line().startswith("  0%  time left not known yet")
    assert begun(lines)[0].startswith("a, attempt 1 of 2")


def test_trials_as_long_as_runs_are_the_runs(text: Path, tmp_path: Path) -> None:
    study = study_of(text, MODELS, trials={"learning_rates": [0.001, 0.01], "share": 1, "widest": 0}, seeds=2)
    result, lines = told(study, tmp_path / "whole")
    assert [what for what in begun(lines) if "run" in what] == ["ngram, run 1 of 2", "ngram, run 2 of 2"]
    short = run(study.model_copy(update={"trials": study.trials.model_copy(update={"share": 0.5})}), tmp_path / "short")
    for entry, other in zip(result.entries[:2], short.entries[:2], strict=True):
        for each, twin in zip(entry.runs, other.runs, strict=True):
            assert each.folder == f"trials/{entry.name}/{each.index}/{each.lr:g}"
            assert (tmp_path / "whole" / each.folder / "result.json").exists()
            if each.lr == twin.lr:  # then both are the same run
                assert (each.bits_per_byte, each.document_nats) == (twin.bits_per_byte, twin.document_nats)
                assert [point.bits_per_byte for point in each.curve] == [point.bits_per_byte for point in twin.curve]
    assert any(each.lr == twin.lr for entry, other in zip(result.entries[:2], short.entries[:2], strict=True)
               for each, twin in zip(entry.runs, other.runs, strict=True))


def test_a_model_with_seeds_of_its_own_has_other_runs(text: Path, tmp_path: Path) -> None:
    result = run(study_of(text, {"a": {"config": LSTM}, "again": {"config": LSTM, "seed_offset": 50}}, seeds=2),
                 tmp_path / "out")
    mine, other = result.entries
    assert [(each.seed, each.order_seed) for each in other.runs] == [(50, 1050), (51, 1051)]
    assert {each.bits_per_byte for each in mine.runs}.isdisjoint(each.bits_per_byte for each in other.runs)
    assert "models have pairs of their own of seeds" in " ".join(result.protocol)


def _statuses(entry: StudyModel) -> list[str]:
    return [each.status for each in entry.runs]


@pytest.mark.parametrize(("error", "note"), [
    (OSError(28, "No space left on device"), "No space left on device"), (MemoryError(), "there is not enough memory"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: you tried"),
     "can't allocate memory")])
def test_trouble_of_the_machine_is_no_verdict_and_is_tried_again(
        text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, note: str) -> None:
    # Another model that is trained is there once: what becomes of it does not depend on the kind of trouble.
    models = MODELS if isinstance(error, OSError) else {name: MODELS[name] for name in ("b", "ngram")}
    study = study_of(text, models, trials={"count": 2, "widest": 0}, seeds=2)
    done = work._done

    def troubled(job: Job, tell: Any) -> Outcome:
        if job.name == "b" and job.run.seed == 1:
            raise error
        return done(job, tell)

    with monkeypatch.context() as patch:
        patch.setattr(work, "_done", troubled)
        first, lines = told(study, tmp_path / "out")
    assert {entry.name: _statuses(entry) for entry in first.entries} == {
        name: ["finished", "interrupted" if name == "b" else "finished"] for name in models}
    found = first.entries[list(models).index("b")].runs[1].note
    assert "was interrupted:" in found and note in found
    assert "b, run 2 of 2" not in begun(lines), "nothing is chosen before all has been tried"
    assert any("b: 1 of 2 runs were interrupted" in each for each in first.notes)
    second, lines = told(study, tmp_path / "out")
    assert [_statuses(entry) for entry in second.entries] == [["finished"] * 2] * len(models)
    assert begun(lines) == ["b, attempt 2 of 2, trial of lr 0.01", "b, attempt 2 of 2, trial of lr 0.03",
                            "b, run 2 of 2"]


def test_trouble_of_the_models_own_stands(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of(text, {"a": {"config": LSTM}, "b": {"config": ATTENTION}})
    done = work._done

    def wrong(job: Job, tell: Any) -> Outcome:
        if job.name == "b":
            raise RuntimeError("shapes do not fit")
        return done(job, tell)

    with monkeypatch.context() as patch:
        patch.setattr(work, "_done", wrong)
        run(study, tmp_path / "out")
    result, lines = told(study, tmp_path / "out")
    assert (result.entries[1].runs[0].status, begun(lines)) == ("failed", [])
    assert result.entries[1].runs[0].note == "its code raises RuntimeError: shapes do not fit"


def test_a_result_that_cannot_be_written_is_a_message(text: Path, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.comparison.folder import StudyFolder

    def full(folder: StudyFolder, result: StudyResult) -> None:
        raise OSError(28, "No space left on device", str(folder.path / "result.json"))

    monkeypatch.setattr(StudyFolder, "write_result", full)
    with pytest.raises(FailedError, match=r"result\.json: the study's files cannot be written \(No space left on device"
                                          r"\)\. Free space; the same command goes on"):
        run(study_of(text, {"a": {"config": NGRAM}, "b": {"config": NGRAM}}), tmp_path / "out")
