"""What stands between the products of a step, in C: against float64 within the rounding of their formats, in every
instruction set, at odd sizes and with any strides; sums and copies against PyTorch's, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from ops.native_sets import instructions, numbers, without_gradients
from weft.ops.few_rows import OTHER_ROWS
from weft.ops.native.sequence import WRITERS, Calls, NativeCall, perform, place_of
from weft.ops.native_token import PART, native_norm, native_rotary
from weft.ops.norms import LAYER_NORM, RMS_NORM, LayerNormCall, RMSNormCall
from weft.ops.rotary import ROTARY, RotaryCall, turns

__all__ = ["instructions", "without_gradients"]
DTYPES = (torch.float32, torch.bfloat16)
ROUNDING = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
"""Half the distance between neighbouring numbers of 24 and of 8 significant bits, relative to the smaller one."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 5, 64, 1024, 2065])
def test_norms_are_within_the_rounding_of_their_format(dtype: torch.dtype, size: int, instructions: str) -> None:
    for centred, kind in ((False, torch.float32), (False, dtype), (True, torch.float32), (True, dtype)):
        x = 3 * numbers(3, 2, size, dtype=dtype) + 1
        scale, bias = numbers(size, seed=1, dtype=kind), numbers(size, seed=2, dtype=kind)
        for by, plus in ((None, None), (scale, None), (scale, bias)):
            wide = x.double()
            off = wide - wide.mean(-1, keepdim=True) if centred else wide
            y = off / (off.square().mean(-1, keepdim=True) + 0.1).sqrt() * (1 if by is None else by.double())
            whole = y if plus is None else y + plus.double()
            found = native_norm(x, by, plus, 0.1, centred)
            # Sums of squares are off by some roundings of float32 for each lane's terms, their roots by half of that; a
            # mean by some roundings of numbers of up to 13, times the scale.
            narrow = ROUNDING[torch.float32] * ((size / 16 + 8) * (y.abs() + 1) + 8 * 13 * 4 * centred)
            assert found.dtype == dtype
            room = ROUNDING[dtype] * whole.abs() + narrow * (1 + ROUNDING[dtype])
            assert ((found.double() - whole).abs() <= room).all()
            assert torch.equal(found[1:2], native_norm(x[1:2], by, plus, 0.1, centred))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["half_split", "interleaved"])
def test_turned_pairs_are_within_the_rounding_of_their_format(dtype: torch.dtype, layout: Any,
                                                              instructions: str) -> None:
    for batch, angles in ((1, numbers(1, 1, 5)), (3, numbers(3, 1, 5)), (3, numbers(1, 1, 5))):
        by = turns(angles.cos(), angles.sin(), layout)
        whole = numbers(batch, 1, 4, 17, seed=2, dtype=dtype)
        for x in (whole[..., :10].contiguous(), whole[:, :, 1:3, 5:15], whole[..., :10].transpose(2, 3).contiguous()
                  .transpose(2, 3)):
            wide = turns(angles.double().cos(), angles.double().sin(), layout)
            y = ROTARY(RotaryCall(x.double(), wide), "reference")
            found = native_rotary(x, by.cos, by.sin, layout == "interleaved")
            # Two products and a sum of numbers of the size of x, and angles that are rounded.
            room = ROUNDING[dtype] * y.abs() + 6 * ROUNDING[torch.float32] * x.double().abs().amax()
            assert found.dtype == dtype and ((found.double() - y).abs() <= room).all()


def test_they_are_chosen_for_one_token_without_gradients() -> None:
    x = numbers(2, 1, 3, 8)
    angles = numbers(1, 1, 4)
    by = turns(angles.cos(), angles.sin(), "half_split")
    assert ROTARY.choose(RotaryCall(x, by)).form.name == "native"
    assert "native: it takes one token of every row" in ROTARY.choose(RotaryCall(x.transpose(0, 1), by)).passed
    assert "native: its angles are not in float32" in ROTARY.choose(
        RotaryCall(x, turns(angles.double().cos(), angles.double().sin(), "half_split"))).passed
    assert RMS_NORM.choose(RMSNormCall(x, None, 1e-5)).form.name == "native"
    many = RMSNormCall(numbers(OTHER_ROWS + 1, 8), None, 1e-5)
    assert f"native: more than {OTHER_ROWS} rows" in RMS_NORM.choose(many).passed
    assert "native: its scale is in another dtype" in RMS_NORM.choose(
        RMSNormCall(x, numbers(8, dtype=torch.float64), 1e-5)).passed
    assert LAYER_NORM.choose(LayerNormCall(x, None, None, 1e-5)).form.name == "native"
    with torch.inference_mode(False), torch.enable_grad():
        assert "native: it runs only without gradients" in RMS_NORM.choose(RMSNormCall(torch.ones(1, 8), None,
                                                                                       1e-5)).passed


def calls_of(function: Callable[..., Any], result: Tensor, *args: Any, **options: Any) -> tuple[NativeCall, ...]:
    """What a call is in C."""
    found = WRITERS[function](result, *args, **options) or ()
    return (found,) if isinstance(found, NativeCall) else found


def again(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Tensor, Tensor] | None:
    """A call's result by PyTorch, and by C in the same layout; None where C leaves it."""
    wanted = function(*args, **options)
    found = torch.empty_strided(wanted.shape, wanted.stride(), dtype=wanted.dtype)
    calls = calls_of(function, wanted, *args, **options)
    for call in calls:
        perform(call, found)
    return (wanted, found) if calls else None


def test_sums_and_copies_are_those_of_torch_bit_for_bit(instructions: str) -> None:
    for dtype in DTYPES:
        x, y = 3 * numbers(3, PART // 2 + 7, dtype=dtype), numbers(3, PART // 2 + 7, seed=1, dtype=dtype)
        x[0, :3] = torch.tensor([torch.nan, torch.inf, 1e-40])
        pair = again(torch.Tensor.add, x, y)
        assert pair is not None and torch.equal(pair[0].nan_to_num(), pair[1].nan_to_num())
        assert pair[1][0, 0].isnan()
        other = next(each for each in DTYPES if each is not dtype)
        for part in (x[:, :100], x[:, :100].view(3, 2, 50).transpose(0, 2), x[:, :99].view(3, 3, 33)[..., ::2]):
            for pair in (again(torch.Tensor.to, part, other), again(torch.Tensor.to, part, dtype=other)):
                assert pair is not None and torch.equal(pair[0].nan_to_num(), pair[1].nan_to_num())
    whole = numbers(4, 3, 5, 6)
    for pair in (again(torch.Tensor.flatten, whole.transpose(1, 2), 0, 2),
                 again(torch.Tensor.reshape, whole.mT, 12, 30),
                 again(torch.Tensor.contiguous, whole[..., ::2]), again(torch.Tensor.clone, whole[:, 1]),
                 again(torch.cat, [whole[:, 1:], whole, whole[:, :1]], 1),
                 again(torch.cat, [whole[..., :2], whole.mT.contiguous().mT], dim=-1)):
        assert pair is not None and torch.equal(*pair)


def test_what_is_no_copy_of_numbers_in_order_is_left_to_torch() -> None:
    x = numbers(2, 3)
    assert again(torch.Tensor.flatten, x) is None, "a view"
    assert again(torch.Tensor.to, x, torch.float64) is None
    assert again(torch.Tensor.add, x, 1.0) is None
    assert again(torch.Tensor.add, x, x[:1]) is None, "it spreads a row"
    assert again(torch.Tensor.add, x, x, alpha=2) is None
    assert again(torch.Tensor.add, x, x.double()) is None
    assert again(torch.cat, [x, x.double()]) is None


def test_lines_are_written_where_they_belong_and_nowhere_else(instructions: str) -> None:
    for dtype in DTYPES:
        to, lines, at = numbers(7, 5, dtype=dtype), numbers(3, 5, seed=1, dtype=dtype), torch.tensor([6, 0, 3])
        wanted = to.clone().index_copy_(0, at, lines)
        call, = calls_of(torch.Tensor.index_copy_, to, to, 0, at, lines)
        perform(call)
        assert torch.equal(to, wanted)
        for wrong in (7, -1):
            before = to.clone()
            call, = calls_of(torch.Tensor.index_copy_, to, to, 0, torch.tensor([wrong, 2, 3]), lines)
            with pytest.raises(IndexError, match="a line outside of the tensor"):
                perform(call)
            assert torch.equal(to, before)
    assert not calls_of(torch.Tensor.index_copy_, to, to, 1, at[:2], lines)


def test_calls_of_a_sequence_see_what_those_before_them_wrote(instructions: str) -> None:
    """A chain of sums on several threads, each of several pieces: every number counts the calls."""
    steps, size = 40, 3 * PART + 5
    held = [torch.zeros(size) for _ in range(steps + 1)]
    one = torch.ones(size)
    calls = []
    for x, y in pairwise(held):
        call, = calls_of(torch.Tensor.add, y, x, one)
        for field, tensor in (("x", x), ("y", one), ("z", y)):
            place_of(call.call, field, tensor.data_ptr())
        calls.append(call)
    sequence = Calls(calls, [[place_of(calls[0].call, "x")]], [(held[-1], [place_of(calls[-1].call, "z")])])
    before = torch.get_num_threads()
    try:
        for threads, start in ((1, 0.0), (2, 5.0), (4, 7.0)):
            torch.set_num_threads(threads)
            result, = sequence(torch.full((size,), start))
            assert result.eq(steps + start).all() and held[-1].eq(0).all()
    finally:
        torch.set_num_threads(before)
