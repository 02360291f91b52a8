"""`weft check` on a configuration finds the defects of a plugin, and names the layer of each and its law, once.

A check takes seconds, most of them for what does not depend on the defects, so several defects share a model. In one
model each breaks a law of its own (`found_alone`), so that the model as a whole shows each of them by itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fresh import NEAR, Fresh, check_near
from fresh import weft_near as command
from laws.injected import LAYERS, InjectedConfig
from laws.mutants import ForgetsSoftcap
from weft import api
from weft.cli.check import _print
from weft.core.config import parse_part
from weft.core.errors import InputError
from weft.core.model import LanguageModel, ModelConfig
from weft.core.registry import REGISTRY
from weft.heads.readout import LinearReadout
from weft.laws import LAWS, CheckResult, Fault, check

FOUND = {
    "LeaksDocuments": ("packed", 11, None), "GrowsUndeclared": ("bounded", 11, None),
    "KeepsItsMatrix": ("rewriting", 11, None), "WrongInTraining": ("training", 11, None),
    "WrongInFloat32Continuation": ("continuation", 11, None), "OverflowsAt100": ("finite", 386, 101),
    "SharesForks": ("forks", 11, None), "LosesField": ("persistence", 11, None), "Raises": ("packed", 11, None),
    "BlindBeyond1000": ("split", NEAR, 1001),
    "WrongAbove64": ("split", 11, None), "ReadsOnTheHost": ("compile", 11, None),
    "ForgetsSeveralTokens": ("split", 11, None), "LeaksFuture": ("causality", 11, None),
    "ForgetsAt32": ("split", 386, 33), "ForgetsAt128": ("split", 386, 129), "KeepsOnly64Keys": ("split", 386, None),
    "WrongAtChunkBorder": ("split", 386, 17),
}
"""The law that is named, the tokens of the rows that show it, and the first wrong token where the defect begins at
one."""

SHORT = ("LeaksDocuments", "GrowsUndeclared", "KeepsItsMatrix", "WrongInTraining", "WrongInFloat32Continuation",
         "OverflowsAt100")
FAR = ("BlindBeyond1000", "SharesForks", "LosesField", "Raises")
"""Each are defects that break different laws, or one law on rows of different lengths."""

TOGETHER = ("KeepsOnly64Keys", "ForgetsAt32", "ForgetsAt128", "ForgetsSeveralTokens", "LeaksFuture")
"""Defects that break one law, several of them on rows of one length, which the layers alone tell apart."""


@pytest.fixture(autouse=True)
def _plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin's part is known while a test runs, so that no other test discovers it. Checks read near rows."""
    check_near(monkeypatch, traced=True)
    REGISTRY.discover()
    monkeypatch.setitem(REGISTRY._parts["mixer"], InjectedConfig.kind, InjectedConfig)


def model(tree: dict[str, Any]) -> ModelConfig:
    found = parse_part(("model",), tree)
    assert isinstance(found, ModelConfig)
    return found


def block(*layers: Any) -> dict[str, Any]:
    return {"kind": "pre", "layers": list(layers)}


ATTENTION = {"kind": "attention", "n_heads": 2}
"""Healthy. Its state grows, so that the law of stability, which takes longest, does not run on a model with it."""


def injected(defect: str) -> dict[str, Any]:
    return {"kind": "injected", "defect": defect}


def config(*blocks: dict[str, Any], d_model: int = 16, **fields: Any) -> ModelConfig:
    return model({"kind": "decoder", "vocab_size": 40, "d_model": d_model, "context": 256, "norm": "layernorm",
                  "blocks": list(blocks), **fields})


def told(result: CheckResult) -> str:
    return "\n".join(str(fault) for fault in result.faults)


def named(result: CheckResult) -> dict[str, Fault]:
    """The faults by layer, of which each has one."""
    found = {fault.layer: fault for fault in result.faults}
    assert len(found) == len(result.faults), told(result)
    return found


def require_found(result: CheckResult, places: dict[str, str]) -> None:
    """Each defect is named once, at its place, with its law, the length of the rows and the first wrong token."""
    found = named(result)
    assert {layer: fault.path for layer, fault in found.items()} == places, told(result)
    for layer, fault in found.items():
        law, steps, token = FOUND[layer]
        assert (fault.law, fault.steps) == (law, steps), told(result)
        assert fault.means and fault.cause and fault.count >= 1
        assert token is None or fault.worst.token == token, told(result)


def found_alone(fault: Fault, result: CheckResult) -> bool:
    """Whether no other layer breaks its law on rows of this length or shorter ones."""
    return not any(fault.law in other.laws and other.steps <= fault.steps
                   for other in result.faults if other is not fault)


def test_every_defect_is_tried() -> None:
    tried = {*SHORT, *FAR, *TOGETHER, "WrongAbove64", "ReadsOnTheHost", "WrongAtChunkBorder"}
    assert tried == set(FOUND) == set(LAYERS) - {"Average"}


@pytest.fixture
def _without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing layers takes as long as all other laws, and says nothing of a wrong state. What the compiler refuses, and
    that it takes what is healthy, one test shows."""
    monkeypatch.delitem(LAWS, "compile")


@pytest.mark.usefixtures("_without_compiler")
def test_a_defect_on_short_rows_is_found_by_its_law_named_and_told_once() -> None:
    result = api.check(config(block(ATTENTION), *(block(injected(defect)) for defect in SHORT)))
    require_found(result, {defect: f"stack.layers.{index}.layers.0" for index, defect in enumerate(SHORT, 1)})
    assert all(found_alone(fault, result) for fault in result.faults), told(result)


@pytest.mark.usefixtures("_without_compiler")
def test_a_defect_on_far_rows_or_in_states_is_found_by_its_law_named_and_told_once() -> None:
    result = api.check(config(*(block(injected(defect)) for defect in FAR)))
    require_found(result, {defect: f"stack.layers.{index}.layers.0" for index, defect in enumerate(FAR)})
    assert all(found_alone(fault, result) for fault in result.faults), told(result)
    assert named(result)["Raises"].cause.startswith(
        "it raised ValueError: documents are not supported, in a call of 11 tokens in float64 with documents")


@pytest.mark.usefixtures("_without_compiler")
def test_defects_that_break_one_law_are_told_apart_and_one_that_stands_twice_is_told_once() -> None:
    *once, twice = TOGETHER
    result = api.check(config(block(ATTENTION), *(block(injected(defect)) for defect in once),
                              {"repeat": 2, "of": [block("channel_mix", injected(twice))]}))
    places = {defect: f"stack.layers.{index}.layers.0" for index, defect in enumerate(once, 1)}
    require_found(result, places | {twice: f"stack.layers.{len(once) + 1}.layers.1 and 1 more like it"})


def test_defects_at_a_width_and_of_the_compiler_and_what_no_layer_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A readout is no layer: its defect is the model's own."""
    monkeypatch.setattr(LinearReadout, "log_prob", ForgetsSoftcap.log_prob)
    result = api.check(config(block(ATTENTION, injected("ReadsOnTheHost")), block(injected("WrongAbove64")),
                              d_model=72, readout={"kind": "linear", "softcap": 0.2}))
    own = [fault for fault in result.faults if fault.layer == "Decoder"]
    assert [fault.law for fault in own] == ["readout"], told(result)
    found = {fault.layer: (fault.path, fault.law) for fault in result.faults if fault not in own}
    assert found == {"ReadsOnTheHost": ("stack.layers.0.layers.1", "compile"),
                     "WrongAbove64": ("stack.layers.1.layers.0", "split")}, told(result)
    assert all(found_alone(fault, result) for fault in result.faults), told(result)


@pytest.mark.usefixtures("_without_compiler")
def test_a_trained_model_is_checked_past_its_borders_and_its_defect_printed_in_eighty_columns(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """At its own width, dtype and context."""
    defect = "WrongAtChunkBorder"
    config_ = config(block(ATTENTION), block("channel_mix", injected(defect)))
    torch.manual_seed(0)
    built = config_.build()
    assert isinstance(built, LanguageModel)
    result = check(config_, built)
    assert result.own is not None and result.own.holds, "eleven tokens do not show it"
    assert result.own_long is not None and result.own_long.steps == 386
    worst = next(finding for finding in result.own_long.broken() if finding.law == "split")
    assert worst.token == 17 and worst.bound == 5e-4
    require_found(result, {defect: "stack.layers.1.layers.1"})

    monkeypatch.setenv("COLUMNS", "80")
    _print(result)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    plain = " ".join(out.split())
    assert f"{defect}, at stack.layers.1.layers.1 breaks split: a sequence run in pieces must equal" in plain
    assert "first at token 17" in plain and "the first 16 tokens are right" in plain
    assert plain.count(defect) == 1 and "1 defect breaks a law" in plain


@pytest.mark.usefixtures("_without_compiler")
def test_a_healthy_plugin_obeys_beside_experts_that_are_judged_up_to_their_near_ties() -> None:
    experts = {"kind": "moe", "n_experts": 4, "top_k": 2, "expert": {"kind": "glu", "d_ff": 24}}
    healthy = config(block(ATTENTION, injected("Average"), experts))
    torch.manual_seed(0)
    built = healthy.build()
    assert isinstance(built, LanguageModel)
    result = check(healthy, built)
    assert result.holds and not result.faults and result.own_long is not None, told(result)
    assert {finding.law for finding in result.own_long.findings} == {"finite", "split"}
    assert any("widest choice" in finding.case for finding in result.own_long.findings)


def test_the_length_of_the_rows_can_be_asked_for() -> None:
    result = api.check("ngram", length=900)
    assert result.long.steps == result.far.steps == 900 and result.holds
    with pytest.raises(InputError, match=r"length: 15 tokens are too few to cut\. Give 16 or more, or leave it out\."):
        api.check("ngram", length=15)


def test_the_command_reports_the_defect_of_a_plugin_and_fails(tmp_path: Path) -> None:
    plugin, file = tmp_path / "plugin.py", tmp_path / "model.json"
    plugin.write_text("from laws.injected import InjectedConfig\nfrom weft.core.registry import register\n"
                      "register(InjectedConfig)\n")
    file.write_text(json.dumps(config(block(ATTENTION, injected("OverflowsAt100"))).dump()))
    done = Fresh(command, "check", str(file), "--plugin", str(plugin), folder=tmp_path,
                 environment={"COLUMNS": "80"}).end()
    assert done.returncode == 1, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    plain = " ".join(done.stdout.split())
    assert "OverflowsAt100, at stack.layers.0.layers.1 breaks finite: outputs must be numbers" in plain
    assert "1 defect breaks a law" in plain
    assert plain.count("OverflowsAt100") == 1 and "Traceback" not in done.stdout + done.stderr
