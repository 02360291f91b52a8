"""GGUF files: every family's numbers as llama.cpp would compute them, names, dtypes, and what verification finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from bounded import memory
from interop.gguf.gguf_models import CASES, VOCAB, case
from oracles.llama_graph import LlamaGraph
from weft.core.errors import FailedError, OccupiedError
from weft.interop.convert import convert
from weft.interop.gguf.architectures import ARCHITECTURES
from weft.interop.gguf.target import GgufFile
from weft.interop.verify import logits_of

TOKENS = torch.randint(VOCAB, (1, 20), generator=torch.Generator().manual_seed(3))


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Keys and tensors of a float32 file."""
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    return keys, {tensor.name: np.array(tensor.data) for tensor in reader.tensors}


@pytest.mark.parametrize("name", CASES)
def test_the_file_gives_the_models_logits(name: str, tmp_path: Path) -> None:
    """By llama.cpp's graphs in NumPy, from the file alone. Where the model has the exact GELU and llama.cpp its tanh
    form, activations differ by up to 5e-4, and logits, sums of some twenty of them through two layers, by 5e-3."""
    source = case(name, tmp_path)
    done = convert(source, tmp_path / "a.gguf", to="gguf")
    assert done.difference <= (1e-5 if name == "gemma" else 0)  # Gemma's 1 + w - 1 rounds
    wanted = logits_of(source.model, TOKENS)[0].numpy()
    found = LlamaGraph(*read(tmp_path / "a.gguf")).logits(TOKENS[0].tolist())
    approximate = any("tanh form" in note for note in done.notes)
    np.testing.assert_allclose(found, wanted, atol=5e-3 if approximate else 5e-5, rtol=0)


@pytest.mark.parametrize("name", ["gpt2", "bloom", "mpt", "falcon-two-norms", "phi", "phi3", "llama-biased", "mixtral",
                                  "gemma", "qwen2", "qwen3", "gpt_neox"])
def test_names_are_those_of_the_gguf_package(name: str, tmp_path: Path) -> None:
    content = GgufFile.of(source := case(name, tmp_path), source.model, {}, None).content
    number = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == content.architecture)
    lawful = {gguf.TENSOR_NAMES[each].format(bid=layer) for each in gguf.MODEL_TENSORS[number] for layer in range(2)}
    assert {tensor.rpartition(".")[0] for tensor in content.shapes} <= lawful
    known = {value.replace("{arch}", content.architecture) for group in vars(gguf.Keys).values()
             if isinstance(group, type) for value in vars(group).values() if isinstance(value, str)}
    assert set(content.keys) <= known


def test_every_architecture_has_a_case() -> None:
    assert {family for family, _ in CASES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize(("dtype", "file_type"), [("bfloat16", 32), ("float16", 1)])
def test_matrices_keep_their_dtype_and_the_rest_is_float32(dtype: str, file_type: int, tmp_path: Path) -> None:
    source = case("mixtral", tmp_path)
    source.model.to(getattr(torch, dtype))
    done = convert(source, tmp_path / "a.gguf", to="gguf")
    assert (done.dtype, done.difference) == (dtype, 0)
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    half = {"bfloat16": "BF16", "float16": "F16"}[dtype]
    assert kinds["blk.0.attn_q.weight"] == kinds["blk.0.ffn_up_exps.weight"] == kinds["token_embd.weight"] == half
    assert kinds["blk.0.attn_norm.weight"] == kinds["blk.0.ffn_gate_inp.weight"] == "F32"
    assert reader.fields["general.file_type"].contents() == file_type


def test_tied_embeddings_are_left_out_where_llama_cpp_does_without(tmp_path: Path) -> None:
    for name, there in (("llama-free-heads", False), ("llama", True), ("gemma", False), ("phi-tied", True)):
        shapes = GgufFile.of(source := case(name, tmp_path), source.model, {}, None).content.shapes
        assert ("output.weight" in shapes) == there, name


def test_a_file_is_never_replaced_and_folders_are_made(tmp_path: Path) -> None:
    out = tmp_path / "new" / "a.gguf"
    convert(case("qwen2", tmp_path), out, to="gguf")
    with pytest.raises(OccupiedError, match=r"there is a file at this path .* is not replaced\. Choose another "
                                            r"name, or delete it first"):
        convert(case("llama", tmp_path), out, to="gguf", replace=True)
    assert read(out)[0]["general.architecture"] == "qwen2"
    assert [path.name for path in out.parent.iterdir()] == ["a.gguf"]


@pytest.mark.filterwarnings("error")
def test_a_file_that_lies_is_damaged(tmp_path: Path) -> None:
    """Counts, lengths and offsets of 2^31 to 2^64, where numbers of the head stand, and a file that breaks off."""
    source = case("llama", tmp_path)
    file = GgufFile.of(source, source.model, {}, None)
    file.write(tmp_path / "a.gguf")
    content = (tmp_path / "a.gguf").read_bytes()
    name = content.index(b"token_embd.weight") - 8
    shape = name + 8 + len(b"token_embd.weight") + 4
    lies = [(place, size, value) for place, size in ((4, 4), (8, 8), (16, 8), (24, 8), (name, 8), (shape - 4, 4),
                                                     (shape, 8), (shape + 16, 4), (shape + 20, 8))
            for value in (0, 2**31, 2**(8 * size) - 1)]
    alignment = content.index(b"general.architecture")
    for place, size, value in lies:
        spoilt = content[:place] + value.to_bytes(size, "little") + content[place + size:]
        (tmp_path / "b.gguf").write_bytes(spoilt)
        if spoilt != content:
            with pytest.raises(FailedError, match=r"the file, read back, (is damaged|differs)"), memory(1 << 30):
                file.read(tmp_path / "b.gguf")
    for end in (3, 20, alignment, name + 3, len(content) - 9):
        (tmp_path / "b.gguf").write_bytes(content[:end])
        with pytest.raises(FailedError, match=r"the file, read back, (is damaged|differs)"):
            file.read(tmp_path / "b.gguf")


def test_verification_names_every_difference(tmp_path: Path) -> None:
    source = case("llama", tmp_path)
    file = GgufFile.of(source, source.model, {}, None)
    file.write(tmp_path / "a.gguf")
    with torch.no_grad():
        source.model.get_parameter("norm.weight")[3] += 1e-6
    with pytest.raises(FailedError, match=r"differs in 1 places:\n  - output_norm.weight: the file has another tensor"):
        file.read(tmp_path / "a.gguf")
    scaled = case("llama-llama3", tmp_path)
    GgufFile.of(scaled, scaled.model, {}, None).write(tmp_path / "b.gguf")
    with pytest.raises(FailedError, match=r"rope_freqs.weight: an unexpected tensor"):
        file.read(tmp_path / "b.gguf")
    other = case("llama-linear", tmp_path)
    with pytest.raises(FailedError) as caught:
        GgufFile.of(other, other.model, {}, None).read(tmp_path / "a.gguf")
    assert "llama.rope.scaling.factor: None where 3.0 was written" in str(caught.value)
    assert "llama.attention.head_count_kv: 2 where 6 was written" in str(caught.value)
