"""What a study's file may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from weft.comparison.study import StudyConfig, default_contexts, read_study
from weft.comparison.study_settings import Seeds
from weft.core.config import parse
from weft.core.errors import ConfigError

TWO = {"a": "transformer", "b": "lstm"}


def study(**changes: Any) -> StudyConfig:
    return parse(StudyConfig, {"models": TWO, "budget": {"kind": "tokens", "amount": 1000}, **changes})


@pytest.mark.parametrize(("changes", "message"), [
    ({"models": {"a": "transformer"}}, "\n  - models: 1 model, and a comparison needs two"),
    ({"models": {"a/b": "x", "c": "y"}}, "'a/b' cannot be the name of a folder"),
    ({"budget": None}, "budget: neither a budget nor a length of training. Give one, such as budget: {kind: tokens, "
     "amount: 1000000} (--budget tokens=1000000)."),
    ({"budget": {"kind": "parameters", "amount": 10}}, "a budget of parameters does not say how long"),
    ({"length": {"steps": 5}}, "steps beside a budget of tokens"),
    ({"budget": {"kind": "flops", "amount": 10}, "length": {"seconds": 5}}, "seconds beside a budget of flops"),
    ({"length": {"steps": 5, "tokens": 5}}, "a length in steps and tokens"),
    ({"length": {}}, "a length in nothing"),
    ({"training": {"steps": 5}}, "State it as the study's length: {steps: 5}"),
    ({"seeds": [{"seed": 1, "order_seed": 1}] * 2}, "\n  - seeds: a pair of seeds is given twice"),
    ({"seeds": 0}, "Input should be greater than 0, got 0."),
    ({"seeds": []}, "at least 1 item"),
    ({"seeds": 2**63 - 1}, "Input should be less than or equal to 10000"),
    ({"seeds": {"count": 10_001}}, "Input should be less than or equal to 10000, got 10001."),
    ({"trials": {"count": 10**12}}, "trials.count: Input should be less than or equal to 1000"),
    ({"seeds": {"count": 3, "vary": "order_"}}, "'both', 'initialisation' or 'order'"),
    ({"seeds": {"cuont": 3}}, "Did you mean 'count'"),
    ({"test": "t"}, "'welch' or 'paired'"),
    ({"trials": {"widest": -1}}, "greater than or equal to 0"),
    ({"confidence": 1.5}, "less than 1"),
    ({"budget": {"kind": "parameter", "amount": 10}}, "budget.kind: Input should be 'parameters', 'flops', "
     "'tokens', 'seconds' or 'state_bytes', got 'parameter'. Did you mean 'parameters'?"),
    ({"seedz": 3}, "Did you mean 'seeds'"),
])
def test_what_a_study_cannot_say(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study(**changes)
    assert message in str(caught.value)


def pairs(config: StudyConfig) -> list[tuple[int, int]]:
    return [(each.seed, each.order_seed) for each in config.seeds]


def test_a_number_of_seeds_stands_for_pairs_of_different_numbers() -> None:
    assert pairs(study(seeds=2)) == pairs(study(seeds={"count": 2})) == [(0, 1000), (1, 1001)]
    assert pairs(study(seeds={"count": 2, "vary": "initialisation"})) == [(0, 1000), (1, 1000)]
    assert pairs(study(seeds={"count": 2, "vary": "order"})) == [(0, 1000), (0, 1001)]
    assert pairs(study(seeds=[{"seed": 7, "order_seed": 1}])) == [(7, 1)]


def test_four_models_have_five_runs_and_fewer_have_three() -> None:
    assert len(study().seeds) == len(study(seeds=None).seeds) == 3
    many = dict.fromkeys("abcd", "lstm")
    assert len(study(models=many).seeds) == 5
    assert len(study(models=many, seeds=2).seeds) == 2


def test_a_model_may_have_seeds_of_its_own() -> None:
    config = study(models={"a": "lstm", "again": {"config": "lstm", "seed_offset": 500}}, seeds=2)
    assert config.seeds_of("a", 1) == Seeds(seed=1, order_seed=1001)
    assert config.seeds_of("again", 1) == Seeds(seed=501, order_seed=1501)


def test_a_study_is_read_back_as_it_was_stated() -> None:
    config = study(seeds={"count": 4, "vary": "order"}, trials={"learning_rates": [0.1, 0.2]}, test="paired")
    assert parse(StudyConfig, config.model_dump(mode="json", exclude_none=True)) == config


@pytest.mark.parametrize(("changes", "widths", "length"), [
    ({}, False, ("tokens", 1000)),
    ({"budget": {"kind": "flops", "amount": 9.0}}, False, ("flops", 9.0)),
    ({"budget": {"kind": "flops", "amount": 9.0}, "length": {"tokens": 5}}, True, ("tokens", 5)),
    ({"budget": {"kind": "parameters", "amount": 9}, "length": {"seconds": 5}}, True, ("seconds", 5)),
    ({"budget": None, "length": {"steps": 5}}, False, ("steps", 5))])
def test_a_budget_solves_for_widths_or_for_steps(changes: dict[str, Any], widths: bool, length: Any) -> None:
    config = study(**changes)
    assert (config.solves_width, config.training_budget) == (widths, length)


def test_a_file_with_what_is_said_besides(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({"models": {"a": "lstm"}, "budget": {"kind": "tokens", "amount": 5},
                                    "trials": {"ratio": 2.0}}))
    config = read_study(["lstm", "lstm", "x/transformer.yaml"], ["measure.curve_points=7"], study=file, given={
        "trials": {"count": 5}, "budget": {"kind": "seconds", "amount": 3}})
    assert list(config.models) == ["a", "lstm", "lstm-2", "transformer"]
    assert (config.trials.count, config.trials.ratio, config.measure.curve_points) == (5, 2.0, 7)
    assert config.budget is not None and config.budget.kind == "seconds"


@pytest.mark.parametrize(("given", "changes", "limit"), [
    ({"path": "own.txt"}, [], None), ({}, ["data.path=own.txt"], None), ({"path": "their.txt"}, [], 3000),
    ({"path": "own.txt", "max_bytes": 500}, [], 500), ({"path": "own.txt"}, ["data.max_bytes=7"], 7),
    ({}, ["data={path: own.txt, max_bytes: 7}"], 7), ({}, ["data.max_bytes=500"], 500),
    ({}, ["data.validation=0.2"], 3000), ({}, [], 3000)])
def test_a_limit_of_the_study_holds_for_its_own_text_alone(given: dict[str, Any], changes: list[str],
                                                           limit: int | None, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({"models": TWO, "budget": {"kind": "tokens", "amount": 5},
                                    "data": {"path": "their.txt", "max_bytes": 3000}}))
    data = read_study([], changes, study=file, given={"data": given} if given else {}).data
    assert data is not None and data.get("max_bytes") == limit


def test_the_python_library_is_a_text_of_the_study_too(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({"models": TWO, "budget": {"kind": "tokens", "amount": 5},
                                    "data": {"max_bytes": 3000}}))
    assert read_study(study=file, given={"data": {"path": "own.txt"}}).data == {"path": "own.txt"}


def test_contexts_around_that_of_training() -> None:
    assert default_contexts(128, 3) == [16, 64, 128, 256, 512]
    assert default_contexts(8, 2) == [8, 16]
