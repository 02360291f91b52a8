"""Writing: what fits and what does not, shards, dtypes, tokenizers, pooled heads, and folders that stay untouched."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from interop.huggingface.tiny_folders import write
from weft import api
from weft.checkpoints import save_checkpoint
from weft.cli.main import app
from weft.core.config import parse_part
from weft.core.errors import FailedError, InputError, OccupiedError, UnsupportedError
from weft.core.model import LanguageModel, ModelConfig
from weft.interop import convert as convert_module
from weft.interop.convert import parse_size
from weft.interop.pooling import pool_heads
from weft.tokenizers import BPETokenizer, ByteTokenizer


def model_of(attention: Mapping[str, Any] | None = None, norm: str = "rmsnorm",
             feedforward: Any = "glu", **top: Any) -> LanguageModel:
    attend = {"kind": "attention", "n_heads": 4, "position": "rope", **(attention or {})}
    blocks = [{"repeat": 3, "of": [{"kind": "pre", "norm": norm, "layers": [attend, feedforward]}]}]
    config = parse_part(("model",), {"kind": "decoder", "vocab_size": 300, "context": 32, "d_model": 32, "norm": norm,
                                     "blocks": blocks, **top})
    assert isinstance(config, ModelConfig)
    torch.manual_seed(0)
    model = config.build()
    assert isinstance(model, LanguageModel)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@pytest.mark.parametrize(("model", "family"), [
    (model_of(), "llama"), (model_of({"position": {"kind": "rope", "layout": "half_split"}}), "llama"),
    (model_of({"bias": "qkv"}), "qwen2"), (model_of({"qk_norm": "rmsnorm", "n_kv_heads": 2}), "qwen3"),
    (model_of({"mask": "causal & window(5)"}), "mistral"), (model_of({"n_heads": 5, "d_head": 6}), "mistral"),
    (model_of({"position": {"kind": "rope", "scaling": {"kind": "ntk", "factor": 4.0}}}), "llama"),
    (model_of({"position": "none", "bias": "all"}, "layernorm", "mlp", position="learned"), "gpt2")],
    ids=["interleaved", "half-split", "biased", "normed", "windowed", "undivided", "ntk", "learned"])
def test_weft_models_find_the_class_that_can_hold_them(model: LanguageModel, family: str, tmp_path: Path) -> None:
    """Interleaved pairs are put in the order of the files, norms of queries and keys with them."""
    save_checkpoint(tmp_path / "a", model, None)
    done = api.convert(tmp_path / "a", tmp_path / "b", to="hf")
    assert done.family == family
    assert done.difference < 2e-5  # sums in another order
    assert done.dtype == "float32"


def refusal(model: LanguageModel, folder: Path, family: str | None = None) -> str:
    save_checkpoint(folder / "a", model, None, replace=True)
    with pytest.raises(UnsupportedError) as caught:
        api.convert(folder / "a", folder / "b", to="hf", family=family)
    assert not (folder / "b").exists()
    return str(caught.value)


def test_what_does_not_fit_is_listed_once_for_all_blocks(tmp_path: Path) -> None:
    model = model_of({"position": "alibi", "mask": "causal | prefix"})
    assert "native classes can express this model; the nearest is 'mistral'" in refusal(model, tmp_path)
    said = refusal(model, tmp_path, "llama")
    assert "blocks.*.layers.0.position: 'alibi' where the family has 'rope'. (3 blocks)" in said
    assert "blocks.*.layers.0.mask: 'causal | prefix' where the family has 'causal'. (3 blocks)" in said


@pytest.mark.parametrize(("model", "family", "said"), [
    (model_of({"n_heads": 5, "d_head": 6}), "llama",
     "hidden_size: LlamaConfig refuses 32, which 5 heads do not divide"),
    (model_of({"position": {"kind": "rope", "rot": 4}}), "llama", "4 of 8 features are rotary; in this family all"),
    (model_of({"position": {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}}}),
     "llama", "'dynamic' scaling begins at 8 tokens; the file has only the context, 32"),
    (model_of({"mask": "causal & dilated(3, 2)"}), "mistral", "cannot express the mask 'causal & dilated(3, 2)'"),
    (model_of({"bias": "output"}), "llama", "attention_bias: cannot express 'output'; its values are 'all', 'none'"),
    (model_of(feedforward={"kind": "glu", "activation": "sigmoid", "bias": True}), "qwen2",
     "blocks.*.layers.1.bias: True where the family has False"),
    (model_of({"position": "none", "bias": "all", "scores": {"scale": 0.3}}, "layernorm", "mlp", position="learned"),
     "gpt2", "the format has 1/sqrt(d_head) and 1"),
    (model_of({"position": "none", "bias": "all", "d_head": 4}, "layernorm", "mlp", position="learned"),
     "gpt2", "heads have 4 features; the file has no key for other sizes")],
    ids=["undivided", "partial", "dynamic", "dilated", "output bias", "glu bias", "scale", "head size"])
def test_what_one_family_cannot_say(model: LanguageModel, family: str, said: str, tmp_path: Path) -> None:
    text = refusal(model, tmp_path, family)
    assert f"the family {family!r} cannot express this model" in text
    assert said in text


def test_windows_of_two_sizes_fit_nowhere(tmp_path: Path) -> None:
    block = {"kind": "pre", "norm": "rmsnorm", "layers": [{"kind": "attention", "position": "rope", "bias": "qkv",
                                                           "mask": "causal & window(3)"}, "glu"]}
    other = {**block, "layers": [{**block["layers"][0], "mask": "causal & window(4)"}, "glu"]}  # type: ignore[dict-item]
    said = refusal(model_of(blocks=[block, other]), tmp_path, "qwen2")
    assert "layers have windows of 3, 4 tokens; the file has one size" in said


def test_shards_hold_what_they_may_and_the_index_names_every_tensor(tmp_path: Path) -> None:
    tensors = write(tmp_path / "a")
    api.convert(tmp_path / "a", tmp_path / "b", to="hf", max_shard_size="2KB")
    index = json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(tensors)
    for name in sorted(set(index["weight_map"].values())):
        with safe_open(tmp_path / "b" / name, framework="pt") as file:
            assert file.metadata() == {"format": "pt"}
            own = list(file.keys())
            size = sum(file.get_tensor(each).numel() * 4 for each in own)
        assert {index["weight_map"][each] for each in own} == {name}
        assert size <= 2000 or len(own) == 1


def test_the_dtype_is_cast_and_told(tmp_path: Path) -> None:
    write(tmp_path / "a")
    done = api.convert(tmp_path / "a", tmp_path / "b", to="hf", dtype="bfloat16")
    raw = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (done.dtype, raw["dtype"], raw["torch_dtype"]) == ("bfloat16",) * 3
    assert {parameter.dtype for parameter in api.load(tmp_path / "b").model.parameters()} == {torch.bfloat16}


def test_tokens_and_tokenizers_come_along(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train(["some text to learn from"], 259)
    save_checkpoint(tmp_path / "a", model_of(), tokenizer)
    api.convert(tmp_path / "a", tmp_path / "b", to="hf")
    raw = json.loads((tmp_path / "b" / "config.json").read_text())
    assert raw["eos_token_id"] == tokenizer.eos_id
    api.convert(tmp_path / "b", tmp_path / "c", to="hf")
    for folder in (tmp_path / "b", tmp_path / "c"):
        again = api.load(folder).tokenizer
        assert again is not None
        assert again.encode("some more text") == tokenizer.encode("some more text")
        assert again.eos_id == tokenizer.eos_id
    assert json.loads((tmp_path / "c" / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_id


def test_a_tokenizer_without_such_a_file_is_told(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a", model_of(), ByteTokenizer())
    assert "has no tokenizer.json, so none was written" in api.convert(tmp_path / "a", tmp_path / "b", to="hf").notes[0]


def test_pooled_heads_are_means(tmp_path: Path) -> None:
    model = model_of({"bias": "qkv"})
    pooled = pool_heads(model, 2)
    before, after = model.state_dict(), pooled.state_dict()
    for part in ("weight", "bias"):
        q, k, v = before[f"stack.layers.1.layers.0.qkv.{part}"].chunk(3)
        heads = [torch.stack(each.unflatten(0, (4, 8))[2 * group:2 * group + 2].unbind()).mean(0)
                 for each in (k, v) for group in range(2)]
        torch.testing.assert_close(after[f"stack.layers.1.layers.0.qkv.{part}"], torch.cat([q, *heads]))
    assert torch.equal(after["embedding.tokens.weight"], before["embedding.tokens.weight"])


def test_pooling_equal_heads_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "a", "mistral")
    model = api.load(tmp_path / "a").model
    for name, parameter in model.named_parameters():
        if name.endswith("qkv.weight"):
            q, k, v = parameter.data.chunk(3)
            parameter.data = torch.cat([q, *(each[:4].repeat(3, 1) for each in (k, v))])
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    torch.testing.assert_close(pool_heads(model, 1)(tokens).y, model(tokens).y)


@pytest.mark.parametrize(("heads", "said"), [(3, "4 key/value heads .* do not divide into 3 groups"), (0, "into 0")])
def test_heads_that_cannot_be_pooled(heads: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        pool_heads(model_of(), heads)


def test_heads_whose_keys_are_normalised_together_cannot_be_pooled() -> None:
    with pytest.raises(InputError, match=r"the keys of all heads .* are normalised together, so a mean of heads has"):
        pool_heads(model_of({"qk_norm": "rmsnorm", "qk_norm_over": "heads"}), 2)


def test_a_model_without_attention_has_nothing_to_pool() -> None:
    blocks = [{"kind": "pre", "layers": ["lstm"]}]
    with pytest.raises(InputError, match="no attention whose heads could be pooled"):
        pool_heads(model_of(blocks=blocks), 1)


def test_only_such_a_folder_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("mine")
    for target in ("hf", "weft"):
        with pytest.raises(OccupiedError, match=r"no manifest of Weft's lists thesis\.txt"):
            api.convert(tmp_path / "a", tmp_path / "b", to=target, replace=True)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["thesis.txt"]
    api.convert(tmp_path / "a", tmp_path / "c", to="weft")
    api.convert(tmp_path / "a", tmp_path / "d", to="hf")
    with pytest.raises(OccupiedError, match=r"d: this folder holds what Weft wrote before\. Choose another folder, or "
                                            r"replace it \(--replace, replace=True\)"):
        api.convert(tmp_path / "c", tmp_path / "d", to="hf")
    assert api.convert(tmp_path / "c", tmp_path / "d", to="hf", replace=True).difference == 0
    with pytest.raises(InputError, match="the folder is the source of the conversion"):
        api.convert(tmp_path / "a", tmp_path / "a", to="hf")


def test_a_folder_that_gives_other_numbers_never_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a")
    monkeypatch.setattr(convert_module, "largest_difference", lambda ours, theirs: 7.0)
    with pytest.raises(FailedError, match="read again, gives logits that differ by up to 7"):
        api.convert(tmp_path / "a", tmp_path / "b", to="hf")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(("options", "said"), [
    ({"to": "hff"}, "no format is called 'hff'. Did you mean 'hf'"),
    ({"to": "hf", "family": "lama"}, "no family with a format is called 'lama'. Did you mean 'llama'"),
    ({"to": "hf", "max_shard_size": "many"}, "'many' is not a size. Write 5GB"),
    ({"to": "hf", "dtype": "int4"}, "unknown dtype 'int4'")])
def test_wrong_options(options: dict[str, str], said: str, tmp_path: Path) -> None:
    write(tmp_path / "a")
    with pytest.raises(InputError) as caught:
        api.convert(tmp_path / "a", tmp_path / "b", **options)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_sizes() -> None:
    assert [parse_size(text) for text in ("5GB", "200 mb", "1GiB", "0.5kb", "77")] == [
        5 * 10**9, 200 * 10**6, 2**30, 500, 77]


def test_the_command(tmp_path: Path) -> None:
    write(tmp_path / "a", "mistral")
    run = CliRunner()
    done = run.invoke(app, ["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "hf", "--n-kv-heads", "1"])
    assert done.exit_code == 0, done.output
    assert "as a mistral model, in float32" in done.output
    assert "read again by Weft: logits differ by at most 0" in done.output
    assert "pooling heads changed logits by up to" in done.output
    done = run.invoke(app, ["convert", str(tmp_path / "a"), str(tmp_path / "c"), "--to", "weft", "--json"])
    assert json.loads(done.output)["target"] == "weft"
    again = ["convert", str(tmp_path / "a"), str(tmp_path / "c"), "--to", "weft"]
    assert [run.invoke(app, [*again, *more]).exit_code for more in ([], ["--replace"])] == [2, 0]
