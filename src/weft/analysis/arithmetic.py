"""Hashes of the results of PyTorch's arithmetic on this CPU: a change of instructions or libraries shows in them.

Libraries choose their kernels by the processor and by variables of the environment (``MKL_CBWR``,
``MKL_ENABLE_INSTRUCTIONS``, ``DNNL_MAX_CPU_ISA``, ``ONEDNN_DEFAULT_FPMATH_MODE``, ``ATEN_CPU_CAPABILITY``). Another
kernel adds in another order, so the last bits differ. Names and versions do not show that; results do.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

SHAPES = ((3, 37, 5), (1, 333, 50), (33, 300, 47))
"""Rows, terms and columns of the products. Sums of few terms, a single row and a blocked product have kernels of their
own: on an AMD processor MKL_CBWR=AVX2 changes the first two in float32 and the last in float64 alone."""
DIGITS = 16
"""Hexadecimal digits of a hash that are kept."""


def arithmetic() -> dict[str, str]:
    """Hashes of the results of small fixed computations by kind: matrix products, oneDNN's own products, convolutions,
    exponentials, sums and Fourier transforms.

    One thread computes, whatever the process is set to: with more, some libraries share a sum among them. Settings and
    random numbers stay as they are. Some ten milliseconds.
    """
    kinds: Mapping[str, Callable[[], Iterator[Tensor]]] = {
        "matrix products": _products, "oneDNN's products": _onednn, "convolutions": _convolutions,
        "exponentials": _exponentials, "sums": _sums, "Fourier transforms": _transforms}
    with torch.no_grad(), threads_set(1):
        return {kind: _hash(results()) for kind, results in kinds.items()}


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Inside, PyTorch computes with so many threads; afterwards with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _hash(results: Iterator[Tensor]) -> str:
    text = hashlib.sha256()
    for each in results:
        text.update(each.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return text.hexdigest()[:DIGITS]


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Fixed numbers between -1/2 and 1/2 from a multiplicative hash of their place, without a generator."""
    places = torch.arange(math.prod(shape), dtype=torch.int64, device="cpu")
    return ((places * 2654435761 + 12345) % 65521 / 65521 - 0.5).to(dtype).view(shape)


def _products() -> Iterator[Tensor]:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for rows, terms, columns in SHAPES:
            a, b = _numbers(rows, terms, dtype=dtype), _numbers(columns, terms, dtype=dtype)
            yield a @ b.t()
            yield a.t() @ _numbers(rows, columns, dtype=dtype)


def _onednn() -> Iterator[Tensor]:
    if torch.backends.mkldnn.is_available():
        rows, terms, columns = SHAPES[-1]
        yield torch.ops.mkldnn._linear_pointwise(_numbers(rows, terms), _numbers(columns, terms), None, "none", [], "")


def _convolutions() -> Iterator[Tensor]:
    row, image = _numbers(2, 32, 40), _numbers(2, 16, 20, 20)
    yield F.conv1d(row, _numbers(32, 32, 5))
    yield F.conv1d(row, _numbers(32, 1, 4), groups=32)
    yield F.conv2d(image, _numbers(24, 16, 3, 3))


def _exponentials() -> Iterator[Tensor]:
    x = 8 * _numbers(1000)
    yield from (x.exp(), x.tanh(), x.sigmoid(), x.abs().log1p(), x.sin(), x.erf(), F.gelu(x), F.softplus(x))


def _sums() -> Iterator[Tensor]:
    x = 4 * _numbers(17, 301)
    yield from (x.sum(-1), x.sum(0), x.softmax(-1), x.log_softmax(-1), F.layer_norm(x, (301,)))
    q, k, v = _numbers(3, 1, 2, 40, 32)
    yield F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _transforms() -> Iterator[Tensor]:
    yield torch.view_as_real(torch.fft.rfft(_numbers(3, 250)))
