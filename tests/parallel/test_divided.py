"""Adapters and random numbers where processes divide a model, and compiled runs where they share one: the course of one
process, and masks that are equal where activations are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from integration.test_data_parallel import gap
from parallel.divided_worker import adapted, compiles, cut, masked, tagged, traced, worker
from parallel.processes import together
from parallel.test_meshes import figures, saved
from weft.training import RunConfig, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes, and one, have trained."""
    path = tmp_path_factory.mktemp("divided")
    lines = (f"line {i}: {'ab ' * (i * i % 11)}is {i % 7 + i % 5}\n" for i in range(300))
    (path / "text.txt").write_text("".join(lines), encoding="utf-8")
    words = [{"words": ["ab", "c" * (1 + i % 5), "d"][:1 + i % 3], "labels": ["a", "ab"[i % 2], "b"][:1 + i % 3]}
             for i in range(60)]
    (path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in words), encoding="utf-8")
    together(2, worker, path, folder=path)
    return path


def same_course(folder: Path, alone: str, run: str) -> None:
    """As in `test_meshes`: every step's loss and gradient norm, and the last weights."""
    for figure in ("loss", "grad_norm"):
        expected = figures(folder / alone, "progress", figure)
        assert expected and figures(folder / run, "progress", figure) == pytest.approx(expected, rel=1e-10)
    assert gap(saved(folder / run), saved(folder / alone)) < 1e-9


def test_adapters_beside_divided_maps(folder: Path) -> None:
    train(adapted(folder, None), folder / "alone-adapted")
    same_course(folder, "alone-adapted", "tensor-adapted")
    weights = saved(folder / "tensor-adapted")
    assert all(float(weights[name].abs().max()) > 0 for name in weights if name.endswith("b.weight")), "they train"


def test_words_of_rows_that_are_cut(folder: Path) -> None:
    train(tagged(folder, None), folder / "alone-tagged")
    same_course(folder, "alone-tagged", "context-tagged")


@pytest.fixture
def drawn(folder: Path) -> list[dict[str, Tensor]]:
    """What each of two ranks has drawn."""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_processes_drop_alike_what_they_share_and_otherwise_what_they_divide(drawn: list[dict[str, Tensor]]) -> None:
    """Two heads with the same weights and the same tokens differ by what is dropped of their scores alone. What all
    processes have is the same on all of them, bit for bit, after steps that drop inputs of both matrices of adapters:
    processes that dropped other entries would have other weights."""
    first, second = drawn
    assert not torch.equal(first["head"], second["head"])
    assert first["dropped"].double().mean() == pytest.approx(0.5, abs=0.1)
    assert (first["dropped"] == second["dropped"]).double().mean() == pytest.approx(0.5, abs=0.1), "independent"
    alike = [name for name in first if name not in ("head", "dropped")]
    assert {"block", "next", "stack.layers.0.layers.0.qkv.a.weight"} < set(alike)
    assert [name for name in alike if not torch.equal(first[name], second[name])] == []


@pytest.fixture(scope="module")
def compiled_runs(folder: Path) -> Path:
    together(2, compiles, folder, folder=folder, seconds=600)  # compiling takes a busy machine minutes
    return folder


def test_compiled_runs_where_processes_share_a_model(compiled_runs: Path) -> None:
    folder = compiled_runs
    train(traced(folder, None), folder / "alone-traced")
    for mesh in ("shard", "tensor"):
        same_course(folder, "alone-traced", f"{mesh}-traced")


@pytest.mark.parametrize("of", [cut, masked])
def test_compiled_runs_and_encoders_whose_rows_are_cut(compiled_runs: Path, of: Callable[..., RunConfig]) -> None:
    """Packed documents, a state that is handed on in turn and blocks that run again; an encoder, whose tokens read
    later ones."""
    train(of(compiled_runs, None), compiled_runs / f"alone-{of.__name__}")
    same_course(compiled_runs, f"alone-{of.__name__}", f"context-{of.__name__}")
