"""`weft check` on a configuration finds defects of a plugin, names the layer that has each, and tells it once."""

from __future__ import annotations

from typing import Any

import pytest

from laws.injected import LAYERS, InjectedConfig
from weft import api
from weft.core.config import parse_part
from weft.core.model import ModelConfig
from weft.core.registry import REGISTRY
from weft.laws import LAWS, CheckResult

FOUND = {
    "WrongAtChunkBorder": ("split", 17), "ForgetsAt32": ("split", 33), "ForgetsAt128": ("split", 129),
    "KeepsOnly64Keys": ("split", None), "BlindBeyond1000": ("split", 1001), "OverflowsAt100": ("finite", 101),
    "WrongInFloat32Continuation": ("precision", None), "WrongAbove64": ("split", None),
    "ForgetsSeveralTokens": ("split", None), "LeaksDocuments": ("packed", None),
    "LeaksFuture": ("causality", None), "GrowsUndeclared": ("bounded", None), "LosesField": ("persistence", None),
}
"""The law that is named, and the first wrong token where the defect begins at one."""

OF_A_MODE = {"WrongInTraining": "training", "ReadsOnTheHost": "compile", "SharesForks": "forks"}
"""Defects that one law alone finds, by the name under which it is registered."""


@pytest.fixture(autouse=True)
def _plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin's part is known while a test runs, so that no other test discovers it."""
    REGISTRY.discover()
    monkeypatch.setitem(REGISTRY._parts["mixer"], InjectedConfig.kind, InjectedConfig)


def config(defect: str, **fields: Any) -> ModelConfig:
    """A model whose second block holds the defect, below it a healthy one."""
    blocks = [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}]},
              {"kind": "pre", "layers": ["channel_mix", {"kind": "injected", "defect": defect}]}]
    found = parse_part(("model",), {"kind": "decoder", "vocab_size": 40, "d_model": 72 if defect == "WrongAbove64" else 16, "context": 256,
                                    "norm": "layernorm", "blocks": blocks, **fields})
    assert isinstance(found, ModelConfig)
    return found


def told(result: CheckResult) -> str:
    return "\n".join(str(fault) for fault in result.faults)


def test_there_are_sixteen_of_them() -> None:
    assert len(FOUND) + len(OF_A_MODE) == 16
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


@pytest.mark.parametrize("defect", [defect for defect, law in OF_A_MODE.items() if law in LAWS])
def test_a_defect_that_one_law_finds_is_found(defect: str) -> None:
    result = api.check(config(defect))
    assert [(fault.layer, fault.law) for fault in result.faults] == [(defect, OF_A_MODE[defect])], told(result)
