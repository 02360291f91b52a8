"""Attention of one query by Triton against the reference: interpreted where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.core.clock import Keys
from weft.core.span import WHOLE
from weft.masks import Causal
from weft.masks.visible import ExistingKeys, MaskFacts, VisibleKeys, visible
from weft.ops.attention import ATTENTION, AttentionCall, WrittenTerm
from weft.ops.triton import library, query_attention

REASON = library.why_not()
assert REASON is None, f"the tests need Triton, which the extra dev installs: {REASON}"
DEVICE = "cpu" if library.interpreted() else "cuda"
BOUND = 2e-6
"""Float32: softmax and sums of some hundred terms of about one, each rounded to 6e-8."""


class Some(VisibleKeys):
    """Any keys."""

    def __init__(self, allowed: Tensor) -> None:
        self.allowed = allowed

    def dense(self) -> Tensor:
        return self.allowed


def call(rows: int = 2, heads: int = 4, key_heads: int = 2, keys: int = 100, size: int = 6, width: int = 5,
         dtype: torch.dtype = torch.float32, **more: Any) -> AttentionCall:
    """With keys and values laid out as a cache lays them out."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    return AttentionCall(make(rows, 1, heads, size), make(rows, key_heads, keys, size).transpose(1, 2),
                         make(rows, key_heads, keys, width).transpose(1, 2), 0.7, **more)


def mask(rows: int, heads: int, keys: int) -> Tensor:
    """Other keys for each row and head; nothing at all for the last head of the first row."""
    seen = torch.rand(rows, heads, 1, keys, generator=torch.Generator().manual_seed(1)) < 0.5
    seen[0, -1] = False
    return seen.to(DEVICE)


def lengths(*each: int, keys: int = 100) -> ExistingKeys:
    return ExistingKeys(torch.arange(keys, device=DEVICE) < torch.tensor(each, device=DEVICE)[:, None], 1)


CALLS: dict[str, Callable[[], AttentionCall]] = {
    "all keys": call, "one head each": lambda: call(heads=3, key_heads=3), "one key": lambda: call(keys=1),
    "rows of several lengths": lambda: call(rows=3, visible=lengths(1, 100, 37)),
    "a row without keys": lambda: call(visible=lengths(0, 64)),
    "several programs": lambda: call(keys=700), "large heads": lambda: call(size=80, width=33),
    "several programs, rows of several lengths": lambda: call(keys=700, visible=lengths(0, 513, keys=700)),
    "a mask for each head": lambda: call(visible=Some(mask(2, 4, 100))),
    "a mask for each head, several programs": lambda: call(keys=700, visible=Some(mask(2, 4, 700))),
    "a bias": lambda: call(terms=(WrittenTerm(torch.randn(1, 4, 1, 100, device=DEVICE)),), visible=lengths(3, 90)),
    "a cap": lambda: call(softcap=1.5), "many heads of a group": lambda: call(heads=40, key_heads=2),
    "sinks": lambda: call(sinks=torch.randn(4, device=DEVICE), visible=lengths(0, 90)),
    "sinks, several programs": lambda: call(keys=700, sinks=torch.randn(4, device=DEVICE), softcap=2.0,
                                            visible=lengths(650, 0, keys=700)),
}


@pytest.mark.parametrize("name", CALLS)
@torch.no_grad()
def test_one_query_equals_the_reference(name: str) -> None:
    made = CALLS[name]()
    found, wanted = ATTENTION(made, "triton_query"), ATTENTION(made, "reference")
    torch.testing.assert_close(found, wanted, rtol=BOUND, atol=BOUND)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@torch.no_grad()
def test_half_precision_is_rounded_once_more_than_in_the_reference(dtype: torch.dtype, bound: float) -> None:
    """Weights, relative to the largest, are rounded before the sum of values on a GPU, as PyTorch's fused kernels do;
    the numbers are some 2, of 11 or 8 bits."""
    made = call(dtype=dtype, visible=lengths(3, 90))
    torch.testing.assert_close(ATTENTION(made, "triton_query"), ATTENTION(made, "reference"), rtol=bound, atol=bound)


@torch.no_grad()
def test_slots_that_hold_nothing_are_not_read() -> None:
    """Numbers that are no numbers lie there."""
    made = call(visible=lengths(5, 64))
    for row, length in enumerate((5, 64)):
        made.k[row, length:] = made.v[row, length:] = torch.nan
    found = ATTENTION(made, "triton_query")
    assert found.isfinite().all()


@pytest.mark.parametrize(("rows", "heads", "keys", "per"), [
    (64, 8, 2048, 2048), (1, 8, 256, 256), (1, 8, 4096, 256), (1, 8, 100_000, 3072), (4, 1, 100_000, 1600)])
def test_keys_are_divided_until_there_are_enough_programs(rows: int, heads: int, keys: int, per: int) -> None:
    assert query_attention.keys_of_a_program(rows, heads, keys) == per
    assert -(-keys // per) <= query_attention.MOST


def test_what_it_cannot_serve_is_said() -> None:
    def why(**more: Any) -> str | None:
        return query_attention.FORM.serves(call(**more))  # type: ignore[misc]

    assert why() is None
    assert "dropout" in str(why(dropout=0.5)) and "weights" in str(why(record=print))
    assert "too large" in str(why(size=300)) and "sinks" in str(why(sinks=torch.zeros(2, 1, 4)))
    q = torch.zeros(1, 2, 1, 4)
    span = WHOLE.resolve(None, q)
    two = AttentionCall(q, q, q, 1.0, visible(MaskFacts.of(Causal(), 1), Keys.of(span.ticks), span))
    assert "single query" in str(query_attention.FORM.serves(two))  # type: ignore[misc]


def test_the_compiler_takes_whether_triton_serves_for_a_constant() -> None:
    """It cannot trace the search for a C compiler."""
    torch._dynamo.reset()
    library._why_not.cache_clear()
    same = torch.compile(lambda x: x if library.why_not() is None else x + 1, backend="eager", fullgraph=True)
    assert same(torch.ones(2)).tolist() == [1, 1]
