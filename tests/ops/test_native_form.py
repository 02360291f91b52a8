"""The form of attention in C: what it is chosen for, and layers that compute with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from weft.core.clock import Keys
from weft.core.config import parse_part
from weft.core.part_config import Dims
from weft.core.span import WHOLE, Span
from weft.masks import parse_mask
from weft.masks.visible import MaskFacts, VisibleKeys, visible
from weft.ops.attention import ATTENTION, AttentionCall, WrittenTerm
from weft.ops.forms import forced
from weft.ops.native.library import VARIABLE, NativeLibrary, loaded

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"
SCALE = 0.7
BOUND = 1e-5
"""Relative to the largest entry: sums of some hundred terms in float32, each rounded to 6e-8."""


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 1.5


def under(mask: str, q: Tensor, span: Span = WHOLE) -> VisibleKeys:
    resolved = span.resolve(None, q)
    return visible(MaskFacts.of(parse_mask(mask), q.shape[2]), Keys.of(resolved.ticks), resolved)


def called(mask: str = "causal", steps: int = 200, dtype: torch.dtype = torch.float32, **facts: Any) -> AttentionCall:
    q, k, v = (torch.ones(2, steps, 4, 8, dtype=dtype) for _ in range(3))
    return AttentionCall(q, k, v, SCALE, facts.pop("visible", under(mask, q)), **facts)


@pytest.mark.parametrize(("call", "reason"), [
    (called(steps=2), "too few queries"),
    (called(dtype=torch.float64), "it runs only in bfloat16 or float32"),
    (called("causal & strided(3)"), "keys may not be consecutive"),
    (called(softcap=2.0), "it has no softcap and no dropout"),
    (called(dropout=0.5), "it has no softcap and no dropout"),
    (called(terms=(WrittenTerm(torch.zeros(1, 1, 200, 200)),)), "a bias depends on more than distance"),
    (called(record=lambda weights: None), "it returns no weights"),
    (AttentionCall(*(torch.ones(2, 200, 1, 257) for _ in range(3)), SCALE), "a head has more than 256 features"),
    (AttentionCall(torch.ones(2, 200, 1, 8), *(torch.ones(2, 0, 1, 8) for _ in range(2)), SCALE),
     "there are no queries or no keys"),
    (AttentionCall(torch.ones(2, 200, 1, 8), torch.ones(2, 200, 1, 8).double(), torch.ones(2, 200, 1, 8), SCALE),
     "its tensors are of several dtypes"),
])
def test_why_it_is_not_chosen(call: AttentionCall, reason: str) -> None:
    form, _, passed = ATTENTION.choose(call)
    assert form.name != "native"
    assert f"native: {reason}" in passed


@pytest.mark.parametrize("mask", ["causal", "causal & window(5)", "bidirectional"])
def test_it_is_chosen_for_intervals(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for instructions in LIBRARY.sets:
        monkeypatch.setenv(VARIABLE, instructions)
        for dtype in (torch.float32, torch.bfloat16):
            assert ATTENTION.choose(called(mask, dtype=dtype)).form.name == "native"


def test_few_key_heads_are_left_to_others_in_training() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(9)
    try:
        assert "native: it has fewer key heads than threads" in ATTENTION.choose(called()).passed
    finally:
        torch.set_num_threads(before)


def spans() -> Iterator[tuple[str, Span]]:
    begins = torch.zeros(3, 150, dtype=torch.bool)
    begins[0, [0, 3, 70]] = begins[1, [20, 149]] = True
    yield "whole", WHOLE
    yield "padded", Span(count=torch.tensor([150, 1, 90]))
    yield "packed", Span(begins=begins)
    yield "packed and padded", Span(begins=begins, count=torch.tensor([150, 140, 0]))


@pytest.mark.parametrize("position", ["rope", "t5", "alibi"])
@pytest.mark.parametrize("mask", ["causal", "causal & window(40)", "bidirectional", "symmetric_window(30, 9)"])
@pytest.mark.parametrize(("name", "span"), [pytest.param(*each, id=each[0]) for each in spans()])
def test_a_layer_computes_the_same_with_documents_and_padding(mask: str, position: str, name: str, span: Span) -> None:
    torch.manual_seed(0)
    config = parse_part(("mixer",), {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "mask": mask,
                                     "position": position})
    layer, x = config.build(Dims(32)), numbers(3, 150, 32, seed=9).requires_grad_()
    outcomes = []
    for form in ("reference", "native"):
        if form == "native" and "causal" not in mask and "packed" in name:
            continue  # a document's end is no fact of its tokens
        with forced({"attention": form}):
            y = layer(x, span=span).y
            outcomes.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    for other in outcomes[1:]:
        for found, wanted in zip(other, outcomes[0], strict=True):
            assert_close(found, wanted, rtol=0, atol=BOUND * max(float(wanted.detach().abs().max()), 1e-3))
    assert len(outcomes) == 1 + ("causal" in mask or "packed" not in name)


@pytest.mark.parametrize("mask", ["causal", "causal & window(40)"])
@torch.no_grad()
def test_chunks_after_a_state_compute_the_same(mask: str) -> None:
    torch.manual_seed(0)
    layer = parse_part(("mixer",), {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "mask": mask}).build(Dims(32))
    x = numbers(2, 150, 32, seed=9)
    with forced({"attention": "reference"}):
        whole = layer(x).y
    state, pieces, seen = layer.init_state(2), [], 0
    for chunk in x.split([70, 1, 79], 1):
        seen += chunk.shape[1]
        with forced({"attention": "native"}):
            out = layer(chunk, state, Span(bound=seen, uniform=True))
        state, pieces = out.state, [*pieces, out.y]
    assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=BOUND * float(whole.abs().max()))


def test_a_layer_compiles_whole_with_the_same_form() -> None:
    """The chooser is traced, and the compiler takes what it asks of thresholds and of native code for constants."""
    torch.manual_seed(0)
    layer = parse_part(("mixer",), {"kind": "attention", "n_heads": 4, "mask": "causal & window(40)"}).build(Dims(32))
    x, graphs = numbers(2, 200, 32, seed=9).requires_grad_(), list[str]()

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph.forward

    compiled = torch.compile(lambda x: layer(x).y, backend=backend, fullgraph=True)
    slopes = [torch.autograd.grad(run(x).square().sum(), [x, *layer.parameters()])
              for run in (compiled, lambda x: layer(x).y)]
    assert "weft.native_attention" in graphs[0]
    for found, wanted in zip(*slopes, strict=True):
        assert_close(found, wanted, rtol=0, atol=BOUND * float(wanted.abs().max()))
