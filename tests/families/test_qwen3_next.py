"""Qwen3-Next: which layers are of which kind, what is refused, and which rows of a file are queries and gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from interop.huggingface.tiny_folders import stored, write
from weft import api
from weft.core.errors import ConfigError
from weft.families.family import families
from weft.families.template import build_config
from weft.families.tensor_steps import gates_apart

NEXT = families()["qwen3_next"]
FULL, LINEAR = "full_attention", "linear_attention"


def raw(**values: Any) -> dict[str, Any]:
    return {**stored()["qwen3_next"]["config"], **values}


def test_every_fourth_layer_is_attention_unless_the_file_says_otherwise() -> None:
    facts = NEXT.read(raw(num_hidden_layers=8, layer_types=None))[1]
    assert facts["linear"] == [True, True, True, False] * 2
    facts = NEXT.read(raw(num_hidden_layers=4, layer_types=None, full_attention_interval=2))[1]
    assert facts["linear"] == [True, False] * 2
    assert NEXT.write(NEXT.read(raw(layer_types=[FULL, LINEAR]))[0], {})[0]["layer_types"] == [FULL, LINEAR]


@pytest.mark.parametrize(("values", "message"), [
    ({"layer_types": [LINEAR]}, "layer_types: 1 types for 2 layers."),
    ({"layer_types": [LINEAR, "sliding"]}, "layer_types: sliding, but only linear_attention and full_attention can be"),
    ({"layer_types": None, "full_attention_interval": 0}, "full_attention_interval: 0, but it counts layers from one "
     "with attention to the next."),
    ({"hidden_act": "gelu"}, "hidden_act: 'gelu', but only 'silu' can be read. Short convolutions are followed by "
     "SiLU."),
    ({"attention_bias": True}, "attention_bias: True, but only False can be read. Gates have no bias."),
])
def test_what_cannot_be_read_is_said(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NEXT.read(raw(**values))
    assert any(problem.startswith(message) for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(("linear", "missing"), [(True, FULL), (False, LINEAR)])
def test_a_model_of_one_kind_of_layer_does_not_fit(linear: bool, missing: str) -> None:
    facts = NEXT.read(raw())[1]
    problems = NEXT.write(build_config(NEXT.template, {**facts, "linear": [linear] * 2}), {})[2]
    assert f"layer_types: no layer is of the type {missing}, so its sizes are not known." in problems


def test_the_tensors_of_multi_token_prediction_are_left_out(tmp_path: Path) -> None:
    tensors = write(tmp_path, "qwen3_next")
    save_file({**tensors, "mtp.fc.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors",
              metadata={"format": "pt"})
    assert "mtp.fc.weight" not in api.load(tmp_path).model.state_dict()


def test_the_old_spelling_of_rotary_positions_is_read() -> None:
    given = {key: value for key, value in raw().items() if key != "rope_parameters"}
    facts = NEXT.read({**given, "rope_theta": 10000000, "rope_scaling": None, "use_sliding_window": False,
                       "partial_rotary_factor": 0.25})[1]
    assert (facts["rope_base"], facts["rot"]) == (1e7, 2)


def test_a_gate_lies_behind_the_queries_of_its_head() -> None:
    qkv, gates = gates_apart(2, 2, 1).read([torch.arange(8.0), torch.tensor([8.0]), torch.tensor([9.0])])
    assert qkv.tolist() == [0, 1, 4, 5, 8, 9]
    assert gates.tolist() == [2, 3, 6, 7]


def test_rows_of_a_file_come_to_the_heads_they_belong_to(tmp_path: Path) -> None:
    """Two heads of queries and keys of 3 features, with two heads of values of 2 each."""
    tensors = write(tmp_path, "qwen3_next")
    found = api.load(tmp_path).model.state_dict()
    theirs = tensors["model.layers.0.linear_attn.in_proj_qkvz.weight"]
    qkv, gate = (found[f"stack.layers.0.layers.0.{name}.weight"] for name in ("qkv", "gate"))
    assert torch.equal(qkv, torch.cat([theirs[first:first + size] for first, size in
                                       ((0, 3), (14, 3), (3, 3), (17, 3), (6, 4), (20, 4))]))
    assert torch.equal(gate, torch.cat([theirs[10:14], theirs[24:28]]))
    both = tensors["model.layers.0.linear_attn.in_proj_ba.weight"]
    assert torch.equal(found["stack.layers.0.layers.0.rate.weight"], both[[0, 1, 4, 5]])
    assert torch.equal(found["stack.layers.0.layers.0.decay.weight"], both[[2, 3, 6, 7]])
