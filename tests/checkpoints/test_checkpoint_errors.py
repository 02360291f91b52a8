"""Every way in which a checkpoint can be wrong, and what is said about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints.tiny_models import model_of
from weft.checkpoints import load_checkpoint, read_training, save_checkpoint
from weft.checkpoints.tensors import assign_tensors, read_tensors, write_tensors
from weft.core.errors import CheckpointError
from weft.disk.manifest import write_manifest
from weft.tokenizers import ByteTokenizer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save_checkpoint(tmp_path / "saved", model_of(), ByteTokenizer())


def message(path: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path, **options)
    return str(caught.value)


def rewrite(saved: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change config.json and its manifest, as one who edits a checkpoint on purpose would."""
    content = json.loads((saved / "config.json").read_text())
    change(content)
    (saved / "config.json").write_text(json.dumps(content))
    (saved / "MANIFEST.json").unlink()
    write_manifest(saved)


def retensor(saved: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = read_tensors(saved / "model.safetensors")
    change(tensors)
    write_tensors(saved / "model.safetensors", tensors)
    (saved / "MANIFEST.json").unlink()
    write_manifest(saved)


def test_nothing_there(tmp_path: Path) -> None:
    assert "none: no such folder. Give the folder of a checkpoint" in message(tmp_path / "none")


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text("")
    assert "a file, not the folder of a checkpoint" in message(tmp_path / "model.pt")


def test_some_other_folder(tmp_path: Path) -> None:
    assert "not a checkpoint: there is no config.json in it" in message(tmp_path)


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    assert "the run has not saved a checkpoint yet" in message(tmp_path)


def test_a_config_of_another_library(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "not a checkpoint of Weft: no weft_format number" in message(tmp_path)


def test_a_corrupted_config(saved: Path) -> None:
    text = (saved / "config.json").read_text()
    (saved / "config.json").write_text(text[:50])
    found = message(saved)
    assert "config.json: the file is damaged (" in found
    assert "Copy the checkpoint again" in found


def test_a_newer_format(saved: Path) -> None:
    rewrite(saved, lambda content: content.update(weft_format=2, weft_version="9.0"))
    assert "format 2 is newer than this Weft reads (1); it was written by Weft 9.0. Update Weft." in message(saved)


@pytest.mark.parametrize("verify", [True, False])
def test_truncated_tensors(saved: Path, verify: bool) -> None:
    file = saved / "model.safetensors"
    size = file.stat().st_size
    file.write_bytes(file.read_bytes()[:-7])
    assert f"model.safetensors is truncated: {size - 7:,} bytes instead of {size:,}." in message(saved, verify=verify)


def test_tensors_truncated_before_the_manifest_was_made(saved: Path) -> None:
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    (saved / "MANIFEST.json").unlink()
    write_manifest(saved)
    assert "model.safetensors: the tensors cannot be read (" in message(saved)


def test_a_flipped_bit_a_longer_file_and_a_missing_one_are_told_together(saved: Path) -> None:
    content = bytearray((saved / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (saved / "model.safetensors").write_bytes(content)
    (saved / "weft_tokenizer.json").unlink()
    with (saved / "config.json").open("a") as file:
        file.write("\n")
    found = message(saved)
    assert "3 files are not as they were written" in found
    assert "model.safetensors has changed: its SHA-256 differs." in found
    assert "weft_tokenizer.json is missing." in found
    assert "config.json has grown" in found


def test_the_manifest_missing_or_damaged(saved: Path) -> None:
    (saved / "MANIFEST.json").write_text('{"files": []}')
    assert "MANIFEST.json: the manifest is damaged" in message(saved)
    (saved / "MANIFEST.json").unlink()
    assert "the checkpoint is incomplete: MANIFEST.json is missing" in message(saved)


def test_renamed_unexpected_and_misshapen_tensors_are_told_at_once(saved: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        first, second, third, *_ = sorted(tensors)
        tensors["extra"] = torch.ones(1)
        tensors[f"{first}s"] = tensors.pop(first)
        tensors[second], tensors[third] = torch.ones(3, 5, 7), torch.cat([tensors[third]] * 2)

    names = sorted(read_tensors(saved / "model.safetensors"))
    retensor(saved, change)
    found = message(saved)
    assert "5 tensors do not fit the model" in found
    assert f"{names[0]}: missing, shape [19, 8]." in found
    assert f"{names[0]}s: unexpected. Did you mean '{names[0]}'?" in found
    assert "extra: unexpected." in found
    assert f"{names[1]}: shape [3, 5, 7] where the model has [" in found
    assert f"{names[2]}: shape [" in found
    assert "model.safetensors" in found


def test_one_tensor_too_many() -> None:
    model = model_of()
    tensors = {"other": torch.ones(1), **{name: tensor for name, tensor in model.state_dict().items()
                                          if name != "readout.weight"}}
    with pytest.raises(CheckpointError, match=r"file: 1 tensor does not fit(.|\n)*other: unexpected\.\n"):
        assign_tensors(model, tensors, where="file")


def test_a_part_that_is_not_known_here(saved: Path) -> None:
    rewrite(saved, lambda content: content["model"]["blocks"][0]["layers"].append("mystery_mixer"))
    found = message(saved)
    assert "cannot be built here" in found
    assert "no mixer or feedforward of kind 'mystery_mixer'" in found
    assert "give that file with --plugin" in found
    assert "written by Weft 0.1.0" in found


def test_a_model_that_cannot_be_built(saved: Path) -> None:
    rewrite(saved, lambda content: content["model"].update(position="rope"))
    found = message(saved)
    assert "cannot be built here" in found
    assert "Put it in the attention's `position`" in found
    assert "position" in found


def test_resuming_without_what_it_needs(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"saved: there is no training\.safetensors, so training cannot be"):
        read_training(saved)


def test_a_tokenizer_that_changed(saved: Path) -> None:
    file = saved / "weft_tokenizer.json"
    file.write_text(file.read_text().replace('"bytes"', '"bites"'))
    (saved / "MANIFEST.json").unlink()
    write_manifest(saved)
    assert "unknown kind of tokenizer 'bites'. Did you mean 'bytes'?" in message(saved)


def test_a_width_beyond_any_memory_is_compared_before_it_is_built(saved: Path) -> None:
    rewrite(saved, lambda content: content["model"].update(d_model=2**26))  # a matrix of 2^54 bytes
    found = message(saved)
    assert "tensors do not fit the model of this checkpoint:" in found
    assert "embedding.tokens.weight: shape [19, 8] where the model has [19, 67108864]." in found
