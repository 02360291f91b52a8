"""The studies in ``examples/``: sizes are solved as they say, and the one of ``make run`` runs, small."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.api.configs import config_path
from weft.comparison.contestants import contestants
from weft.comparison.jobs import Options
from weft.comparison.matching import size_of
from weft.comparison.study import read_study
from weft.comparison.study_runner import run_study
from weft.comparison.study_settings import FEWEST_TRIALS

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
AGES = ["ngram", "feedforward", "convolution", "lstm", "transformer", "s4d"]
TINY = ["seeds=2", "trials={count: 1}", "length={steps: 2}", "data.max_bytes=60000", "tokenizer.vocab_size=300",
        "training.context=8", "training.batch_size=2", "budget.amount=30000", "budget.tolerance=0.1",
        "measure={curve_points: 1, curve_bytes: 500, contexts: [8], decode_steps: 1, new_tokens: 2, resamples: 100}"]


@pytest.mark.parametrize("name", ["six_ages", "equal_parameters"])
def test_the_models_of_a_study_have_the_size_it_states(name: str) -> None:
    study = read_study([], [], study=EXAMPLES / f"{name}.yaml", given=None)
    assert study.budget is not None and study.budget.kind == "parameters"
    assert len(study.seeds) == 5 and study.trials.number >= FEWEST_TRIALS
    models, notes = contestants(study, config_path)
    assert notes == [], "nothing is changed behind the study's back"
    for each in models:
        if each.trained:
            size = size_of(each.run.model)
            counted = size.parameters - (0 if study.budget.embeddings else size.embeddings)
            assert counted == pytest.approx(study.budget.amount, rel=study.budget.tolerance)
            assert each.run.training.steps is not None


def test_make_run_runs_the_study_of_six_ages() -> None:
    assert "weft compare --study examples/six_ages.yaml --out runs/six_ages" in (ROOT / "Makefile").read_text("utf-8")
    study = read_study([], [], study=EXAMPLES / "six_ages.yaml", given=None)
    assert list(study.models) == AGES


def test_the_study_of_six_ages_runs_and_leaves_its_report(tmp_path: Path) -> None:
    study = read_study([], TINY, study=EXAMPLES / "six_ages.yaml", given=None)
    result = run_study(study, tmp_path, config_path, Options(threads=1, own_processes=False))
    assert [entry.name for entry in result.entries] == AGES
    assert all(run.status == "finished" for entry in result.entries for run in entry.runs)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert all(f">{name}<" in page for name in AGES)
