"""Folders with a modelling file: what is in them, that Weft opens them without running it, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

from interop.huggingface.with_code_models import (
    CONFIGS,
    LARGER,
    SOURCED,
    attention,
    build,
    converted,
    decoder,
    model,
    pre,
    rows,
)
from seeing_ahead import seeing_ahead
from taken_back import taken_back
from weft import api
from weft.checkpoints import save_checkpoint
from weft.cli.main import app
from weft.core.errors import CheckpointError, InputError, UnsupportedError
from weft.core.model import LanguageModel
from weft.core.part import kept_dtypes
from weft.core.registry import load_plugin
from weft.interop.huggingface.with_code import brings_bundled_code, has_code, require_writable
from weft.models.ngram import NgramModel
from weft.tokenizers import BPETokenizer, ByteTokenizer
from weft.tokenizers.published import read_tokenizer
from weft.training.starting import with_start

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def search_path() -> Iterator[None]:
    """Where transformers is installed, it adds the folder of modelling files that it has opened."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        yield


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that tests only read."""
    folder = tmp_path_factory.mktemp("hybrid")
    converted(model("hybrid"), folder)
    return folder / "b"


@pytest.fixture
def copy(hybrid: Path, tmp_path: Path) -> Path:
    """One that a test may change."""
    shutil.copytree(hybrid, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", list(CONFIGS))
def test_every_tensor_and_the_whole_configuration_come_back(name: str, tmp_path: Path) -> None:
    done = converted(model(name), tmp_path)
    again = api.load(tmp_path / "b").model
    assert (done.family, done.difference, done.dtype) == (None, 0.0, "float32")
    assert again.config == model(name).config
    assert again.fingerprint == model(name).fingerprint
    for own, theirs in zip(again.state_dict().values(), model(name).state_dict().values(), strict=True):
        assert torch.equal(own, theirs)


def test_the_folder_says_what_transformers_needs(hybrid: Path) -> None:
    raw = json.loads((hybrid / "config.json").read_text())
    assert (raw["model_type"], raw["architectures"], raw["dtype"]) == ("weft", ["WeftForCausalLM"], "float32")
    assert raw["auto_map"] == {"AutoConfig": "configuration_weft.WeftConfig",
                               "AutoModelForCausalLM": "modeling_weft.WeftForCausalLM"}
    assert raw["weft"]["model"] == model("hybrid").config.dump()
    code = (hybrid / "modeling_weft.py").read_text()
    assert "class WeftForCausalLM(WeftModel, GenerationMixin)" in code
    assert "class WeftConfig(PreTrainedConfig)" in (hybrid / "configuration_weft.py").read_text()
    assert brings_bundled_code(hybrid)


def test_tied_weights_are_written_once(hybrid: Path) -> None:
    names = set(load_file(hybrid / "model.safetensors"))
    assert "model.embedding.tokens.weight" in names
    assert "model.readout.weight" not in names
    again = api.load(hybrid).model
    assert again.get_parameter("readout.weight") is again.get_parameter("embedding.tokens.weight")


def test_shards_and_dtypes(tmp_path: Path) -> None:
    done = converted(model("hybrid"), tmp_path, dtype="bfloat16", max_shard_size="2KB")
    index = json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "b" / file, framework="pt") as shard:
            assert name in set(shard.keys())
    assert done.dtype == json.loads((tmp_path / "b" / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = api.load(tmp_path / "b").model
    exact = kept_dtypes(loaded).exact
    assert {each.dtype for each in loaded.parameters() if id(each) not in exact} == {torch.bfloat16}
    assert {each.dtype for each in loaded.parameters() if id(each) in exact} == {torch.float32}, "dynamics stay exact"
    assert {each.dtype for each in api.load(tmp_path / "b", dtype="float64").model.parameters()} == {torch.float64}


def test_every_command_takes_such_a_folder(hybrid: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(rows()))
    run = CliRunner()
    done = run.invoke(app, ["generate", str(hybrid), "--rows", str(tmp_path / "rows.json"), "--greedy",
                            "--max-new-tokens", "5", "--json"])
    assert done.exit_code == 0, done.output
    wanted = api.generate(api.load(hybrid), rows(), max_new_tokens=5)
    assert [tuple(row["tokens"]) for row in json.loads(done.output)["rows"]] == [row.tokens for row in wanted.rows]
    done = run.invoke(app, ["convert", str(hybrid), str(tmp_path / "weft"), "--to", "weft"])
    assert done.exit_code == 0, done.output
    assert api.load(tmp_path / "weft").config == model("hybrid").config


def test_the_command_says_what_it_has_written(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a", model("lstm"), None)
    words = ["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "hf"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert "write it with --with-code" in " ".join(done.output.split())
    done = CliRunner().invoke(app, [*words, "--with-code"])
    assert done.exit_code == 0, done.output
    assert "read again by Weft: logits differ by at most 0" in done.output
    assert "note: transformers opens it with trust_remote_code=True, where weft is installed" in done.output


def test_a_model_that_a_native_class_expresses_needs_no_code(tmp_path: Path) -> None:
    native = build(decoder({"repeat": 2, "of": [pre(attention(), "glu")]}))
    done = converted(native, tmp_path)
    assert done.family == "llama"
    assert done.notes == ("the native class of llama opens this model, so no modelling file was needed",)
    assert not list((tmp_path / "b").glob("*.py"))


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPETokenizer.train(["some text to learn from"], 259)],
                         ids=["bytes", "bpe"])
def test_tokenizers_come_along_and_back(tokenizer: Any, tmp_path: Path) -> None:
    own = build({**CONFIGS["lstm"], "vocab_size": tokenizer.vocab_size})
    done = converted(own, tmp_path, tokenizer)
    readable = (tmp_path / "b" / "tokenizer.json").is_file()
    assert readable == (tokenizer.kind == "bpe")
    assert any("only Weft reads it; give transformers token ids" in note for note in done.notes) != readable
    api.convert(tmp_path / "b", tmp_path / "c", to="hf", with_code=True)
    for folder in (tmp_path / "b", tmp_path / "c"):
        again = api.load(folder).tokenizer
        assert again is not None
        assert again.fingerprint() == tokenizer.fingerprint()
        assert read_tokenizer(folder).fingerprint() == again.fingerprint(), "with which a run that starts there begins"
        assert with_start({"start": str(folder)})["tokenizer"] == {"kind": "file", "path": str(folder)}
        raw = json.loads((folder / "generation_config.json").read_text())
        assert raw.get("eos_token_id") == tokenizer.eos_id


@pytest.mark.parametrize(("options", "said"), [
    ({"to": "weft"}, "a modelling file for the format 'weft'. It is for the format hf without a family"),
    ({"to": "hf", "family": "llama"}, "a modelling file for the family 'llama'. It is for the format hf without a")])
def test_where_the_option_says_nothing(options: dict[str, str], said: str, hybrid: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        api.convert(hybrid, tmp_path / "b", with_code=True, **options)  # type: ignore[arg-type]
    assert said in str(caught.value)


def refused(model: LanguageModel) -> str:
    with pytest.raises(UnsupportedError) as caught:
        require_writable(model)
    return str(caught.value)


def test_what_no_modelling_file_can_serve() -> None:
    seeing = seeing_ahead(build(decoder(pre(attention()))))
    assert "attends to later tokens, so it cannot be opened as a causal" in refused(seeing)


@pytest.mark.parametrize("name", list(SOURCED))
def test_an_encoder_decoder_is_read_again(name: str, tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train(["some text to learn from"], 259)
    done = converted(build({**SOURCED[name], **LARGER}), tmp_path, tokenizer)
    raw = json.loads((tmp_path / "b" / "config.json").read_text())
    assert (done.family, done.difference) == (None, 0.0)
    assert raw["architectures"] == ["WeftForSeq2SeqLM"] and raw["is_encoder_decoder"]
    assert raw["auto_map"]["AutoModelForSeq2SeqLM"] == "modeling_weft.WeftForSeq2SeqLM"
    assert brings_bundled_code(tmp_path / "b")
    generation = json.loads((tmp_path / "b" / "generation_config.json").read_text())
    assert generation["decoder_start_token_id"] == tokenizer.bos_id
    assert json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())["pad_token"] == "<|endoftext|>"
    texts = ["some", "some more text"]
    assert api.translate(tmp_path / "b", texts) == api.translate(tmp_path / "a", texts)


def test_tables_of_counts_go_from_weft_to_weft(tmp_path: Path) -> None:
    counted = build({"kind": "ngram", "vocab_size": 9, "order": 2, "smoothing": "maximum_likelihood"})
    assert isinstance(counted, NgramModel)
    counted.fit(torch.tensor([1, 2, 3, 1, 2, 4]))
    save_checkpoint(tmp_path / "a", counted, None)
    done = api.convert(tmp_path / "a", tmp_path / "b", to="weft")
    assert (done.difference, done.dtype) == (0.0, "float64")
    with pytest.raises(UnsupportedError, match="tables of counts are not weights"):
        api.convert(tmp_path / "a", tmp_path / "c", to="hf", with_code=True)


def test_parts_of_a_plugin_file_are_named() -> None:
    with taken_back():
        load_plugin(REPOSITORY / "examples" / "min_gru.py")
        said = refused(build(decoder({"repeat": 2, "of": [pre("lstm"), pre("min_gru")]})))
    assert "min_gru: from a plugin's file, which the folder would not contain. Make the plugin an" in said


def test_masks_of_a_plugin_file_are_named_inside_others_too(tmp_path: Path) -> None:
    file = tmp_path / "halves.py"
    file.write_text("from dataclasses import dataclass\nfrom weft.masks import Mask\n"
                    "from weft.masks.expression import register_mask\n@register_mask\n"
                    "@dataclass(frozen=True, repr=False)\nclass Halves(Mask):\n    kind = 'halves'\n"
                    "    def rule(self, query, key, head):\n        return (query.order - key.order) % 2 == 0\n")
    with taken_back():
        load_plugin(file)
        said = refused(build(decoder(pre({"kind": "attention", "n_heads": 2, "mask": "causal & ~halves"}))))
    assert "halves: from a plugin's file, which the folder would not contain." in said


def rewritten(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_of_tied_weights_any_name_will_do(copy: Path) -> None:
    def head_as_well(tensors: dict[str, Tensor]) -> None:
        tensors["model.readout.weight"] = tensors["model.embedding.tokens.weight"].clone()

    rewritten(copy, head_as_well)
    assert torch.equal(api.load(copy).model.state_dict()["readout.weight"],
                       model("hybrid").state_dict()["readout.weight"])
    rewritten(copy, lambda tensors: tensors.pop("model.embedding.tokens.weight").zero_())
    assert torch.equal(api.load(copy).model.state_dict()["embedding.tokens.weight"],
                       model("hybrid").state_dict()["readout.weight"])


def spoil(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"][0] = torch.nan


def part(tensors: dict[str, Tensor]) -> None:
    tensors["model.readout.weight"] = tensors["model.embedding.tokens.weight"] + 1


def lose(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.wait"] = tensors.pop("model.norm.weight")


def cut(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()


@pytest.mark.parametrize(("change", "said"), [
    (spoil, "model.norm.weight: holds NaN"), (part, "differs from embedding.tokens.weight, though the configuration"),
    (lose, "norm.weight: missing, shape [24]"), (cut, "norm.weight: shape [23] where the model has [24]")],
    ids=["NaN", "untied", "missing", "cut"])
def test_wrong_tensors(change: Callable[[dict[str, Tensor]], None], said: str, copy: Path) -> None:
    rewritten(copy, change)
    with pytest.raises(CheckpointError) as caught:
        api.load(copy, strict=True)
    assert said in str(caught.value)
    if change is spoil:  # NaN is looked for on request
        assert bool(api.load(copy).model.state_dict()["norm.weight"].isnan().any())


@pytest.mark.parametrize(("content", "said"), [
    (None, "there is no configuration of Weft under 'weft'. Copy the folder again"),
    ({"format": 99, "version": "9.0", "model": {}}, "format 99 is newer than this Weft reads (1); it was written by "
     "Weft 9.0. Update Weft"),
    ({"format": 1, "version": "0.1.0", "model": {"kind": "decodr"}}, "of kind 'decodr'. Did you mean 'decoder'")],
    ids=["none", "newer", "unknown"])
def test_wrong_configurations(content: Any, said: str, copy: Path) -> None:
    raw = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**raw, "weft": content}))
    with pytest.raises(CheckpointError) as caught:
        api.load(copy)
    assert said in str(caught.value)


def test_only_code_that_is_weft_s_own_to_the_byte_is_ever_run(copy: Path) -> None:
    assert brings_bundled_code(copy)
    (copy / "extra.py").write_text("print('hello')")
    assert not brings_bundled_code(copy)
    (copy / "extra.py").unlink()
    raw = json.loads((copy / "config.json").read_text())
    mapped = {**raw["auto_map"], "AutoModel": "someone/else--modeling.Model"}
    (copy / "config.json").write_text(json.dumps({**raw, "auto_map": mapped}))
    assert not brings_bundled_code(copy)
    (copy / "config.json").write_text(json.dumps(raw))
    with (copy / "modeling_weft.py").open("a") as file:
        file.write("raise SystemExit\n")
    assert not brings_bundled_code(copy)
    assert has_code(copy)
    assert api.load(copy).config == model("hybrid").config  # nothing of it was run

