"""Every way in which such a folder can be wrong, and what is said about it."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from interop.huggingface.tiny_folders import change_config, write
from weft import api
from weft.core.errors import CheckpointError, WeftError


def message(folder: Path, *, strict: bool = False) -> str:
    with pytest.raises(CheckpointError) as caught:
        api.load(folder, strict=strict)
    return str(caught.value)


def sharded(folder: Path) -> dict[str, str]:
    """A folder of two shards; the shard of each tensor."""
    tensors = write(folder)
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in places if places[name] == file}, folder / file)
    write_index(folder, places)
    return places


def write_index(folder: Path, places: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def with_tensors(folder: Path, changes: dict[str, Tensor | None]) -> None:
    tensors = {**write(folder), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / "model.safetensors")


def test_an_unknown_family(tmp_path: Path) -> None:
    write(tmp_path)
    change_config(tmp_path, model_type="lama")
    assert re.search(r"is of the family 'lama', which is not known here\. Did you mean 'llama'\? Known families: "
                     ".*gpt2", message(tmp_path))


def test_no_family(tmp_path: Path) -> None:
    write(tmp_path)
    change_config(tmp_path, model_type=None, architectures=["Nobody"])
    assert "the model has no model_type" in message(tmp_path)


def test_the_class_names_the_family_where_nothing_else_does(tmp_path: Path) -> None:
    write(tmp_path)
    change_config(tmp_path, model_type=None)
    assert api.load(tmp_path).facts["family"] == "llama"


def test_every_key_that_cannot_be_read_is_listed(tmp_path: Path) -> None:
    write(tmp_path)
    change_config(tmp_path, hidden_sizes=12, hidden_act="made_up", num_hidden_layers="two", is_encoder_decoder=True,
                  quantization_config={"bits": 4}, architectures=["LlamaForSequenceClassification"],
                  rope_parameters={"rope_type": "yarm"})
    said = message(tmp_path)
    for part in ("hidden_sizes: unknown key. Did you mean 'hidden_size'?", "hidden_act: 'made_up' is not known here",
                 "num_hidden_layers: 'two' is not a whole number",
                 "is_encoder_decoder: True, but only False can be read",
                 "quantization_config: {'bits': 4}, but only None can be read. Its weights are quantised",
                 "architectures: LlamaForSequenceClassification, but only LLaMAForCausalLM, LlamaForCausalLM",
                 "rope_parameters: no scaling is called 'yarm'. Did you mean 'yarn'?"):
        assert part in said, part


@pytest.mark.parametrize(("parameters", "said"), [
    ({"rope_type": "llama3", "factor": 2.0}, "for 'llama3' high_freq_factor is missing; low_freq_factor is missing."),
    ({"rope_type": "linear", "factor": 2.0, "fctor": 1}, "for 'linear' 'fctor' is unknown. Did you mean 'factor'?"),
    ({"full_attention": {"rope_theta": 1e4}}, "differs between layers (full_attention), which this family cannot have"),
    ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5, but in this family all feat"),
    ({"rope_theta": "big"}, "rope_parameters.rope_theta: 'big' is not a number"),
    ([1.0], "rope_parameters: [1.0] is not a mapping")])
def test_rotary_positions_that_cannot_be_read(parameters: object, said: str, tmp_path: Path) -> None:
    write(tmp_path)
    change_config(tmp_path, rope_parameters=parameters)
    assert said in message(tmp_path)


@pytest.mark.parametrize(("values", "said"), [
    ({"layer_types": ["full_attention", "chunked"]}, "layer_types: chunked, but only full_attention and sliding"),
    ({"layer_types": ["full_attention"]}, "layer_types: 1 types for 2 layers"),
    ({"layer_types": ["sliding_attention"] * 2}, "some are sliding_attention, but sliding_window, their width")])
def test_layer_types_that_cannot_be_read(values: dict[str, object], said: str, tmp_path: Path) -> None:
    write(tmp_path, "qwen2")
    change_config(tmp_path, **values)
    assert said in message(tmp_path)


def test_values_that_no_model_has(tmp_path: Path) -> None:
    write(tmp_path)
    change_config(tmp_path, num_key_value_heads=2)
    assert "3 query heads do not divide into 2 key/value heads" in message(tmp_path)


def test_code_in_the_folder_is_never_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path)
    (tmp_path / "modeling.py").write_text("raise SystemExit('I was run')")
    change_config(tmp_path, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    with caplog.at_level(logging.WARNING):
        api.load(tmp_path)
    assert "auto_map: the folder contains Python code, which is never run" in caplog.text


def test_no_weights(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert "no weights: neither model.safetensors nor pytorch_model.bin" in message(tmp_path)


def test_shards_without_an_index(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert "2 shards such as model-00001-of-00002.safetensors, but no model.safetensors.index.json" in message(tmp_path)


def test_a_missing_shard(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert "1 file cannot be used:\n  - model-00002-of-00002.safetensors: missing." in message(tmp_path)


def test_an_index_that_promises_too_much(tmp_path: Path) -> None:
    places = sharded(tmp_path)
    write_index(tmp_path, {**places, "model.extra": "model-00001-of-00002.safetensors"})
    assert "model.extra: the index has it, its file has not" in message(tmp_path)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", ".."])
def test_an_index_that_leads_out(name: str, tmp_path: Path) -> None:
    places = sharded(tmp_path)
    write_index(tmp_path, {**places, "model.extra": name})
    assert f"{name}: the index names a file outside the folder" in message(tmp_path)


@pytest.mark.parametrize("text", ["{", '{"weight_map": 3}', "[]"])
def test_a_damaged_index(text: str, tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    assert "the index is damaged" in message(tmp_path)


def test_a_truncated_file(tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "model.safetensors: damaged or truncated" in message(tmp_path)


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    write(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "elsewhere")
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    assert "out of the folder. Copy the file itself" in message(tmp_path / "model")


def test_the_links_of_the_hubs_cache(tmp_path: Path) -> None:
    folder, blobs = tmp_path / "models--a--b" / "snapshots" / "123", tmp_path / "models--a--b" / "blobs"
    write(folder)
    blobs.mkdir()
    (folder / "model.safetensors").rename(blobs / "abc")
    (folder / "model.safetensors").symlink_to(Path("../../blobs/abc"))
    assert api.load(folder).facts["family"] == "llama"


def test_everything_about_tensors_is_one_error(tmp_path: Path) -> None:
    with_tensors(tmp_path, {"model.norm.weight": None, "model.nrm.weight": torch.ones(12),
                            "model.layers.0.mlp.up_proj.weight": torch.ones(3, 12),
                            "model.layers.1.mlp.up_proj.weight": torch.full((10, 12), torch.nan),
                            "model.layers.0.mlp.down_proj.weight": torch.ones(12, 10, dtype=torch.int8),
                            "lm_head.weight": torch.zeros(13, 12), "embed_tokens.weight": torch.ones(13, 12)})
    assert "6 tensors cannot be used" in message(tmp_path)  # NaN is looked for on request
    said = message(tmp_path, strict=True)
    assert said.count("\n  - ") == 7
    for part in ("7 tensors cannot be used", "model.norm.weight: missing, shape [12].",
                 "model.nrm.weight: unexpected. Did you mean 'model.norm.weight'?",
                 "model.layers.0.mlp.up_proj.weight: shape [3, 12] where the configuration gives [10, 12].",
                 "model.layers.1.mlp.up_proj.weight: holds NaN.",
                 "model.layers.0.mlp.down_proj.weight: its numbers are I8; only float64",
                 "model.embed_tokens.weight: a second tensor for model.embed_tokens.weight",
                 "lm_head.weight: differs from model.embed_tokens.weight, though the configuration ties them"):
        assert part in said, part


def test_a_pickle_that_would_run_code(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"a": Path("x")}, tmp_path / "pytorch_model.bin")
    assert "the file holds more than tensors" in message(tmp_path)


@pytest.mark.parametrize(("content", "said"), [([torch.ones(1)], "not a mapping from names to tensors"),
                                               ({"a": 1}, "not a mapping from names to tensors")])
def test_a_pickle_of_something_else(content: object, said: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(content, tmp_path / "pytorch_model.bin")
    assert said in message(tmp_path)


def test_a_damaged_pickle(tmp_path: Path) -> None:
    tensors = write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    (tmp_path / "pytorch_model.bin").write_bytes((tmp_path / "pytorch_model.bin").read_bytes()[:-300])
    assert "pytorch_model.bin: the file" in message(tmp_path)


def test_a_tokenizer_that_is_too_large(tmp_path: Path) -> None:
    from weft.tokenizers import BPETokenizer

    write(tmp_path)
    BPETokenizer.train(["some text"], 257).save(tmp_path)
    (tmp_path / "weft_tokenizer.json").unlink()
    with pytest.raises(WeftError, match="the tokenizer BPE-257 has 257 ids, while the model's vocabulary has 13"):
        api.load(tmp_path)


def test_a_damaged_configuration(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    assert "generation_config.json: the file is damaged" in message(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeftError, match="the file is damaged"):
        api.load(tmp_path)
