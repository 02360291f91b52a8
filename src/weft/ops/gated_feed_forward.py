"""A whole gated feed-forward, from its input to its output: two products, their gate, and the product that follows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.ops.activations import ACTIVATIONS, ActivationName, gated_product
from weft.ops.few_rows import ACTIVATION_NAMES, gated_flops, gated_in_c, many_rows, native_gated, native_hindrance
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Kernel, Make, Operation
from weft.ops.int4_linear import INT4_LINEAR, Int4Call, four_bits
from weft.ops.int8_linear import INT8_LINEAR, Int8Call, quantised
from weft.ops.linear import LINEAR, LinearCall, Map


class GatedFeedForwardCall(NamedTuple):
    """down(f(gate(x)) * (up(x) + shift)), with gate(x) cut off above ``limit``, and up(x) beyond it on both sides."""

    x: Float[Tensor, "... D"]
    gate: Map
    up: Map
    down: Map
    activation: ActivationName
    limit: float | None = None
    shift: float = 0.0


def gated_feed_forward(call: GatedFeedForwardCall) -> Float[Tensor, "... out"]:
    """The unit's output, in the dtype of x."""
    return GATED_FEED_FORWARD(call)


def bounded(gate: Tensor, up: Tensor, limit: float | None, shift: float) -> tuple[Tensor, Tensor]:
    """Both factors of a gated unit, cut off at the limit, and the shift added to the second."""
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate, up + shift if shift else up


def _mapped(x: Tensor, by: Map, naive: bool) -> Tensor:
    named = REFERENCE if naive else None
    if by.scale is None:
        return LINEAR(LinearCall(x, by.values, by.bias), named)
    y = (INT8_LINEAR(Int8Call(x, by.values, by.scale), named) if by.values.dtype == torch.int8
         else INT4_LINEAR(Int4Call(x, by.values, by.scale), named))
    return y if by.bias is None else y + by.bias


def _written_out(call: GatedFeedForwardCall) -> Tensor:
    gate, up = bounded(_mapped(call.x, call.gate, True), _mapped(call.x, call.up, True), call.limit, call.shift)
    return _mapped(ACTIVATIONS[call.activation](gate) * up, call.down, True)


def _parts(call: GatedFeedForwardCall) -> Tensor:
    gate, up = bounded(_mapped(call.x, call.gate, False), _mapped(call.x, call.up, False), call.limit, call.shift)
    return _mapped(gated_product(gate, up, ACTIVATIONS[call.activation]), call.down, False)


def _native(call: GatedFeedForwardCall) -> Tensor:
    y: Tensor = native_gated(*_arguments(call))
    return y


def _by_addresses(call: GatedFeedForwardCall) -> Tensor:
    return gated_in_c(*_arguments(call))


def _arguments(call: GatedFeedForwardCall) -> tuple[Any, ...]:
    limit = math.inf if call.limit is None else call.limit
    return (call.x, *call.gate, *call.up, *call.down, ACTIVATION_NAMES.index(call.activation), limit, call.shift)


def _in_c(call: GatedFeedForwardCall) -> str | None:
    x, stored = call.x, call.gate.values.dtype
    if call.activation not in ACTIVATION_NAMES:
        return f"{call.activation} is not written in C"
    if torch.is_autocast_enabled(x.device.type):
        return "autocast is on"
    if call.gate.scale is None and x.dtype != stored:
        return "vectors and matrices differ in dtype"
    for values, scale, bias in (call.gate, call.up, call.down):
        if values.dtype != stored:
            return "its matrices are stored in several ways"
        if stored == torch.int8 and (scale is None or scale.dtype != torch.float32):
            return "its scales are not in float32"
        if (why := native_hindrance(x, values, x.shape[-1], bias)) is not None:
            return why
    return None


def _few(call: GatedFeedForwardCall) -> str | None:
    if LINEAR.forced or INT8_LINEAR.forced or INT4_LINEAR.forced:
        return "the form of its products is named"
    return many_rows(call.x, call.gate.values.dtype)


def _examples(make: Make) -> Iterator[GatedFeedForwardCall]:
    """Every activation that is written in C and one that is not; matrices of every kind."""
    def map_of(kind: str, outputs: int, inputs: int, biased: bool = False) -> Map:
        weight = make(outputs, inputs)
        bias = make(outputs) if biased else None
        return Map(weight, None, bias) if kind == "floats" else Map(
            *(quantised(weight) if kind == "int8" else four_bits(weight)), bias)

    names: list[ActivationName] = [*ACTIVATION_NAMES, "mish"]
    for number, name in enumerate(names):
        gate, up, down = (map_of("floats", *size, number % 2 == 0) for size in ((37, 11), (37, 11), (13, 37)))
        limit = 0.7 if name == "quick_gelu" else None
        yield GatedFeedForwardCall(make(2, 3, 11), gate, up, down, name, limit, 0.5 * number)
    for kind in ("int8", "int4"):
        gate, up, down = (map_of(kind, *size, True) for size in ((70, 40), (70, 40), (9, 70)))
        yield GatedFeedForwardCall(make(1, 1, 40), gate, up, down, "silu")
    gate, up, down = (map_of("floats", *size) for size in ((6, 8), (6, 8), (8, 6)))
    yield GatedFeedForwardCall(make(0, 8), gate, up, down, "silu")


GATED_FEED_FORWARD = OPERATIONS.add(Operation(
    "gated_feed_forward", "down(activation(gate(x)) up(x)), three linear maps and their gate",
    Form(REFERENCE, _written_out, "the naive form of each product"),
    Form("native", _native, "a few vectors, all three products in one call", devices=frozenset({"cpu"}),
         dtypes=frozenset({torch.float32, torch.bfloat16}), gradients="without", compiled=False, transformed=False,
         serves=_in_c, worth=_few, flops={"weft.native_gated_feed_forward": gated_flops}, known_as=("c", "few_rows"),
         kernel=Kernel(_by_addresses, "x", *(f"{map_}.{each}" for map_ in ("gate", "up", "down")
                                             for each in Map._fields))),
    Form("parts", _parts, "each product by the form that is chosen for it"),
    subject="x", examples=_examples, known_as=("swiglu", "feed_forward", "mlp")))
