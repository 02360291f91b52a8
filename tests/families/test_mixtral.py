"""Mixtral: experts stored together, and its router's losses."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from interop.huggingface.tiny_folders import change_config, stored, write
from weft import api
from weft.core.errors import CheckpointError
from weft.families.family import families

MIXTRAL = families()["mixtral"]
EXPERTS = 3


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as transformers 5 holds them in memory."""
    found = {name: tensor for name, tensor in tensors.items() if "block_sparse_moe" not in name}
    for layer in range(2):
        old, new = f"model.layers.{layer}.block_sparse_moe", f"model.layers.{layer}.mlp"
        w1, w2, w3 = ([tensors[f"{old}.experts.{n}.{name}.weight"] for n in range(EXPERTS)]
                      for name in ("w1", "w2", "w3"))
        found[f"{new}.gate.weight"] = tensors[f"{old}.gate.weight"]
        found[f"{new}.experts.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(w1, w3, strict=True)])
        found[f"{new}.experts.down_proj"] = torch.stack(w2)
    return found


def test_experts_that_are_stored_together_are_the_same_model(tmp_path: Path) -> None:
    tensors = write(tmp_path / "apart", "mixtral")
    write(tmp_path / "together", "mixtral")
    save_file(stacked(tensors), tmp_path / "together" / "model.safetensors", metadata={"format": "pt"})
    apart, together = (api.load(tmp_path / name).model.state_dict() for name in ("apart", "together"))
    assert apart.keys() == together.keys()
    assert all(torch.equal(tensor, together[name]) for name, tensor in apart.items())


def test_a_tensor_that_is_missing_is_named_in_the_file_s_own_form(tmp_path: Path) -> None:
    tensors = stacked(write(tmp_path, "mixtral"))
    del tensors["model.layers.1.mlp.experts.down_proj"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model.layers.1.mlp.experts.down_proj: missing, shape \[3, 12, 8\]"):
        api.load(tmp_path)


def test_the_balancing_loss_is_the_file_s_coefficient_shared_out() -> None:
    """k/L of it to each layer: 2 choices, 2 layers."""
    raw = {**stored()["mixtral"]["config"], "router_aux_loss_coef": 0.037}
    config, facts = MIXTRAL.read(raw)
    assert facts["balance_loss"] == 0.037 * 2 / 2
    assert MIXTRAL.write(config, {})[0]["router_aux_loss_coef"] == 0.037
    deeper, _ = MIXTRAL.read({**raw, "num_hidden_layers": 3})
    assert MIXTRAL.read(MIXTRAL.write(deeper, {})[0])[0] == deeper


def test_noise_that_weft_does_not_add_is_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "mixtral")
    with caplog.at_level(logging.WARNING):
        api.load(tmp_path)
    assert "router_jitter_noise" not in caplog.text
    change_config(tmp_path, router_jitter_noise=0.1)
    with caplog.at_level(logging.WARNING):
        api.load(tmp_path)
    assert "router_jitter_noise: noise on the experts' input in training" in caplog.text


@pytest.mark.parametrize(("family", "heads", "default"), [("mixtral", 16, 8), ("mistral", 16, 8), ("llama", 3, 3)])
def test_no_number_of_key_value_heads_is_not_the_default(family: str, heads: int, default: int) -> None:
    """Null: as many as there are heads; no key: what the class assumes."""
    read = families()[family].read
    sizes = {"hidden_size": 12 * heads, "num_attention_heads": heads}
    assert read({**sizes, "num_key_value_heads": None})[1]["n_kv_heads"] == heads
    assert read(sizes)[1]["n_kv_heads"] == default
