"""Gemma: what its keys mean, and its embeddings' factor in narrow dtypes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from interop.huggingface.tiny_folders import change_config, stored, write
from weft import api
from weft.core.config import parse_part
from weft.core.errors import CheckpointError
from weft.core.model import ModelConfig
from weft.families.family import families

GEMMA = families()["gemma"]


@pytest.mark.parametrize(("theirs", "ours"), [("gelu", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh"),
                                              ("gelu_python", "gelu"), ("silu", "silu")])
def test_gelu_means_the_tanh_form(theirs: str, ours: str) -> None:
    config, facts = GEMMA.read({**stored()["gemma"]["config"], "hidden_act": theirs})
    assert facts["activation"] == ours
    raw, _, problems = GEMMA.write(config, {})
    assert not problems
    assert raw["hidden_act"] == raw["hidden_activation"] == {"gelu": "gelu_pytorch_tanh"}.get(theirs, theirs)
    assert GEMMA.read(raw)[0] == config


def test_two_keys_that_disagree_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "gemma")
    change_config(tmp_path, hidden_activation="gelu", hidden_act="gelu_new")
    api.load(tmp_path)
    change_config(tmp_path, hidden_activation="relu")
    with pytest.raises(CheckpointError, match="hidden_activation: 'relu', but hidden_act is 'gelu_new'; versions of "
                                              "transformers disagree"):
        api.load(tmp_path)


def test_tokens_that_see_later_ones_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "gemma")
    change_config(tmp_path, use_bidirectional_attention=True)
    with pytest.raises(CheckpointError, match="use_bidirectional_attention: True, but only None or False"):
        api.load(tmp_path)


def test_another_factor_cannot_be_written() -> None:
    data = GEMMA.read(stored()["gemma"]["config"])[0].dump()
    data["embedding"]["scale"] = 2.0
    config = parse_part(("model",), data)
    assert isinstance(config, ModelConfig)
    assert GEMMA.write(config, {})[2] == ["embeddings are scaled by 2.0; this family scales them by sqrt(hidden_size) "
                                          "and has no key for it."]


def test_the_factor_is_rounded_to_the_dtype_first(tmp_path: Path) -> None:
    """sqrt(12) = 3.4641 is 3.46875 in bfloat16; the table times either, rounded once, differs."""
    tensors = write(tmp_path, "gemma")
    model = api.load(tmp_path, dtype="bfloat16").model
    table = tensors["model.embed_tokens.weight"].to(torch.bfloat16)
    found = []
    model.get_submodule("embedding").register_forward_hook(lambda part, given, x: found.append(x))
    model(torch.arange(13)[None])
    assert torch.equal(found[0][0], (table.double() * 3.46875).to(torch.bfloat16))
    assert not torch.equal(found[0][0], (table.double() * math.sqrt(12)).to(torch.bfloat16))
