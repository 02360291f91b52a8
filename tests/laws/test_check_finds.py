"""`weft check` on a configuration finds defects of a plugin, names the layer that has each, and tells it once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from laws.injected import LAYERS, InjectedConfig
from laws.mutants import ForgetsSoftcap
from weft import api
from weft.core.config import parse_part
from weft.core.errors import InputError
from weft.core.model import LanguageModel, ModelConfig
from weft.core.registry import REGISTRY
from weft.heads.readout import LinearReadout
from weft.laws import LAWS, CheckResult, check

FOUND = {
    "WrongAtChunkBorder": ("split", 17), "ForgetsAt32": ("split", 33), "ForgetsAt128": ("split", 129),
    "KeepsOnly64Keys": ("split", None), "BlindBeyond1000": ("split", 1001), "OverflowsAt100": ("finite", 101),
    "WrongInFloat32Continuation": ("continuation", None), "WrongAbove64": ("split", None),
    "ForgetsSeveralTokens": ("split", None), "LeaksDocuments": ("packed", None),
    "LeaksFuture": ("causality", None), "GrowsUndeclared": ("bounded", None), "LosesField": ("persistence", None),
}
"""The law that is named, and the first wrong token where the defect begins at one."""

OF_A_MODE = {"WrongInTraining": "training", "ReadsOnTheHost": "compile", "SharesForks": "forks",
             "KeepsItsMatrix": "rewriting"}
"""Defects that one law alone finds, by the name under which it is registered."""


@pytest.fixture(autouse=True)
def _plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin's part is known while a test runs, so that no other test discovers it."""
    REGISTRY.discover()
    monkeypatch.setitem(REGISTRY._parts["mixer"], InjectedConfig.kind, InjectedConfig)


def model(tree: dict[str, Any]) -> ModelConfig:
    found = parse_part(("model",), tree)
    assert isinstance(found, ModelConfig)
    return found


def config(defect: str) -> ModelConfig:
    """A model whose second block holds the defect, below it a healthy one."""
    blocks = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}]},
              {"kind": "pre", "layers": ["channel_mix", {"kind": "injected", "defect": defect}]}]
    width = 72 if defect == "WrongAbove64" else 16
    return model({"kind": "decoder", "vocab_size": 40, "d_model": width, "context": 256, "norm": "layernorm",
                  "blocks": blocks})


def told(result: CheckResult) -> str:
    return "\n".join(str(fault) for fault in result.faults)


def test_there_are_seventeen_of_them() -> None:
    assert len(FOUND) + len(OF_A_MODE) == 17
    assert {*FOUND, *OF_A_MODE} == set(LAYERS) - {"Average", "Raises"}


def test_a_healthy_plugin_obeys() -> None:
    result = api.check(config("Average"))
    assert result.holds and not result.faults, told(result)


@pytest.mark.parametrize("defect", FOUND)
def test_a_defect_is_found_named_and_told_once(defect: str) -> None:
    result = api.check(config(defect))
    law, token = FOUND[defect]
    assert not result.holds
    assert [(fault.layer, fault.path) for fault in result.faults] == [(defect, "stack.layers.1.layers.1")], told(result)
    fault, = result.faults
    assert fault.law == law, told(result)
    assert fault.means and fault.cause and fault.count >= 1
    assert token is None or fault.worst.token == token, told(result)


@pytest.mark.parametrize("defect", OF_A_MODE)
def test_a_defect_is_found_by_its_law_and_by_no_other(defect: str) -> None:
    result = api.check(config(defect))
    if OF_A_MODE[defect] not in LAWS:
        assert result.holds, told(result)
        return
    assert [(fault.layer, fault.law) for fault in result.faults] == [(defect, OF_A_MODE[defect])], told(result)


def test_what_a_part_raises_is_a_finding() -> None:
    result = api.check(config("Raises"))
    fault, = result.faults
    assert (fault.layer, fault.law) == ("Raises", "packed"), told(result)
    assert fault.cause == "it raised ValueError: documents are not supported"


def test_a_layer_that_stands_twice_is_told_once() -> None:
    repeated = config("LeaksFuture").dump()
    repeated["blocks"] = [{"repeat": 2, "of": repeated["blocks"]}]
    result = api.check(model(repeated))
    assert [fault.path for fault in result.faults] == ["stack.layers.1.layers.1 and 1 more like it"], told(result)


def test_two_defects_are_told_apart() -> None:
    both = config("LeaksFuture").dump()
    both["blocks"][0]["layers"].append({"kind": "injected", "defect": "ForgetsAt32"})
    result = api.check(model(both))
    assert [(fault.layer, fault.law) for fault in result.faults] == [("LeaksFuture", "causality"),
                                                                     ("ForgetsAt32", "split")], told(result)


def test_what_no_layer_shows_is_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A readout is no layer."""
    monkeypatch.setattr(LinearReadout, "log_prob", ForgetsSoftcap.log_prob)
    result = api.check(model({**config("Average").dump(), "readout": {"kind": "linear", "softcap": 0.2}}))
    assert [(fault.layer, fault.law) for fault in result.faults] == [("Decoder", "readout")], told(result)


def test_a_trained_model_is_checked_past_its_borders() -> None:
    """At its own width, dtype and context."""
    config_ = config("WrongAtChunkBorder")
    torch.manual_seed(0)
    built = config_.build()
    assert isinstance(built, LanguageModel)
    result = check(config_, built)
    assert result.own is not None and result.own.holds, "eleven tokens do not show it"
    assert result.own_long is not None and result.own_long.steps == 386
    worst = next(finding for finding in result.own_long.broken() if finding.law == "split")
    assert worst.token == 17 and worst.bound == 5e-4
    assert [(fault.layer, fault.law) for fault in result.faults] == [("WrongAtChunkBorder", "split")], told(result)


def test_a_model_that_chooses_is_judged_up_to_its_near_ties() -> None:
    experts = {"kind": "moe", "n_experts": 4, "top_k": 2, "expert": {"kind": "glu", "d_ff": 24}}
    tree = {**config("Average").dump(), "blocks": [{"kind": "pre", "layers": ["gru", experts]}]}
    torch.manual_seed(0)
    built = model(tree).build()
    assert isinstance(built, LanguageModel)
    result = check(model(tree), built)
    assert result.holds and result.own_long is not None, told(result)
    assert {finding.law for finding in result.own_long.findings} == {"finite", "split"}
    assert any("widest choice" in finding.case for finding in result.own_long.findings)


def test_the_length_of_the_rows_can_be_asked_for() -> None:
    result = api.check("ngram", length=900)
    assert result.long.steps == result.far.steps == 900 and result.holds
    with pytest.raises(InputError, match=r"length: 15 tokens are too few to cut\. Give 16 or more, or leave it out\."):
        api.check("ngram", length=15)


def test_the_command_tells_a_defect_in_eighty_columns(tmp_path: Path) -> None:
    plugin, file = tmp_path / "plugin.py", tmp_path / "model.json"
    plugin.write_text("from laws.injected import InjectedConfig\nfrom weft.core.registry import register\n"
                      "register(InjectedConfig)\n")
    file.write_text(json.dumps(config("WrongAtChunkBorder").dump()))
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": os.pathsep.join([str(tests.parent / "src"), str(tests)])}
    done = subprocess.run([sys.executable, "-m", "weft", "check", str(file), "--plugin", str(plugin)],
                          capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert done.returncode == 1, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    plain = " ".join(done.stdout.split())
    assert "WrongAtChunkBorder, at stack.layers.1.layers.1 breaks split: a sequence run in pieces must equal" in plain
    assert "first at token 17" in plain and "all is well for 16 tokens" in plain
    assert "1 defect breaks a law" in plain
    assert plain.count("WrongAtChunkBorder") == 1 and "Traceback" not in done.stdout + done.stderr
