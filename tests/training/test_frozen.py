"""Weights that no step changes: bfloat16's copy of them is made once, their float32 values lie in a file, and what is
computed, saved and resumed is what it is with all of them in memory."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fresh import fresh
from linear.small import described, model, stirred
from training.tiny_runs import same_weights, tiny_run
from weft.checkpoints import load_checkpoint
from weft.training import RunConfig, train
from weft.training.material import prepare
from weft.training.precision import LaidAside, Precision
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

LAYERS = [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 12}]
LORA = {"kind": "lora", "rank": 2, "maps": ["qkv.q", "up"], "dora": True}


def test_frozen_weights_are_not_copied_again() -> None:
    precision = Precision(model([LORA], LAYERS).float(), torch.bfloat16)
    frozen = precision.working.get_parameter("stack.layers.0.layers.1.up.base.weight")
    trained = precision.working.get_parameter("stack.layers.0.layers.1.up.b.weight")
    with torch.no_grad():
        frozen.zero_()
        trained.zero_()
    precision.refresh()
    assert not frozen.any() and trained.any()
    precision.refresh(frozen=True)
    assert frozen.any()


def test_lengths_stay_wide_in_training() -> None:
    working = Precision(model([LORA], LAYERS).float(), torch.bfloat16).working
    assert {p.dtype for name, p in working.named_parameters() if name.endswith("magnitude")} == {torch.float32}


@pytest.fixture
def aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of any size are written to a file."""
    monkeypatch.setattr("weft.training.precision.LaidAside", partial(LaidAside, least=1))


def run_of(folder: Path, rewrites: list[Any], options: dict[str, Any], **training: Any) -> RunConfig:
    plain = {**described(rewrites, LAYERS, **options), "vocab_size": 300}
    return tiny_run(folder, plain, steps=4, dtype="bfloat16", **training)


def in_a_file(found: nn.Module) -> set[str]:
    """The parameters that lie in the mapping of an unnamed file."""
    mapped = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()
              if line.endswith("(deleted)")]
    return {name for name, p in found.named_parameters()
            if any(int(begin, 16) <= p.data_ptr() < int(end, 16) for begin, end in mapped)}


CASES: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    "lora": ([LORA], {}, {}),
    "quantised base": (["int8", {"kind": "lora", "rank": 2}], {}, {}),
    "tied": ([LORA], {"readout": {"kind": "linear", "tied": True}}, {"accumulation": 2}),
    "some parts": ([], {}, {"train": ["*.up.*", "norms"]}),
    "average": ([LORA], {}, {"average": {"decay": 0.5}}),
    "recompute": ([LORA], {}, {"compute": {"matmul": "default", "checkpoint_activations": True}}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_changes_nothing_that_is_computed(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrites, options, training = CASES[case]
    config = run_of(tmp_path, rewrites, options, **training)
    found = []
    for least in (1, 1 << 40):
        monkeypatch.setattr("weft.training.precision.LaidAside", partial(LaidAside, least=least))
        torch.manual_seed(0)
        made = stirred(build_model(config))
        before = {name: p.detach().clone() for name, p in made.named_parameters() if not p.requires_grad}
        trainer = Trainer(config, made, prepare(config).train, steps=4, device="cpu")
        losses = [trainer.advance().sums.loss for _ in range(4)]
        assert all(torch.equal(made.get_parameter(name), each) for name, each in before.items())
        assert bool(in_a_file(made)) == (least == 1) and in_a_file(made) <= set(before)
        trainer.precision.finish()
        assert not in_a_file(made)
        found.append((losses, made))
    assert found[0][0] == found[1][0]
    assert same_weights(found[0][1], found[1][1])


def test_the_model_that_computes_has_no_copy_of_what_is_the_same_in_both() -> None:
    whole = model(["int8", {**LORA, "maps": ["qkv", "up"], "dora": False}], LAYERS).float()
    working = Precision(whole, torch.bfloat16).working
    shared = {name for (name, a), (_, b) in zip(tensors(whole), tensors(working), strict=True)
              if a.data_ptr() == b.data_ptr()}
    assert {"norm.weight", "stack.layers.0.layers.1.up.base.matrix.values"} <= shared
    assert not any(a.requires_grad for name, a in tensors(whole) if name in shared)


def tensors(found: nn.Module) -> list[tuple[str, Tensor]]:
    return [*found.named_parameters(), *found.named_buffers()]


@pytest.mark.usefixtures("aside")
def test_what_thaws_later_stays_in_memory_in_float32(tmp_path: Path) -> None:
    config = run_of(tmp_path, [], {}, unfreeze={"until": 0.9})
    trainer = Trainer(config, build_model(config), prepare(config).train, steps=4, device="cpu")
    assert not in_a_file(trainer.model)
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}


@pytest.mark.usefixtures("aside")
def test_without_room_for_a_file_weights_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model([LORA], LAYERS).float()
    before = {name: p.clone() for name, p in whole.named_parameters()}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    precision = Precision(whole, torch.bfloat16)
    precision.refresh()
    precision.finish()
    assert not in_a_file(whole)
    assert all(torch.equal(p, before[name]) for name, p in whole.named_parameters())


@pytest.mark.usefixtures("aside")
@pytest.mark.parametrize(("times", "written"), [(1.9, False), (2.5, True)])
def test_a_file_takes_half_of_what_is_free_at_most(times: float, written: bool,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model([LORA], LAYERS).float()
    size = sum(p.nbytes for p in whole.parameters() if not p.requires_grad)
    free = SimpleNamespace(free=round(times * size))
    monkeypatch.setattr("weft.training.precision.shutil.disk_usage", lambda folder: free)
    Precision(whole, torch.bfloat16)
    assert bool(in_a_file(whole)) is written


def test_a_file_takes_no_memory(tmp_path: Path) -> None:
    """In a process of its own: elsewhere the weight may lie in what other tests have freed, which stays."""
    ended = fresh(lay_aside, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr


def lay_aside() -> None:
    size = 1 << 24
    weight = nn.Parameter(torch.ones(size), requires_grad=False)
    before, aside = resident(), LaidAside([weight])
    aside.release()
    assert before - resident() > 3 * size, "float32 takes four bytes"
    assert float(weight.detach().sum()) == size
    read = resident()
    aside.release()
    assert read - resident() > 3 * size


def test_the_file_of_a_model_is_not_kept_in_memory_by_what_stays(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"large": torch.rand(1 << 16), "small": torch.rand(4)}, file)
    large, small = (nn.Parameter(each, requires_grad=False) for each in load_file(file).values())
    before = small.clone()
    assert str(file) in Path("/proc/self/maps").read_text()
    aside = LaidAside([large], [small], least=1)
    assert str(file) not in Path("/proc/self/maps").read_text()
    assert torch.equal(small, before)
    aside.take_back()


def resident() -> int:
    """Bytes of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.usefixtures("aside")
def test_a_run_in_bfloat16_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = run_of(tmp_path, [LORA], {})
    narrow = config.model_copy(update={"report": config.report.model_copy(update={"checkpoint_every": 2, "keep": 9})})
    whole = train(narrow, tmp_path / "whole")
    train(narrow, tmp_path / "part")
    for path in sorted((tmp_path / "part/checkpoints").iterdir())[-1:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    again = train(narrow, tmp_path / "part", resume=True)
    assert same_weights(whole.model, again.model)
    assert same_weights(load_checkpoint(tmp_path / "part").model, whole.model)
    torch.manual_seed(config.seed)
    first = build_model(config)
    frozen = {name: p for name, p in first.named_parameters() if not p.requires_grad}
    assert all(torch.equal(whole.model.get_parameter(name), p) for name, p in frozen.items())
    assert {p.dtype for p in whole.model.parameters()} == {torch.float32}
    assert not in_a_file(whole.model)
