"""What is saved comes back: weights, ties, dtypes, complex numbers, sizes that only the data tell, tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from checkpoints.tiny_models import model_of
from weft.checkpoints import find_checkpoint, load_checkpoint, read_training, save_checkpoint
from weft.checkpoints.tensors import assign_tensors, own_tensors, read_tensors, write_tensors
from weft.core.model import Resizable
from weft.tokenizers import BPETokenizer, ByteTokenizer, CharacterTokenizer, Tokenizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_model_comes_back_bit_for_bit_in_its_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    model = model_of().to(dtype)
    save_checkpoint(tmp_path / "a", model, None, run={"seed": 1}, facts={"step": 3})
    loaded = load_checkpoint(tmp_path / "a")
    for name, tensor in model.state_dict().items():
        assert loaded.model.state_dict()[name].dtype == dtype
        assert torch.equal(loaded.model.state_dict()[name], tensor)
    tokens = torch.arange(8)[None]
    assert torch.equal(loaded.model(tokens).y, model.eval()(tokens).y)
    assert loaded.config == model.config
    assert (loaded.run, loaded.facts, loaded.tokenizer) == ({"seed": 1}, {"step": 3}, None)
    assert not loaded.model.training


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    model = model_of()
    save_checkpoint(tmp_path / "a", model, None)
    assert "readout.weight" not in read_tensors(tmp_path / "a/model.safetensors")
    loaded = load_checkpoint(tmp_path / "a").model
    state = dict(loaded.named_parameters(remove_duplicate=False))
    assert state["readout.weight"] is state["embedding.tokens.weight"]
    assert torch.equal(state["readout.weight"], model.state_dict()["readout.weight"])


@pytest.mark.parametrize("tokenizer", [
    ByteTokenizer(), CharacterTokenizer.train(["abc é"]), BPETokenizer.train(["a b c a b c " * 20], 260),
], ids=lambda tokenizer: tokenizer.kind)
def test_the_tokenizer_comes_back(tmp_path: Path, tokenizer: Tokenizer) -> None:
    save_checkpoint(tmp_path / "a", model_of(), tokenizer)
    found = load_checkpoint(tmp_path / "a").tokenizer
    assert found is not None
    assert found.fingerprint() == tokenizer.fingerprint()
    assert found.encode("a cab") == tokenizer.encode("a cab")


def test_the_files_say_what_they_are(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a", model_of(), ByteTokenizer(), training={"x": torch.ones(2)})
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        "config.json", "model.safetensors", "training.safetensors", "weft_tokenizer.json", "MANIFEST.json"}
    config = json.loads((tmp_path / "a/config.json").read_text())
    assert config["weft_format"] == 1
    assert config["torch_version"] == torch.__version__
    assert config["model"]["kind"] == "decoder"
    manifest = json.loads((tmp_path / "a/MANIFEST.json").read_text())["files"]
    assert set(manifest) == {path.name for path in (tmp_path / "a").iterdir()} - {"MANIFEST.json"}
    assert read_training(tmp_path / "a")["x"].tolist() == [1.0, 1.0]


def test_tensors_of_every_sort_come_back(tmp_path: Path) -> None:
    tensors = {"complex": torch.randn(3, 2, dtype=torch.complex64), "wide": torch.randn(2, dtype=torch.complex128),
               "empty": torch.zeros(0, 3, dtype=torch.int32), "number": torch.tensor(7), "flag": torch.tensor([True]),
               "turned": torch.arange(6.0).reshape(2, 3).T, "conjugate": torch.randn(2, dtype=torch.complex64).conj()}
    write_tensors(tmp_path / "a.safetensors", tensors)
    found = read_tensors(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor.resolve_conj())


class Counts(nn.Module, Resizable):
    """A table whose size its configuration does not tell."""

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor
        self.register_buffer("table", torch.zeros(0))

    def prepare(self, shapes: Any) -> None:
        self.table = torch.zeros(shapes["table"])


def test_a_model_makes_room_for_the_sizes_of_the_checkpoint() -> None:
    model = Counts()
    assign_tensors(model, {"table": torch.arange(5, dtype=torch.uint8)}, where="file")
    assert model.table.tolist() == [0, 1, 2, 3, 4]
    assert model.table.dtype == torch.uint8
    assert own_tensors(model).keys() == {"table"}


def test_a_run_folder_means_its_last_checkpoint(tmp_path: Path) -> None:
    for step in (20, 100, 9):
        save_checkpoint(tmp_path / f"checkpoints/{step:08d}", model_of(), None, facts={"step": step})
    (tmp_path / "checkpoints/00000200").mkdir()
    assert find_checkpoint(tmp_path).name == "00000100"
    assert load_checkpoint(tmp_path).facts["step"] == 100
