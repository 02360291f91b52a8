"""gpt-oss: what its keys say, what is refused, and files in the published spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from interop.huggingface.tiny_folders import change_config, stored, write
from weft import api
from weft.core.errors import CheckpointError, ConfigError
from weft.families.family import families
from weft.families.template import build_config
from weft.interop.huggingface.writing import fit

GPT_OSS = families()["gpt_oss"]
FULL, SLIDING = "full_attention", "sliding_attention"


def raw(**values: Any) -> dict[str, Any]:
    return {**stored()["gpt_oss"]["config"], **values}


def test_a_configuration_is_written_as_it_is_read_and_for_its_own_class() -> None:
    config = GPT_OSS.read(raw())[0]
    written = fit(config, {})
    assert written.family.name == "gpt_oss"
    assert GPT_OSS.read(written.raw)[0] == config


def test_layers_take_turns_beginning_with_a_window() -> None:
    facts = GPT_OSS.read(raw(num_hidden_layers=4, layer_types=None))[1]
    assert facts["masks"] == ["causal & window(3)", "causal"] * 2
    assert GPT_OSS.write(GPT_OSS.read(raw(layer_types=[FULL, SLIDING]))[0], {})[0]["layer_types"] == [FULL, SLIDING]


def test_a_configuration_that_names_no_scaling_has_that_of_its_class() -> None:
    given = {key: value for key, value in raw().items() if not key.startswith("rope")}
    facts = GPT_OSS.read(given)[1]
    assert facts["rope_base"] == 150000.0
    assert facts["rope_scaling"] == {"kind": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                     "truncate": False, "original_length": 4096}


@pytest.mark.parametrize(("values", "message"), [
    ({"swiglu_alpha": 1.5}, "swiglu_alpha: 1.5 is not known here."),
    ({"layer_types": [SLIDING]}, "layer_types: 1 types for 2 layers."),
    ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config: {'quant_method': 'mxfp4'}, but only "
     "None can be read. Its weights are quantised: convert an unquantised version. transformers makes one of MXFP4 "
     "files: load them with quantization_config=Mxfp4Config(dequantize=True) and dtype=torch.bfloat16, and write them "
     "with save_pretrained."),
])
def test_what_cannot_be_read_is_said_with_what_to_do(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GPT_OSS.read(raw(**values))
    assert any(problem.startswith(message) for problem in caught.value.problems), caught.value.problems


def test_a_quantised_folder_is_refused_before_its_tensors_are_read(tmp_path: Path) -> None:
    write(tmp_path, "gpt_oss")
    change_config(tmp_path, quantization_config={"quant_method": "mxfp4"})
    with pytest.raises(CheckpointError, match=r"Mxfp4Config\(dequantize=True\)"):
        api.load(tmp_path)


def test_bfloat16_files_are_read_as_they_are(tmp_path: Path) -> None:
    tensors = write(tmp_path, "gpt_oss")
    narrow = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(narrow, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = api.load(tmp_path).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    found, theirs = model.state_dict(), narrow["model.layers.1.mlp.experts.gate_up_proj"]
    for n in range(3):
        for part, name in enumerate(("gate", "up")):
            own = found[f"stack.layers.1.layers.1.experts.{n}.{name}.weight"]
            assert torch.equal(own, theirs[n, :, part::2].T)
    assert torch.equal(found["stack.layers.0.layers.0.sinks"], narrow["model.layers.0.self_attn.sinks"])


@pytest.mark.parametrize(("changes", "message"), [
    ({"limit": None}, "swiglu_limit: experts have no limit; its class cuts their factors off at one."),
    ({"activation": "gelu"}, "swiglu_alpha: cannot express 'gelu'; its values are 'quick_gelu', 'silu'."),
])
def test_units_that_the_class_does_not_have_are_refused(changes: dict[str, Any], message: str) -> None:
    facts = {**GPT_OSS.read(raw())[1], **changes}
    assert GPT_OSS.write(build_config(GPT_OSS.template, facts), {})[2] == [message]
