"""Whole studies: twins are tied, failures are told, and an interrupted study goes on where it stopped."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from comparison.studies import ATTENTION, LSTM, NGRAM, run, study_of, write_text
from weft.api import evaluate, train
from weft.comparison import work
from weft.comparison.folder import read_result, rerender
from weft.comparison.jobs import Job, Outcome
from weft.comparison.progress import StudyProgress
from weft.comparison.results import Status
from weft.comparison.study_result import StudyResult
from weft.core.errors import CheckpointError, ConfigError, FailedError, InputError, UnsupportedError, WeftError

MODELS: dict[str, Any] = {"one": {"config": ATTENTION}, "two": {"config": ATTENTION}, "ngram": {"config": NGRAM}}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study") / "twins"


@pytest.fixture(scope="module")
def twins(text: Path, folder: Path) -> StudyResult:
    return run(study_of(text, MODELS, seeds=2), folder)


def test_the_same_model_under_two_names_is_tied(twins: StudyResult) -> None:
    one, two, _ = twins.entries
    assert [run.bits_per_byte for run in one.runs] == [run.bits_per_byte for run in two.runs]
    assert [point.bits_per_byte for point in one.runs[1].curve] == [point.bits_per_byte for point in two.runs[1].curve]
    pair = twins.differences[0]
    assert (pair.first, pair.second, pair.over_seeds.mean) == ("one", "two", 0)
    assert pair.over_seeds.low == -pair.over_seeds.high < 0, "by Welch's test, which takes no run for another's twin"
    assert (pair.p_value, pair.p_holm, pair.tied, pair.crosses) == (1.0, 1.0, True, False)
    assert pair.over_documents.mean == pair.document_error == 0
    assert any({"one", "two"} <= set(each) for each in twins.tied_sets)


def test_a_file_is_named_with_its_folder_alone(twins: StudyResult, text: Path) -> None:
    assert twins.corpus.name == f"{text.parent.name}/text.txt"


def test_runs_of_one_number_have_the_same_seeds_and_the_numbers_differ(twins: StudyResult) -> None:
    for entry in twins.entries:
        assert [(each.seed, each.order_seed) for each in entry.runs] == [(0, 1000), (1, 1001)]
    assert twins.entries[0].runs[0].bits_per_byte != twins.entries[0].runs[1].bits_per_byte


def test_what_is_measured_of_a_run(twins: StudyResult) -> None:
    entry = twins.entries[0]
    run = entry.runs[0]
    assert [(point.step, point.tokens) for point in run.curve] == [(2, 64), (4, 128)]
    # The test text is shorter than what a curve may use, so that the curve ends in the run's figure.
    assert run.bits_per_byte == pytest.approx(run.curve[-1].bits_per_byte, rel=1e-12)
    assert [(each.first, each.last) for each in run.by_position] == [(1, 1), (2, 3), (4, 7), (8, 15), (16, 16)]
    assert sum(each.tokens for each in run.by_position) == twins.corpus.validation_tokens - 1
    assert [(each.context, each.trained) for each in run.by_length] == [(8, True), (16, True)]
    assert run.by_length[1].bits_per_byte == pytest.approx(run.bits_per_byte, rel=1e-6)
    assert [each.context for each in entry.decode] == [8, 16]
    assert entry.decode[0].state_bytes < entry.decode[1].state_bytes
    assert all(each.seconds is not None and each.seconds > 0 for each in entry.decode)
    assert entry.sample is not None and "seed 0" in entry.sample.how
    assert run.peak_memory_bytes > 50e6 and run.tokens_per_second > 0
    assert entry.flops_per_token is not None and run.flops == 128 * entry.flops_per_token


def test_a_counted_model_reads_what_the_budget_pays_for(twins: StudyResult) -> None:
    ngram = twins.entries[2]
    assert [each.tokens for each in ngram.runs] == [128, 128]
    assert ngram.runs[0].bits_per_byte != ngram.runs[1].bits_per_byte
    assert any(note.startswith("ngram: counted on the first 128 tokens") for note in twins.notes)
    assert (ngram.trainable, ngram.rates, ngram.flops_per_token, ngram.edge) == (False, (), None, False)
    assert [(each.lr, each.trials) for each in ngram.runs] == [(None, ())] * 2
    assert ngram.repeat == "", "the whole study alone repeats it"


def test_the_figures_can_be_had_again_from_the_documents(twins: StudyResult) -> None:
    sizes = twins.corpus.document_bytes
    assert sum(sizes) == twins.corpus.validation_bytes
    for entry in twins.entries:
        for found in entry.runs:
            assert len(found.document_nats) == len(sizes)
            assert sum(found.document_nats) / math.log(2) / sum(sizes) == pytest.approx(found.bits_per_byte, rel=1e-12)


def test_the_whole_text_is_counted_once(text: Path, tmp_path: Path) -> None:
    models = {"a": {"config": NGRAM}, "b": {"config": NGRAM}}
    result = run(study_of(text, models, length={"tokens": 1e6}), tmp_path / "out")
    assert {each.runs[0].tokens for each in result.entries} == {result.corpus.train_tokens}
    assert any("counted on the training text once" in note for note in result.notes)


def test_the_command_of_a_row_repeats_it_elsewhere(twins: StudyResult, folder: Path, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of the study's folder, from there, without the text that the study was made of."""
    entry = twins.entries[1]
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "elsewhere"))
    train_part, _, eval_part = entry.repeat.partition(" && ")
    words = train_part.split()
    assert words[:3] == ["weft", "train", "configs/two.yaml"]
    assert words[3:6] == ["data.path=data/tokens", "seed=0", "data.order_seed=1000"]
    assert not any(word.startswith("/") or "=/" in word for word in entry.repeat.split())
    assert str(folder) not in entry.config and "path: data/tokens" in Path(words[2]).read_text()
    for seed in (0, 1):
        out = tmp_path / str(seed)
        train(words[2], [words[3], f"seed={seed}", f"data.order_seed={1000 + seed}"], out=out)
        found = evaluate(out, eval_part.split()[eval_part.split().index("--data") + 1], context=16)
        assert found.bits_per_byte == pytest.approx(entry.runs[seed].bits_per_byte, rel=1e-6)


def test_the_result_stands_in_the_folder_and_the_report_can_be_made_again(twins: StudyResult, folder: Path) -> None:
    assert read_result(folder) == twins
    page = (folder / "report.html").read_text()
    (folder / "report.html").unlink()
    assert rerender(folder).read_text() == page


def test_a_finished_study_is_read_back(twins: StudyResult, text: Path, folder: Path) -> None:
    told: list[StudyProgress] = []
    again = run(study_of(text, MODELS, seeds=2), folder, told.append)
    assert again.started == twins.started
    assert (again.entries, again.differences) == (twins.entries, twins.differences)
    assert not any("begun" in each.text or "step" in each.text for each in told)


def test_another_study_in_the_same_folder_is_refused(twins: StudyResult, text: Path, folder: Path) -> None:
    with pytest.raises(ConfigError, match="holds another study"):
        run(study_of(text, MODELS, seeds=2, test="paired"), folder)


def test_damaged_results_are_named(twins: StudyResult, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no result of a study here"):
        read_result(tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"result\.json: the file is damaged"):
        read_result(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({**twins.to_json(), "format": 99}))
    with pytest.raises(CheckpointError, match="study format 99, and this Weft reads 3"):
        read_result(tmp_path)


def test_a_diverging_model_leaves_the_others_alone(text: Path, tmp_path: Path) -> None:
    models = {"good": {"config": LSTM},
              "wild": {"config": LSTM, "overrides": [
                  "training.optimizer={kind: sgd, lr: 1e30}", "training.clip_norm=null"]}}
    result = run(study_of(text, models, seeds=2), tmp_path / "out")
    good, wild = result.entries
    assert [each.status for each in good.runs] == ["finished", "finished"]
    assert [each.status for each in wild.runs] == ["diverged", "diverged"]
    assert wild.runs[0].note.startswith("diverged at step ") and "Error" not in wild.runs[0].note
    assert result.differences == () and result.tied_sets == (("good",),)
    assert any(note.startswith("wild: 2 of 2 runs did not finish") for note in result.notes)
    assert (wild.bits_per_byte, wild.sample, wild.decode) == (None, None, ())


def test_what_keeps_models_from_training_is_told_of_all_before_the_first_run(text: Path, tmp_path: Path) -> None:
    models = {"good": {"config": LSTM},
              "grows": {"config": ATTENTION, "overrides": ["training.carry_state=true"]},
              "flat": {"config": {"kind": "feedforward", "context": 16},
                       "overrides": ["training.compute.checkpoint_activations=true"]}}
    with pytest.raises(ConfigError) as caught:
        run(study_of(text, models, seeds=2), tmp_path / "out")
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["models.grows", "models.flat"]
    assert "the state of this model grows with every token" in caught.value.problems[0]
    assert not (tmp_path / "out").exists()


class Stop(Exception):
    """What interrupts a study from outside."""


def test_an_interrupted_study_goes_on_where_it_stopped(text: Path, tmp_path: Path) -> None:
    models = {"a": {"config": ATTENTION}, "b": {"config": LSTM}}
    study = study_of(text, models, seeds=2, trials={"count": 2})
    whole = run(study, tmp_path / "whole")

    def stop(progress: StudyProgress) -> None:
        if progress.what == "b, run 1 of 2" and progress.text.startswith("step 3/4"):
            raise Stop

    with pytest.raises(Stop):
        run(study, tmp_path / "stopped", stop)
    told: list[StudyProgress] = []
    resumed = run(study, tmp_path / "stopped", told.append)
    begun = [each.what for each in told if each.text == "begun"]
    assert begun[0] == "b, run 1 of 2" and begun[-2:] == ["a, run 2 of 2", "b, run 2 of 2"]
    assert not any("attempt 1" in each for each in begun), begun
    assert next(each.text for each in told if each.text.startswith("step")).startswith("step 3/4")
    for mine, other in zip(resumed.entries, whole.entries, strict=True):
        assert [each.bits_per_byte for each in mine.runs] == [each.bits_per_byte for each in other.runs]
        assert [[point.bits_per_byte for point in each.curve] for each in mine.runs] == [
            [point.bits_per_byte for point in each.curve] for each in other.runs]
        for run_here, run_there in zip(mine.runs, other.runs, strict=True):
            assert run_here.lr == run_there.lr
            assert [(each.lr, each.bits_per_byte) for each in run_here.trials] == [
                (each.lr, each.bits_per_byte) for each in run_there.trials]


def test_a_study_that_stops_after_a_round_has_a_fair_result(text: Path, tmp_path: Path) -> None:
    def stop(progress: StudyProgress) -> None:
        if progress.what == "a, run 2 of 2":
            raise Stop

    with pytest.raises(Stop):
        run(study_of(text, {"a": {"config": LSTM}, "b": {"config": NGRAM}}, seeds=2), tmp_path / "out", stop)
    partial = read_result(tmp_path / "out")
    assert [[run.status for run in entry.runs] for entry in partial.entries] == [["finished", "pending"]] * 2
    assert any("1 of 2 runs are still to come" in note for note in partial.notes)
    assert partial.differences[0].p_value is None and partial.differences[0].tied


def test_seconds_become_the_same_steps_for_every_run(text: Path, tmp_path: Path) -> None:
    result = run(study_of(text, {"a": {"config": LSTM}, "b": {"config": NGRAM}}, seeds=2, length={"seconds": 0.05}),
                 tmp_path / "out")
    steps = {each.steps for each in result.entries[0].runs}
    assert len(steps) == 1 and min(steps) >= 1
    assert result.budget.kind == "seconds"


@pytest.mark.parametrize(("status", "error", "remedy"), [
    ("interrupted", FailedError, "Give the same command again."),
    ("failed", UnsupportedError, "Correct its configuration, or leave the model out.")])
def test_a_pace_that_cannot_be_measured_ends_the_study(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                       status: Status, error: type[WeftError], remedy: str) -> None:
    monkeypatch.setattr(work, "_pace", lambda job: Outcome(status, "why"))
    with pytest.raises(error, match=f"a: its pace cannot be measured: why {remedy}"):
        run(study_of(text, {"a": {"config": LSTM}, "b": {"config": NGRAM}}, length={"seconds": 0.05}), tmp_path / "out")


def test_a_passing_load_while_a_pace_is_measured_does_not_decide(text: Path, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    paid = iter([5, 4, 1, 4, 6, 70])  # two models in three rounds, of which each met a load, or a sudden rest, in one

    def pace(job: Job) -> Outcome:
        asked.append((job.name, job.folder.name))
        return Outcome("finished", steps=next(paid))

    monkeypatch.setattr(work, "_pace", pace)
    result = run(study_of(text, {"a": {"config": LSTM}, "b": {"config": ATTENTION}}, length={"seconds": 0.05}),
                 tmp_path / "out")
    assert asked == [(name, str(index)) for index in range(3) for name in "ab"]
    assert {each.name: each.runs[0].steps for each in result.entries} == {"a": 5, "b": 4}
