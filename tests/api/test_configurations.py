"""Configurations go wherever the path of one goes: a file, a name, plain data, a run's object and a model's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from weft import api
from weft.api import examining
from weft.api.configs import config_schema
from weft.api.examining import flops_shares
from weft.comparison.study import read_study
from weft.core.errors import ConfigError, InputError

RUN: dict[str, Any] = {
    "model": {"kind": "decoder", "d_model": 8, "context": 16, "blocks": [{"kind": "pre", "layers": ["lstm"]}]},
    "tokenizer": "bytes", "training": {"steps": 2, "batch_size": 2}, "report": {"eval_batches": 1}}
MODEL = {**RUN["model"], "vocab_size": 257}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"the cat {index % 7} sat on the mat {index % 5}\n" for index in range(200)), "utf-8")
    return str(path)


def kinds(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One configuration in every form."""
    (folder / "run.yaml").write_text(yaml.safe_dump(run), "utf-8")
    return {"path": folder / "run.yaml", "plain data": run, "run": api.read_run(run), "plain data of the model": MODEL,
            "model": api.read_model(MODEL)}


@pytest.mark.parametrize("use", [
    lambda config: api.read_model(config), lambda config: api.plan(config, context=8, batch=1).parameters,
    lambda config: flops_shares(config, context=8)[0].flops,
    lambda config: len(api.pictures(config).figures())], ids=["read_model", "plan", "flops_shares", "pictures"])
def test_every_form_of_a_configuration_is_the_same_model(use: Callable[[Any], object], text: str,
                                                         tmp_path: Path) -> None:
    found = {name: use(given) for name, given in kinds({**RUN, "data": {"path": text}}, tmp_path).items()}
    assert all(each == found["path"] for each in found.values()), found


@pytest.mark.usefixtures("_near")
def test_every_form_is_checked_as_the_same_model(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws take seconds, so they are run on one form, and compared is what they would be run on."""
    forms, given = kinds({**RUN, "data": {"path": text}}, tmp_path), list[Any]()
    assert api.check(forms["path"], length=16).twin.findings
    monkeypatch.setattr(examining, "check_laws", lambda config, **options: given.append((config, options)))
    for form in forms.values():
        api.check(form, length=16)
    assert given == [(api.read_model(MODEL), {"seed": 0, "length": 16, "on_law": None})] * len(forms)


def test_a_run_in_memory_is_planned_as_its_file_is(text: str, tmp_path: Path) -> None:
    run = {**RUN, "data": {"path": text}}
    forms = kinds(run, tmp_path)
    batches = {name: api.plan(forms[name]).batch for name in ("path", "plain data", "run", "model")}
    assert batches == {"path": 2, "plain data": 2, "run": 2, "model": 1}
    wider = {name: api.plan(forms[name], "model.d_model=16").parameters for name in ("path", "plain data", "run")}
    assert len(set(wider.values())) == 1 and wider["run"] != api.plan(run).parameters
    with pytest.raises(InputError, match="cannot be applied to a configuration object"):
        api.plan(forms["model"], "d_model=16")
    with pytest.raises(ConfigError, match=r"d_modle: unknown key 'd_modle'"):
        api.plan({**MODEL, "d_modle": 4})
    assert config_schema(MODEL) == config_schema(forms["model"]) != config_schema(run)


def test_every_form_is_trained_and_compared(text: str, tmp_path: Path) -> None:
    run = {**RUN, "data": {"path": text}}
    forms = kinds(run, tmp_path)
    bits = {name: api.train(forms[name], out=tmp_path / name.replace(" ", "-")).validation
            for name in ("path", "plain data", "run")}
    assert bits["path"] == bits["plain data"] == bits["run"] is not None
    models = {name.replace(" ", "-"): forms[name] for name in ("path", "plain data", "run", "model")}
    result = api.compare(models, out=tmp_path / "study", study={
        "name": "forms", "length": {"steps": 2}, "seeds": 1, "trials": {"count": 1, "learning_rates": None},
        "tokenizer": "bytes", "data": {"path": text}, "training": {"context": 16, "batch_size": 2}})
    assert [entry.name for entry in result.entries] == [*models]
    assert len({entry.bits_per_byte for entry in result.entries}) == 1


def test_a_name_is_given_once_in_a_study() -> None:
    study = {"models": {"a": "lstm"}, "length": {"steps": 2}}
    with pytest.raises(ConfigError, match=r"models\.a: the study has a model of that name already"):
        read_study({"a": RUN, "b": RUN}, study=study)
    assert {*read_study({"b": RUN}, study=study).models} == {"a", "b"}
