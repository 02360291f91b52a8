"""Keys of configurations that had other names: read everywhere, noted where a user wrote them, and kept in hashes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft.api.configs import own_presets, read_model, read_run
from weft.comparison import StudyConfig, read_study
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.model import parse_model
from weft.core.renamed import noting, renames, with_new_names, with_old_names
from weft.training.config import RunConfig, TrainingSettings

HERE = Path(__file__).parent / "named_before"
"""A run and a study by the names of before, and the fingerprints that Weft gave the models then."""
ROOT = Path(__file__).parents[2]


def run_before() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((HERE / "run.yaml").read_text(encoding="utf-8"))
    return found


def fingerprints() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, each in json.loads((HERE / "models.json").read_text(encoding="utf-8")).items():
        yield name, each["fingerprint"], each["model"]


def test_a_run_by_the_names_of_before_is_read_with_one_note(caplog: pytest.LogCaptureFixture) -> None:
    found = read_run(HERE / "run.yaml")
    assert found.training.clip_norm == 0.25 and found.training.unfreeze is not None
    assert found.training.unfreeze.last_blocks == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"note: {HERE / 'run.yaml'}: clip is called clip_qkv, kernel is called d_conv, clip is called clip_norm, "
        "decay is called cooldown, blocks is called last_blocks now; the old names are still read"]


def test_a_checkpoint_is_read_without_a_note(caplog: pytest.LogCaptureFixture) -> None:
    assert parse(RunConfig, read_run(HERE / "run.yaml").dump()) == parse(RunConfig, {
        **run_before(), "model": {**run_before()["model"], "vocab_size": 257}})
    assert len(caplog.records) == 1, "of the reading of the file alone"


def test_a_study_by_the_names_of_before_is_read() -> None:
    found = read_study(study=HERE / "study.yaml")
    assert found.measure.curve_points == 3 and found.trials.learning_rates == [0.1, 0.2]
    assert found.models["two"].solve_for == {"model.d_model": 1.0}


@pytest.mark.parametrize(("name", "fingerprint", "model"), list(fingerprints()))
def test_stored_states_keep_their_owner(name: str, fingerprint: str, model: dict[str, Any]) -> None:
    found = parse_model(model)
    assert found.fingerprint() == fingerprint, f"{name}: states that were saved before would be refused"
    assert parse_model(found.dump()) == found
    assert with_old_names(found, found.dump()) == model


def test_the_later_of_two_names_counts_since_changes_come_last() -> None:
    assert with_new_names(TrainingSettings, {"clip": 1, "clip_norm": 2}) == {"clip_norm": 2}
    assert with_new_names(TrainingSettings, {"clip_norm": 2, "clip": 1}) == {"clip_norm": 1}
    assert read_run("lstm", ["training.clip=0.5"]).training.clip_norm == 0.5
    before = parse_model(next(model for name, _, model in fingerprints() if name == "mamba2"))
    mixer: Any = before.stack()[0]
    assert mixer.layers[0].step_sizes.least == 0.01


def test_one_note_of_all_that_is_read_inside(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), noting("outer"), noting("inner"):
        parse(TrainingSettings, {"clip": 1.0})
    assert [record.getMessage() for record in caplog.records] == [
        "note: outer: clip is called clip_norm now; the old name is still read"]


def test_an_unknown_key_is_still_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.clop: unknown key 'clop'"):
        read_run("lstm", ["training.clop=1"])


def test_no_new_name_is_an_old_one() -> None:
    found = renames(TrainingSettings)
    assert found == {"clip": "clip_norm"} and set(found.values()) <= set(TrainingSettings.model_fields)


@pytest.mark.parametrize("name", own_presets())
def test_presets_have_new_names(name: str, caplog: pytest.LogCaptureFixture) -> None:
    read_model(name)
    assert not caplog.records


@pytest.mark.parametrize("file", sorted(file.relative_to(ROOT).as_posix() for folder in ("examples", "recipes")
                                        for file in (ROOT / folder).rglob("*.yaml")))
def test_examples_and_recipes_have_new_names(file: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever else may be wrong with them where the texts that they name are not there."""
    plain = yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    whole = {"model": plain} if "kind" in plain else plain
    with noting(file), suppress(ConfigError):
        parse(StudyConfig if "models" in whole else RunConfig, whole)
    assert not caplog.records
