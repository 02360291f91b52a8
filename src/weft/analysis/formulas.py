"""Floating-point operations of one operator call, from the shapes of its tensors. A multiplication and an addition are
two. Element-wise work, reductions, sorting and copying are not counted.

`torch.utils.flop_counter.flop_registry` has formulas for matrix products and convolutions; `FORMULAS` adds Fourier
transforms and the CPU's attention kernel. Forms declare the formulas of their own operators (`weft.ops.forms`).
`skipped` gives the operations of a call that its kernel leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.ops.banded_attention import banded_backward_skipped, banded_skipped
from weft.ops.fft_convolution import fourier
from weft.ops.forms import OPERATIONS, Formula
from weft.ops.native_attention import native_backward_skipped, native_skipped


def formula_of(operator: Any) -> Callable[[Sequence[Any], Any], int] | None:
    """A function from the positional arguments and the result of a call to its operations; None for an operator whose
    calls are not counted.

    Args:
        operator: an overload packet, such as ``torch.ops.aten.mm``.
    """
    own = FORMULAS.get(str(operator)) or OPERATIONS.formula(str(operator))
    if own is not None:
        return lambda arguments, result: own(*arguments)
    from torch.utils.flop_counter import flop_registry  # imports Triton, which takes a third of a second

    known: Formula | None = flop_registry.get(operator)
    return None if known is None else lambda arguments, result: known(*arguments, out_val=result)


def flops_of(operator: Any, arguments: Sequence[Any], result: Any) -> int:
    """The operations of a call of an operator that has a formula (`formula_of`)."""
    formula = formula_of(operator)
    assert formula is not None, f"{operator} has no formula"
    return formula(arguments, result)


def skipped(operator: Any, arguments: Sequence[Any]) -> int:
    """The operations of attention over all pairs that the kernel leaves out: those of a query and a later key, or of
    pairs outside a band."""
    name = str(operator)
    if name in OUTSIDE:
        return OUTSIDE[name](*arguments)
    if name not in CAUSAL_FLAG or not (len(arguments) > CAUSAL_FLAG[name] and arguments[CAUSAL_FLAG[name]]):
        return 0
    steps: int = arguments[1].shape[2]
    return FORMULAS[name](*arguments) * (steps - 1) // (2 * steps)


def attention(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """q.k and weights.v over all pairs, [B,H,T,E] against [B,K,S,E] and [B,K,S,F]."""
    batch, heads, steps, size = q.shape
    return 2 * batch * heads * steps * k.shape[2] * (size + v.shape[3])


def _attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """The scores again, then gradients of v, weights, q and k: three products of width E, two of width F."""
    batch, heads, steps, size = q.shape
    return 2 * batch * heads * steps * k.shape[2] * (3 * size + 2 * v.shape[3])


def _real_to_complex(x: Tensor, dims: Sequence[int], *_: Any) -> int:
    """A real transform costs half a complex one."""
    size = math.prod(x.shape[d] for d in dims)
    return fourier(size, x.numel() // max(size, 1)) // 2


def _complex_to_real(x: Tensor, dims: Sequence[int], normalization: int, last: int) -> int:
    size = math.prod([x.shape[d] for d in dims[:-1]]) * last
    return fourier(size, x.numel() // max(math.prod(x.shape[d] for d in dims), 1)) // 2


def _complex_to_complex(x: Tensor, dims: Sequence[int], *_: Any) -> int:
    size = math.prod(x.shape[d] for d in dims)
    return fourier(size, x.numel() // max(size, 1))


def _dot(a: Tensor, b: Tensor) -> int:
    return 2 * a.numel()


def _triangular(system: Tensor, right: Tensor, *_: Any) -> int:
    """Half of the product of the matrix and the right side."""
    return right.numel() * system.shape[-1]


FORMULAS: dict[str, Formula] = {
    "aten._fft_r2c": _real_to_complex,
    "aten._fft_c2r": _complex_to_real,
    "aten._fft_c2c": _complex_to_complex,
    "aten._scaled_dot_product_flash_attention_for_cpu": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten.linalg_solve_triangular": _triangular,
    "aten.mv": _dot,
    "aten.dot": _dot,
}

CAUSAL_FLAG = {
    "aten._scaled_dot_product_flash_attention_for_cpu": 4,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": 7,
}
"""The position of the causal flag among the arguments of these kernels."""

OUTSIDE: dict[str, Formula] = {
    "weft.banded_attention": banded_skipped,
    "weft.banded_attention_backward": banded_backward_skipped,
    "weft.native_attention": native_skipped,
    "weft.native_attention_backward": native_backward_skipped,
}

FOURIER = frozenset({"aten._fft_r2c", "aten._fft_c2r", "aten._fft_c2c", "weft.fft_convolution"})
"""Operators of mixers that convolve over the whole sequence by Fourier transform."""


def is_foreign(operator: Any) -> bool:
    """Whether an operator is not one of PyTorch's own, so that only its author can give a formula."""
    return not str(operator).startswith(("aten.", "prim.", "prims.", "profiler."))


def schema_of(overload: torch._ops.OpOverload) -> list[str]:
    """The names of an operator's arguments, in order."""
    return [argument.name for argument in overload._schema.arguments]
