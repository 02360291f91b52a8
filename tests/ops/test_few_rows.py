"""Products of a few vectors in C: against float64 within the rounding of their formats, in every instruction set of
this processor, at odd sizes, with any strides and threads; and what they are chosen for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from ops.native_sets import instructions
from weft.core.errors import UnsupportedError
from weft.ops.few_rows import (
    ACTIVATION_NAMES,
    FEW_ROWS,
    KINDS,
    OTHER_ROWS,
    functions,
    native_gated,
    native_opened,
    native_product,
)
from weft.ops.forms import Operation, forced
from weft.ops.gated_feed_forward import GATED_FEED_FORWARD, GatedFeedForwardCall
from weft.ops.int4_linear import INT4_LINEAR, Int4Call, four_bits, matrix
from weft.ops.int8_linear import INT8_LINEAR, Int8Call, quantised
from weft.ops.linear import LINEAR, LinearCall, Map
from weft.ops.native.library import VARIABLE, Incomplete
from weft.ops.native.sequence import WRITERS, calls_of, perform

__all__ = ["instructions"]
DTYPES = (torch.float32, torch.bfloat16)
STORED = ("floats", "int8", "int4")
SIZES = ((1, 1), (7, 3), (9, 33), (16, 128), (37, 8200), (130, 259), (40, 96))
"""Outputs and inputs: below and past a tile, a vector, a group, four groups, and what 32 bits have room for."""


def test_without_native_code_they_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "mmx")
    functions.cache_clear()
    try:
        found = LINEAR.choose(LinearCall(torch.ones(1, 8), torch.ones(3, 8)))
        assert "native: WEFT_CPU_CAPABILITY is unknown" in found.passed
    finally:
        monkeypatch.undo()
        functions.cache_clear()


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def stored(how: str, weight: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """What is multiplied by, its scales, and the matrix in float64 that they stand for."""
    if how == "floats":
        return weight, None, weight.double()
    if how == "int8":
        values, scale = quantised(weight)
        return values, scale, values.double() * scale.double()[:, None]
    values, scale = four_bits(weight)
    return values, scale, matrix(values, scale, weight.shape[1], torch.float64)


def allowed(x: Tensor, exact: Tensor, y: Tensor, how: str) -> Tensor:
    """How far a product may be off.

    A sum of K products in float32 in any order is off by K 2^-24 of the sum of their sizes, with scales and bias a few
    roundings more; a result in bfloat16, which has eight significant bits, by 2^-8 of itself. Vectors in bfloat16
    become whole numbers of up to 32,512 beside a matrix of whole numbers, each off by half of one and by the rounding
    of its scale.
    """
    sizes = x.double().abs() @ exact.abs().t()
    room = (x.shape[-1] + 8) * 2.0**-24 * (sizes + y.abs()) + 1e-30
    if x.dtype == torch.float32:
        return room
    if how != "floats":
        room = room + (0.5 + 2.0**-8) / 32512 * x.double().abs().amax(-1, keepdim=True) * exact.abs().sum(1)
    return room + 2.0**-8 * (y.abs() + room)


@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_are_within_the_rounding_of_their_formats(how: str, dtype: torch.dtype, instructions: str) -> None:
    for out, size in SIZES:
        values, scale, exact = stored(how, numbers(out, size, seed=1).to(dtype))
        for rows in (1, 2, 3, 8, 15, *((17, 33, 49, 70) if size in (96, 128) else ())):
            x, bias = numbers(rows, size, seed=2, dtype=dtype) * 3, numbers(out, seed=3, dtype=dtype)
            found = native_product(x, values, scale, bias)
            y = x.double() @ exact.t() + bias.double()
            assert found.dtype == dtype and found.shape == (rows, out)
            assert ((found.double() - y).abs() <= allowed(x, exact, y, how)).all(), (out, size, rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix_of_four_bits_is_opened_exactly_or_rounded_once(dtype: torch.dtype, instructions: str) -> None:
    for out, size in SIZES:
        values, scale = four_bits(numbers(out, size, seed=1))
        wanted = matrix(values, scale, size, torch.float32).to(dtype)
        assert torch.equal(native_opened(values, scale, size, dtype == torch.bfloat16), wanted)
        assert torch.equal(native_opened(values[::2], scale[::2], size, dtype == torch.bfloat16), wanted[::2])
        scale.view(-1)[:7] = torch.tensor([math.nan, -math.nan, math.inf, 1e-39, 3.3e38, -2.9e38, 0.0])[:scale.numel()]
        wanted = matrix(values, scale, size, torch.float32).to(dtype)  # zeros times infinity are NaN
        found = native_opened(values, scale, size, dtype == torch.bfloat16)
        assert torch.equal(found.isnan(), wanted.isnan()) and found.isnan().any()
        assert torch.equal(found.nan_to_num(0, 1, -1), wanted.nan_to_num(0, 1, -1))
    x = numbers(OTHER_ROWS + 1, 8200, seed=2, dtype=dtype)
    call = Int4Call(x, *four_bits(numbers(37, 8200, seed=1)))
    assert INT4_LINEAR.choose(call).form.name == "opened"
    y = x.double() @ matrix(call.values, call.scale, 8200, torch.float64).t()
    # In bfloat16 each of 8200 entries is off by up to 2^-9 of itself, at random; sums in float32 by some roundings.
    bound = 1e-4 if dtype == torch.float32 else 2.0**-8
    assert (INT4_LINEAR(call).double() - y).abs().max() <= bound * y.abs().max()


@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [515, 480])
def test_rows_threads_and_strides_do_not_change_a_bit(how: str, dtype: torch.dtype, size: int,
                                                      instructions: str) -> None:
    values, scale, _ = stored(how, numbers(300, size, seed=1).to(dtype))
    x = numbers(83, size, seed=2, dtype=dtype)
    whole, before = native_product(x, values, scale, None), torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 11):
            torch.set_num_threads(threads)
            assert torch.equal(native_product(x, values, scale, None), whole)
            parts = [native_product(rows, values, scale, None) for rows in x.split([1, 2, 16, 20, 44])]
            assert torch.equal(torch.cat(parts), whole)
    finally:
        torch.set_num_threads(before)
    wide = torch.zeros(300, values.shape[1] + 5, dtype=values.dtype)
    wide[:, 2:-3] = values  # rows that lie farther apart than they are long, and begin anywhere
    assert torch.equal(native_product(x.t().contiguous().t(), wide[:, 2:-3], scale, None), whole)
    assert torch.equal(native_product(x[:, None], values[100:], None if scale is None else scale[100:], None)[:, 0],
                       whole[:, 100:])


@pytest.mark.parametrize("threads", [1, 2, 3, 11])
def test_threads_compute_every_row_once(threads: int, instructions: str) -> None:
    """A row that is counted twice would let the next call of a sequence begin before the last rows are done."""
    x, out = numbers(1, 70, seed=1), 301
    maps = [numbers(*size, seed=2) for size in ((out, 70), (out, 70), (40, out))]
    three = (each for one in maps for each in (one, None, None))
    for function, args, y in ((native_product, (x, maps[0], None, None), torch.empty(1, out)),
                              (native_gated, (x, *three, 1, math.inf, 0.0), torch.empty(1, 40))):
        call, = calls_of(WRITERS[function], y, *args)
        perform(call, y, threads=threads)
        shared = call.call.shared  # type: ignore[attr-defined]
        assert shared.done == shared.pieces == y.shape[1]
        assert shared.early_done == (out if function is native_gated else 0)


@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_finite_stays_in_its_row(how: str, dtype: torch.dtype, instructions: str) -> None:
    values, scale, _ = stored(how, numbers(40, 70, seed=1).to(dtype))
    x = numbers(4, 70, seed=2, dtype=dtype)
    whole = native_product(x, values, scale, None)
    x[1, 3], x[2, 69] = torch.nan, torch.inf
    found = native_product(x, values, scale, None)
    assert torch.equal(found[[0, 3]], whole[[0, 3]])
    assert found[1].isnan().all() and not found[2].isfinite().any()
    assert native_product(torch.zeros_like(x), values, scale, None).eq(0).all()


@pytest.mark.parametrize("how", ["int8", "int4"])
def test_the_largest_sums_do_not_overflow(how: str, instructions: str) -> None:
    """20,000 products of the largest whole numbers: 38 times what 32 bits hold, summed in pieces or by groups."""
    values, scale, exact = stored(how, torch.full((9, 20000), -1.0))
    x = torch.ones(2, 20000, dtype=torch.bfloat16)
    y = x.double() @ exact.t()
    assert ((native_product(x, values, scale, None).double() - y).abs() <= allowed(x, exact, y, how)).all()


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gated_unit_is_its_three_products(activation: Any, dtype: torch.dtype, instructions: str) -> None:
    bound = 1e-5 if dtype == torch.float32 else 1e-2
    """Relative to the largest entry: sums of some hundred terms in float32; in bfloat16 one rounding of what goes into
    the last product, and one of the result."""
    for how, rows, threads in (("floats", 1, 2), ("floats", 9, 1), ("int8", 3, 2), ("int4", 2, 1)):
        for limit in (None, 0.8):
            parts = [stored(how, numbers(*size, seed=seed).to(dtype) / size[1] ** 0.5)
                     for seed, size in enumerate(((401, 140), (401, 140), (33, 401)))]
            biases = [numbers(len(exact), seed=9, dtype=dtype) for _, _, exact in parts]
            maps = [Map(values, scale, bias) for (values, scale, _), bias in zip(parts, biases, strict=True)]
            x = numbers(rows, 140, seed=5, dtype=dtype) * 2
            gate, up, down = ((lambda v, e=exact, b=bias: v @ e.t() + b.double())  # type: ignore[misc]
                              for (_, _, exact), bias in zip(parts, biases, strict=True))
            y = wanted(activation, gate(x.double()), up(x.double()), limit) if limit else wanted(
                activation, gate(x.double()), up(x.double()), torch.inf)
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                found = GATED_FEED_FORWARD(GatedFeedForwardCall(x, *maps, activation, limit, 0.25), "native")
            finally:
                torch.set_num_threads(before)
            assert (found.double() - down(y)).abs().max() <= bound * down(y).abs().max(), (how, rows, limit)


def wanted(activation: str, gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """f(min(gate, L)) (clamp(up) + 1/4) in float64, written out."""
    g, u = gate.clamp(max=limit), up.clamp(-limit, limit)
    known = {"identity": lambda: g, "relu": lambda: g * (g > 0), "squared_relu": lambda: g * g * (g > 0),
             "gelu": lambda: g * (1 + torch.erf(g / 2**0.5)) / 2, "gelu_tanh": lambda: F.gelu(g, approximate="tanh"),
             "quick_gelu": lambda: g / (1 + torch.exp(-1.702 * g)), "silu": lambda: g / (1 + torch.exp(-g)),
             "sigmoid": lambda: 1 / (1 + torch.exp(-g))}
    return known[activation]() * (u + 0.25)


def test_far_gates_are_finite(instructions: str) -> None:
    one = torch.ones(8, 8)
    for activation in range(len(ACTIVATION_NAMES)):
        for size in (-1e4, 1e4):
            y = native_gated(torch.full((1, 8), size), one, None, None, one, None, None, one, None, None, activation,
                             1e3, 0.0)
            assert y.isfinite().all(), (activation, size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_they_are_chosen_for_few_rows_of_every_kind(dtype: torch.dtype) -> None:
    weight = numbers(64, 64).to(dtype)
    floats = FEW_ROWS if dtype is torch.bfloat16 else OTHER_ROWS
    for beyond in (None, 0, 1):  # one row, as many as pay, and one more
        cases: list[tuple[Operation[Any, Any], int, Callable[[Tensor], Any]]] = [
                (LINEAR, floats, lambda x: LinearCall(x, weight)),
                (INT8_LINEAR, OTHER_ROWS, lambda x: Int8Call(x, *quantised(weight))),
                (INT4_LINEAR, OTHER_ROWS, lambda x: Int4Call(x, *four_bits(weight))),
                (GATED_FEED_FORWARD, floats, lambda x: GatedFeedForwardCall(x, *3 * (Map(weight),), "silu")),
                (GATED_FEED_FORWARD, OTHER_ROWS,
                 lambda x: GatedFeedForwardCall(x, *3 * (Map(*quantised(weight)),), "silu"))]
        for operation, most, call in cases:
            found = operation.choose(call(numbers(1 if beyond is None else most + beyond, 64).to(dtype)))
            assert (found.form.name == "native") is (beyond != 1)
            assert beyond != 1 or f"native: more than {most} rows" in found.passed


@pytest.mark.parametrize(("operation", "call", "reason"), [
    (LINEAR, LinearCall(torch.ones(1, 8), torch.ones(8, 3).t()), "the matrix lies column by column"),
    (LINEAR, LinearCall(torch.ones(1, 8).bfloat16(), torch.ones(3, 8)), "vectors and matrix differ in dtype"),
    (LINEAR, LinearCall(torch.ones(1, 8), torch.ones(3, 8), torch.ones(3).bfloat16()),
     "vectors and bias differ in dtype"),
    (LINEAR, LinearCall(torch.ones(0, 8), torch.ones(3, 8)), "there is nothing to multiply"),
    (LINEAR, LinearCall(torch.ones(1, 8).double(), torch.ones(3, 8).double()), "it runs only in bfloat16 or float32"),
    (INT8_LINEAR, Int8Call(torch.ones(1, 8), torch.ones(3, 8).char(), torch.ones(3).double()),
     "its scales are not in float32"),
    (GATED_FEED_FORWARD, GatedFeedForwardCall(torch.ones(1, 8), *3 * (Map(torch.ones(8, 8)),), "mish"),
     "mish is not written in C"),
    (GATED_FEED_FORWARD, GatedFeedForwardCall(torch.ones(1, 8), *2 * (Map(torch.ones(8, 8)),), Map(
        *quantised(torch.ones(8, 8))), "silu"), "its matrices are stored in several ways"),
])
def test_why_they_are_not_chosen_and_what_naming_them_says(operation: Any, call: Any, reason: str) -> None:
    assert f"native: {reason}" in operation.choose(call).passed
    with pytest.raises(UnsupportedError, match=rf"kernels\.{operation.name}: the form 'native' of '{operation.name}' "
                                               rf"cannot serve this call: {reason}\. Those that can: "):
        operation(call, "native")


def test_a_call_takes_them_for_as_many_rows_as_a_choice_says() -> None:
    weight, native = numbers(5, 8), torch.ops.weft.native_product
    for rows, taken in ((OTHER_ROWS, True), (OTHER_ROWS + 1, False)):
        with FlopCounterMode(display=False, custom_mapping={native: lambda *_, **__: 1}) as counted:
            LINEAR(LinearCall(numbers(rows, 8), weight))
        assert (native in counted.get_flop_counts()["Global"]) is taken


@pytest.mark.filterwarnings("ignore:.*trace")
def test_whatever_records_operators_sees_the_product() -> None:
    x, weight = numbers(2, 8), numbers(5, 8)
    formula = {torch.ops.weft.native_product: lambda *_, **__: 160}
    with FlopCounterMode(display=False, custom_mapping=formula) as counted:
        seen = LINEAR(LinearCall(x, weight))
    assert counted.get_total_flops() == 160
    assert torch.equal(seen, LINEAR(LinearCall(x, weight)))
    traced = torch.jit.trace(lambda x: LINEAR(LinearCall(x, weight)), x)
    assert "weft::native_product" in str(traced.graph)
    assert torch.equal(traced(2 * x), LINEAR(LinearCall(2 * x, weight)))


def test_a_form_named_for_products_keeps_units_from_taking_them_over() -> None:
    unit = GatedFeedForwardCall(torch.ones(1, 8), *3 * (Map(torch.ones(8, 8)),), "silu")
    with forced({"linear": "reference"}):
        assert "native: the form of its products is named" in GATED_FEED_FORWARD.choose(unit).passed
    with torch.enable_grad():
        assert "native: it runs only without gradients" in GATED_FEED_FORWARD.choose(unit).passed


def test_no_memory_is_an_error_and_no_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    known = functions()
    assert not isinstance(known, str)
    without = (lambda *each: 0, lambda *each: 0, known[2])
    monkeypatch.setattr("weft.ops.few_rows.functions", lambda: without)
    with pytest.raises(Incomplete, match=r"could not reserve the memory for its vectors\. Give it fewer"
                                         r" threads or a smaller batch\."):
        native_product(torch.ones(1, 8), torch.ones(3, 8), None, None)
    assert set(KINDS) == {torch.float32, torch.bfloat16, torch.int8, torch.uint8}
