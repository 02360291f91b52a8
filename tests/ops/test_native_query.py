"""Attention of one query in C: against float64, in every instruction set, with any heads, sizes, strides and masks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from ops.native_sets import TensorKeys, instructions, without_gradients
from weft.core.errors import UnsupportedError
from weft.ops.attention import ATTENTION, AttentionCall
from weft.ops.native_query import LONG, native_query, query_flops

__all__ = ["instructions", "without_gradients"]
DTYPES = (torch.float32, torch.bfloat16)
SHAPES = ((1, 8, 2, 5, 64, 64), (2, 4, 4, 33, 20, 7), (1, 9, 1, 130, 128, 96), (3, 5, 1, 8, 3, 80), (2, 2, 2, 1, 1, 1))
"""Rows, heads, key heads, keys, features of a key and of a value: below and past a tile, a vector and four vectors."""


def tensors(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, key_heads, keys, size, width = shape
    generator = torch.Generator().manual_seed(sum(shape))
    q, k, v = (torch.randn(each, generator=generator).to(dtype) for each in (
        (batch, 1, heads, size), (batch, key_heads, keys, size), (batch, key_heads, keys, width)))
    return q, k.transpose(1, 2), v.transpose(1, 2)  # as caches lie


def masks(shape: tuple[int, ...]) -> Iterator[Tensor | None]:
    """None; of all heads, of each row, of each head; with holes; and hiding everything from some."""
    batch, heads, _, keys = shape[:4]
    yield None
    yield torch.ones(1, 1, 1, keys, dtype=torch.bool)
    yield (torch.arange(keys) < torch.arange(1, batch + 1)[:, None])[:, None, None]
    spread = (torch.arange(keys) * 7 % 5 < torch.arange(heads)[:, None] % 5)[None, :, None]
    yield spread
    yield spread & (torch.arange(batch) != 1)[:, None, None, None]


def wanted(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    """Head by head in float64; zeros where nothing may be attended to."""
    y = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    group = q.shape[2] // k.shape[2]
    for row in range(len(q)):
        for head in range(q.shape[2]):
            keys, values = k[row, :, head // group].double(), v[row, :, head // group].double()
            seen = torch.ones(len(keys), dtype=torch.bool)
            if allowed is not None:
                seen = allowed.expand(len(q), q.shape[2], 1, -1)[row, head, 0]
            if seen.any():
                weights = (scale * keys[seen] @ q[row, 0, head].double()).softmax(0)
                y[row, 0, head] = weights @ values[seen]
    return y


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_query_attends_to_what_it_may(shape: tuple[int, ...], dtype: torch.dtype, instructions: str) -> None:
    q, k, v = tensors(shape, dtype)
    for allowed in masks(shape):
        y = wanted(q, k, v, allowed, 0.3)
        found = native_query(q, k, v, allowed, 0.3)
        # Scores are sums of E products of numbers of about one in float32, their weights are off by as much, relative
        # to one; a result in bfloat16 is rounded by 2^-8 of itself.
        bound = 3e-6 if dtype == torch.float32 else 1.01 * 2.0**-8
        assert found.dtype == dtype and (found.double() - y).abs().max() <= bound * max(1.0, float(y.abs().max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_threads_and_strides_do_not_change_a_bit(dtype: torch.dtype, instructions: str) -> None:
    q, k, v = tensors((3, 8, 2, 700, 64, 64), dtype)
    assert k.numel() * 2 * k.element_size() > LONG, "a call by itself takes several threads"
    allowed = (torch.arange(700) < torch.tensor([[90], [700], [333]]))[:, None, None]
    whole, before = native_query(q, k, v, allowed, 0.125), torch.get_num_threads()
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            assert torch.equal(native_query(q, k, v, allowed, 0.125), whole)
            alone = [native_query(q[row : row + 1], k[row : row + 1], v[row : row + 1], allowed[row : row + 1], 0.125)
                     for row in range(3)]
            assert torch.equal(torch.cat(alone), whole)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(native_query(q, k.contiguous(), v.contiguous(), allowed.contiguous(), 0.125), whole)
    wide = torch.randn(3, 1, 11, 64).to(dtype)
    wide[:, :, 2:10] = q
    for lying in (wide[:, :, 2:10], q.mT.contiguous().mT):
        assert torch.equal(native_query(lying, k, v, allowed, 0.125), whole)
    assert torch.equal(native_query(q[:1], k[:1, :90], v[:1, :90], None, 0.125), whole[:1])


def test_keys_that_are_hidden_are_not_read(instructions: str) -> None:
    q, k, v = tensors((1, 4, 2, 40, 16, 16), torch.float32)
    allowed = (torch.arange(40) >= 3) & (torch.arange(40) < 30)
    y = native_query(q, k, v, allowed[None, None, None], 1.0)
    k[:, 30:], v[:, 30:], k[:, :3], v[:, :3] = torch.nan, torch.inf, torch.inf, torch.nan
    assert torch.equal(native_query(q, k, v, allowed[None, None, None], 1.0), y)
    v[:, 5] = torch.nan
    assert native_query(q, k, v, allowed[None, None, None], 1.0).isnan().all()
    k[:, 5, 0] = torch.nan
    assert native_query(q, k, v.nan_to_num(), allowed[None, None, None], 1.0)[:, :, :2].isnan().all()


def test_large_scores_do_not_overflow(instructions: str) -> None:
    q, k, v = tensors((1, 2, 2, 20, 8, 8), torch.float32)
    y = wanted(100 * q, k, v, None, 100.0)
    assert (native_query(100 * q, k, v, None, 100.0).double() - y).abs().max() < 1e-3, "one key has all the weight"


def test_what_it_is_chosen_for_and_why_not() -> None:
    q, k, v = tensors((1, 4, 2, 9, 8, 8), torch.float32)
    everywhere = TensorKeys(torch.ones(1, 1, 1, 9, dtype=torch.bool))
    assert ATTENTION.choose(AttentionCall(q, k, v, 1.0, everywhere)).form.name == "one_query"
    for call, reason in ((AttentionCall(q.expand(-1, 9, -1, -1), k, v, 1.0), "it takes a single query"),
                         (AttentionCall(q, k, v, 1.0, softcap=2.0), "it has no softcap"),
                         (AttentionCall(q, k, v, 1.0, dropout=0.5), "it has no biases and no dropout"),
                         (AttentionCall(q, k.double(), v, 1.0), "its tensors are of several dtypes"),
                         (AttentionCall(q[:0], k[:0], v[:0], 1.0), "there are no queries or no keys")):
        assert f"one_query: {reason}" in ATTENTION.choose(call).passed
        with pytest.raises(UnsupportedError, match=reason):
            ATTENTION(call, "one_query")
    assert query_flops(q, k, v, None, 1.0) == 2 * 4 * 9 * (8 + 8)
