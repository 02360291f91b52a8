"""Run configurations: files, overrides, the vocabulary that is filled in, and every message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from training.tiny_runs import ATTENTION, LSTM, tiny_run, write_text
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.training import RunConfig, TrainingSettings, load_model_config, load_run, parse_run
from weft.training.material import prepare
from weft.training.optimizers import AdamWConfig, SGDConfig
from weft.training.overrides import apply_overrides
from weft.training.schedules import CosineConfig

MODEL = """
model:
  kind: decoder
  d_model: 12
  blocks:
    - {kind: pre, layers: [lstm]}
"""


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_fill_a_file_that_holds_only_a_model(tmp_path: Path) -> None:
    run = load_run(write(tmp_path, json.dumps(LSTM), "model.json"))
    assert run.model.vocab_size == 257
    assert run.context == 8
    assert run.data.path is None
    assert isinstance(run.training.optimizer, AdamWConfig)
    assert isinstance(run.training.schedule, CosineConfig)


def test_the_vocabulary_is_the_tokenizers(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    characters = parse_run({"model": LSTM, "tokenizer": "characters", "data": {"path": str(text)}})
    assert characters.model.vocab_size == prepare(characters).tokenizer.vocab_size < 60
    assert parse_run({"model": LSTM, "tokenizer": {"kind": "bpe", "vocab_size": 300}}).model.vocab_size == 300
    assert parse_run({"model": {**LSTM, "vocab_size": 500}}).model.vocab_size == 500


@pytest.mark.parametrize(("changes", "limit"), [
    (["data.path=own.txt"], None), (["data={path: own.txt}"], None), (["data.validation=0.2"], 3000),
    (["data.path=own.txt", "data.max_bytes=500"], 500), (["data.max_bytes=500"], 500),
    (["data={path: own.txt, max_bytes: 7}"], 7), (["data.path=theirs.txt"], 3000)])
def test_a_limit_in_a_file_is_not_one_on_the_users_own_text(changes: list[str], limit: int | None) -> None:
    theirs = {"model": LSTM, "data": {"max_bytes": 3000, **({"path": "theirs.txt"} if "theirs" in changes[0] else {})}}
    assert parse_run(theirs, changes).data.max_bytes == limit


@pytest.mark.parametrize(("own", "changes", "split"), [
    ({}, [], "copies"), ({}, ["data.max_bytes=500"], "copies"), ({}, ["data.path=own.txt"], "name"),
    ({}, ["data.path=own.txt", "data.split_by=content"], "content"),
    ({}, ["data.sources={a: {path: a.txt, weight: 1}}"], "name"),
    ({"path": "theirs.txt"}, ["data.path=own.txt"], "copies"),
    ({"max_bytes": 3000}, [], "copies"), ({"max_bytes": 3000}, ["data.max_bytes=500"], "name"),
    ({"max_bytes": 3000}, ["data.max_bytes=500", "data.split_by=copies"], "copies"),
    ({"sources": {"a": {"path": "a.txt", "weight": 1}}}, ["data.sources.a.path=b.txt"], "copies")])
def test_the_split_of_the_default_text_holds_for_it_alone(own: dict[str, Any], changes: list[str], split: str) -> None:
    """A text of one document cannot be split by copies, a prepared folder is split already, and of a shorter limit
    than that with which the split was chosen there may be little to hold out."""
    assert parse_run({"model": LSTM, "data": {**own, "split_by": "copies"}}, changes).data.split_by == split


def test_a_run_survives_the_round_trip_through_plain_data(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, ATTENTION, carry_state=False, optimizer={"kind": "sgd", "momentum": 0.5})
    again = parse_run(json.loads(json.dumps(run.dump())))
    assert again == run
    assert isinstance(again.training.optimizer, SGDConfig)
    assert again.training.optimizer.momentum == 0.5


def test_load_model_config_reads_models_and_runs(tmp_path: Path) -> None:
    alone = load_model_config(write(tmp_path, json.dumps(LSTM), "model.json"), ["d_model=20"])
    inside = load_model_config(write(tmp_path, MODEL), ["model.d_model=20"])
    assert alone.dump()["d_model"] == inside.dump()["d_model"] == 20
    assert alone.vocab_size == inside.vocab_size == 257


def test_overrides_reach_fields_lists_and_parts_given_by_kind() -> None:
    data = {"model": ATTENTION}
    run = parse_run(data, ["training.optimizer.lr=3e-4", "model.blocks.0.layers.0.n_heads=3", "seed=7",
                           "model.blocks.0.layers.0.position.base=500.0", "training.clip_norm=null",
                           "training.schedule={kind: wsd, cooldown: 0.3}"])
    dumped = run.dump()
    attention = dumped["model"]["blocks"][0]["layers"][0]
    assert dumped["training"]["optimizer"]["lr"] == 3e-4
    assert attention["n_heads"] == 3
    assert attention["position"]["kind"] == "rope"
    assert attention["position"]["base"] == 500.0
    assert dumped["training"]["clip_norm"] is None
    assert dumped["training"]["schedule"]["cooldown"] == 0.3
    assert run.seed == 7
    assert data == {"model": ATTENTION}, "the data given are not changed"


def test_later_overrides_win() -> None:
    assert apply_overrides({"a": {"b": 1}}, ["a.b=2", "a.b=[3, 4]", "a.b.1=5"]) == {"a": {"b": [3, 5]}}


@pytest.mark.parametrize(("override", "message"), [
    ("training.steps", "'training.steps': not of the form key.path=value"),
    ("training..steps=3", "not of the form key.path=value"),
    ("seed={", "seed: the value '{' is not YAML"),
    ("model.blocks.4.kind=pre", "model.blocks is a list of 1, and '4' is no index of it. Give 0 to 0"),
    ("model.blocks.x=pre", "'x' is no index"),
    ("model.d_model.size=3", "model.d_model is 12, which has no fields. Set model.d_model itself"),
    ("training.stepz=3", "training.stepz: unknown key 'stepz'. Did you mean 'steps'?"),
    ("trainin.steps=3", "trainin: unknown key 'trainin'. Did you mean 'training'?"),
    ("training.optimizer.kind=adam", "no optimizer of kind 'adam'. Did you mean 'adamw'?"),
    ("training={steps: 5, seconds: 60}", "training.steps: a budget of 5 steps and one of 60 seconds. Give one of them"),
    ("training={steps: 5, flops: 1e15}", "training.steps: a budget of 5 steps and one of 1e+15 flops. Give one of"),
    ("training={tokens: 5, seconds: 2}", "training.seconds: a budget of 2 seconds and one of 5 tokens. Give one"),
    ("training.tokens=.inf", "training.tokens: Input should be a finite number, got inf"),
    ("training.objective.label_smoothing=1", "training.objective.label_smoothing: Input should be less than 1, got 1"),
    ("training.objective.z_loss=-1", "training.objective.z_loss: Input should be greater than or equal to 0, got -1"),
    ("training.compute.matmul=mkl", "training.compute.matmul: Input should be 'auto', 'default' or 'onednn', got"),
    ("kernels={attention: refrence}", "kernels.attention: no form is called 'refrence'. Did you mean 'reference'?"),
    ("kernels={atention: sdpa}", "kernels.atention: no operation is called 'atention'. Did you mean 'attention'?"),
    ("training.compute.compil=true", "unknown key 'compil'. Did you mean 'compile'?"),
    ("training.optimizer.dynamics_lr=0", "training.optimizer.dynamics_lr: Input should be greater than 0, got 0"),
    ("tokenizer=byte", "no tokenizer of kind 'byte'. Did you mean 'bytes'?"),
    ("data.validation=2", "data.validation: Input should be less than 1, got 2"),
    ("training.optimizer={kind: sgd, nesterov: true}", "nesterov: true without momentum"),
    ("training.schedule={kind: wsd, warmup: 0.6, cooldown: 0.5}", "make more than the whole run"),
])
def test_a_wrong_override_says_so(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_run({"model": LSTM, "training": {"steps": 5}}, [override])
    assert message in str(caught.value)


def test_all_wrong_overrides_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match="2 problems") as caught:
        apply_overrides({}, ["one", "a=1", "b=: :"])
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(("text", "message"), [
    ("model:\n  kind: [decoder\n", "line 3, column 1: not YAML"),
    ("", "the file holds nothing. Begin with `model:`"),
    ("- 1\n- 2\n", "the file holds a list"),
    ("seed: 1\nseed: 2\n", "line 2, column 1: not YAML: the key 'seed' is given twice"),
    ("\x00", "not YAML"),
    ("seed: 1\n", "model: missing"),
    ("model: decoder\n", "model.d_model: missing"),
])
def test_a_wrong_file_says_where(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(write(tmp_path, text))
    assert message in str(caught.value)
    assert "run.yaml" in str(caught.value)


def test_a_missing_or_binary_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: 1 problem(.|\n)*cannot be read \(No such file"):
        load_run(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"cannot be read .*utf-8"):
        load_run(tmp_path / "binary.yaml")


def test_a_vocabulary_below_the_tokenizers_is_refused(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, {**LSTM, "vocab_size": 200})
    with pytest.raises(ConfigError, match=r"model\.vocab_size: 200, while the tokenizer has 257 ids\. Leave it out"):
        prepare(run)


def test_every_example_of_a_training_part_reads_its_own_dump() -> None:
    from weft.core.registry import REGISTRY

    parts = [part for group in ("optimizer", "schedule") for part in REGISTRY.parts(group)]
    assert {part.kind for part in parts} >= {"adamw", "sgd", "constant", "cosine", "linear", "inverse_sqrt", "wsd"}
    for part in parts:
        for example in part.examples():
            assert parse_part((part.group,), example.dump()) == example


MANY_FIELDS = {"TrainingSettings": "four budgets of which one is given, and thirteen that every run has",
               "DataSettings": "three texts, and eight ways to read them, most of which a run leaves out"}


def test_run_configs_have_at_most_ten_fields_each() -> None:
    models = [RunConfig, *(field.annotation for field in RunConfig.model_fields.values())]
    models += [field.annotation for field in TrainingSettings.model_fields.values()]
    settings = [model for model in models if isinstance(model, type) and hasattr(model, "model_fields")]
    assert len(settings) >= 6
    assert {model.__name__ for model in settings if len(model.model_fields) > 10} == set(MANY_FIELDS)
