"""Whether what a study aimed at came out equal."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from comparison.report.fixture import study
from comparison.studies import LSTM, study_of
from weft.comparison.contestants import Contestant
from weft.comparison.protocol import matched, notes_of, protocol_of, statement
from weft.comparison.results import Trial
from weft.comparison.study import StudyConfig
from weft.comparison.study_result import Matched, StudyResult
from weft.comparison.texts import StudyTexts
from weft.core.config import parse
from weft.data import Repeated
from weft.training import parse_run

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


def contestant(*, trained: bool) -> Contestant:
    return Contestant("m", parse_run({"model": LSTM}), trained, {}, 1.0 if trained else None)


@pytest.mark.parametrize(("trained", "changes", "said"), [
    ([True, True], {"length": {"tokens": 1000}},
     "Every model is trained for 1,000 tokens, in whole steps; widths are as the configurations say."),
    ([True, False], {"length": {"seconds": 25}},
     "Every model that gradients train is trained for as many steps as 25 seconds pay for, by its pace before the "
     "runs; widths are as the configurations say. The notes say what counted models read."),
    ([False, False], {"length": {"tokens": 1000}},
     "Every model counts, from a budget of 1,000 tokens, in whole steps; the notes say what each has read."),
    ([True], {"budget": {"kind": "parameters", "amount": 1000}, "length": {"steps": 3}},
     "Widths are solved for 1,000 parameters, embeddings included (within 2%), and every model is trained for 3 "
     "steps.")])
def test_the_budget_is_said_so_that_it_is_true_of_every_row(trained: list[bool], changes: dict[str, Any], said: str,
                                                          tmp_path: Path) -> None:
    study = study_of(tmp_path / "text.txt", TWO, **changes)
    assert statement(study, [contestant(trained=each) for each in trained]) == said


def test_models_of_other_depth_or_with_carried_state_are_named_beside_the_budget(tmp_path: Path) -> None:
    """Neither is what a study of kinds of layers asks, and a model may owe its place to it."""
    study = study_of(tmp_path / "text.txt", TWO, length={"tokens": 1000})
    twice = {**LSTM, "blocks": [{"repeat": 2, "of": LSTM["blocks"]}]}
    deep = Contestant("deep", parse_run({"model": twice, "training": {"carry_state": True}}), True, {}, 1.0)
    window = Contestant("window", parse_run({"model": {"kind": "feedforward"}}), True, {}, 1.0)
    said = statement(study, [contestant(trained=True), deep, window])
    assert said.endswith("Models also differ in the number of blocks (m 1, deep 2) and in carried state and the order "
                         "of the data (with a state, in sequence: deep).")


@pytest.mark.parametrize(("changes", "said"), [
    ({"seeds": 2}, "2 runs of every model; run i of each has the same pair of seeds, one for the initial weights and "
     "dropout, one for the order of the data. Models take turns"),
    ({"seeds": {"count": 3, "vary": "order"}}, "(fixed for all runs: the initial weights and dropout, so no interval "
     "contains what another one would change)"),
    ({"seeds": {"count": 3, "vary": "initialisation"}}, "(fixed for all runs: the order of the data, so"),
    ({"models": {"a": {"config": LSTM}, "b": {"config": LSTM, "seed_offset": 9}}},
     "1 run of every model; models have pairs of their own of seeds"),
    ({"trials": {"count": 1}}, "No learning rate was tried: each model that gradients train has its configuration's."),
    ({"trials": {"learning_rates": [0.5]}}, "No learning rate was tried: each model that gradients train has 0.5."),
    ({"trials": {"learning_rates": [0.1, 0.2], "share": 1}}, "tries 2 learning rates (0.1, 0.2), each as long as a "
     "run, so that the best is the run, with the attempt's own seeds"),
    ({"trials": {"count": 4, "share": 0.5, "widest": 0}},
     "tries 4 learning rates (around the configuration's own, each 3 times the one before), each of 50% of a run's "
     "steps, with the attempt's own seeds; the best on the tuning text is run. So what lies "
     "between runs contains the choice of the rate."),
    ({"trials": {"count": 4}}, "Where the best of some model lies at the edge, all try one more on that side, up to 2 "
     "on each."),
    ({"test": "paired"}, "Student's t over paired runs, and a bootstrap"),
    ({}, "Welch's t over the runs of both, and a bootstrap")])
def test_how_it_was_done_is_said(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    study = parse(StudyConfig, {**study_of(tmp_path / "text.txt", TWO).model_dump(mode="json"), **changes})
    texts = StudyTexts({}, tmp_path, tmp_path, "how", "text", ("", "", ""), 1, 1, 1, (), Repeated(0, 1, 0.0))
    assert said in " ".join(protocol_of(study, texts, [contestant(trained=True)] * 2))


def noted(result: StudyResult, tmp_path: Path) -> str:
    config = study_of(tmp_path / "text.txt", TWO)
    return " ".join(notes_of(config, (), result.entries, None, result.corpus, ()))


def changed(result: StudyResult, **changes: Any) -> StudyResult:
    """With these changes to the first run of the first model."""
    first, *others = result.entries
    runs = (dataclasses.replace(first.runs[0], **changes), *first.runs[1:])
    return dataclasses.replace(result, entries=(dataclasses.replace(first, runs=runs), *others))


def test_what_a_reader_must_beware_of_is_counted(tmp_path: Path) -> None:
    result = study(1)
    assert "edge" not in noted(result, tmp_path) and "lowest or highest" not in noted(result, tmp_path)
    assert "the learning rate of 1 of 3 runs is the lowest or highest" in noted(changed(result, edge=True), tmp_path)
    stopped = changed(result, status="interrupted", bits_per_byte=None, note="the disk was full")
    assert ("transformer: 1 of 3 runs were interrupted (the disk was full), which says nothing of the model; the same "
            "command tries them again.") in noted(stopped, tmp_path)
    lost = changed(result, trials=(Trial(0.1, "diverged", None, 1.0), Trial(0.3, "diverged", None, 1.0)))
    assert "in 1 of 3 attempts no trial finished" in noted(lost, tmp_path)
    known = dataclasses.replace(result, corpus=dataclasses.replace(result.corpus, duplicated_documents=7))
    assert "7 of the 61 documents of the test text stand in the training text, too" in noted(known, tmp_path)


def test_a_missed_aim_is_a_note(tmp_path: Path) -> None:
    result, config = study(4), study_of(tmp_path / "text.txt", TWO)
    missed = Matched("training seconds", True, 0.59)
    notes = notes_of(config, (), result.entries, None, result.corpus, (missed, Matched("training tokens", True, 0.0)))
    assert [note for note in notes if "meant" in note] == [
        "training seconds: meant to be equal, but the largest is 1.59 times the smallest, so a model may owe its place "
        "to them."]
