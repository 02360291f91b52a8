"""Decoding on a GPU by CUDA graphs: the texts of the CPU, few captures, and no wait for the device in a step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from decoding.small_models import MLP, ROPE, decoder
from weft.core.model import LanguageModel
from weft.decoding import CompiledStep, Ending, Row, Sampling, generate
from weft.decoding.session import Session
from weft.gpu import graphs

CUDA = torch.device("cuda")
WINDOW = {**ROPE, "mask": "causal & window(4)", "n_kv_heads": 1}
MOE = {"kind": "moe", "n_experts": 3, "top_k": 2, "expert": MLP}
LAYERS: dict[str, tuple[Any, ...]] = {
    "attention": (ROPE, MLP), "window": (WINDOW, MLP), "lstm": ("lstm",), "mamba": ("mamba",), "moe": (ROPE, MOE),
    "hybrid": ("gru", WINDOW, MLP)}
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9], [2, 2], [7], [8, 1]]
SAMPLINGS = {"greedy": Sampling(0.0), "drawn": Sampling(0.9, top_k=5)}


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    """In place of that of this folder: the draw's sums of probabilities have no form that CUDA calls repeatable."""


def pair(name: str) -> tuple[LanguageModel, LanguageModel]:
    """The same model in float64 on the CPU and on the GPU."""
    model = decoder(*LAYERS[name]).eval()
    return model, copy.deepcopy(model).to(CUDA)


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The captures that are made inside."""
    found, capture = list[int](), graphs.CudaGraph.capture

    def counting(self: graphs.CudaGraph, work: Any) -> None:
        found.append(1)
        capture(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(graphs.CudaGraph, "capture", counting)
        yield found


@pytest.mark.parametrize(("name", "sampling", "compiled"), [
    *((name, sampling, False) for name in LAYERS for sampling in SAMPLINGS), ("attention", "greedy", True)])
def test_text_is_that_of_the_cpu(name: str, sampling: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """float64: only a tie within 1e-12 could be decided otherwise."""
    here, there = pair(name)
    step = CompiledStep(there) if compiled else None
    options: dict[str, Any] = {"max_new_tokens": 32, "sampling": SAMPLINGS[sampling], "ending": Ending(tokens=(3,))}
    with counted(monkeypatch) as captures:
        found = generate(there, PROMPTS, batch_size=2, compiled=step, **options)
    assert found == generate(here, PROMPTS, batch_size=2, **options)
    assert 1 <= len(captures) <= 3, "the batch of two, and that of one which is left"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_a_step_is_one_graph_and_waits_for_nothing(name: str, dtype: torch.dtype,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    model = pair(name)[1].to(dtype)
    with counted(monkeypatch) as captures:
        session = Session(model, [Row((1, 2, 3)), Row((4, 5))], max_new_tokens=60)
        for _ in range(4):
            session.advance(torch.tensor([1, 2], device=CUDA))
        tokens = torch.tensor([2, 1], device=CUDA)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(40):
                session.advance(tokens)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert session.by_tape and session.without_graph is None and len(captures) == 1


@pytest.mark.parametrize("name", LAYERS)
def test_a_graph_gives_what_ordinary_steps_give(name: str) -> None:
    """float32: a graph reads slots that ordinary steps do not have yet, and so may sum in another order."""
    model, rows = pair(name)[1].float(), [Row((1, 2, 3)), Row((4, 5))]
    graphed, plain = (Session(model, rows, max_new_tokens=60, plain=plain) for plain in (False, True))
    for step in range(30):
        for session in (graphed, plain):
            session.advance(torch.tensor([step % 11, 3], device=CUDA))
        torch.testing.assert_close(graphed.logits, plain.logits, rtol=1e-5, atol=1e-5)
    assert graphed.by_tape and graphed.without_graph is None
