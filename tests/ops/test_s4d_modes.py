"""Diagonal state-space models: discretisation, kernel, chunks from a state; against the NumPy oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import ssm as oracle
from weft.ops import s4d
from weft.ops.diagonal_system import kernel
from weft.ops.fft_convolution import FFT_CONVOLUTION, ConvolutionCall, fft_convolution, transform_size
from weft.ops.forms import REFERENCE
from weft.ops.hippo import diagonal_modes, hippo_legs
from weft.ops.s4d_chunk import S4D_CHUNK, S4DCall

B, H, M, T = 2, 3, 4, 21
Array = np.ndarray[Any, Any]


def complexes(pairs: Tensor) -> Array:
    return torch.view_as_complex(pairs.contiguous()).numpy()


def system(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    a, b, c = (torch.randn(H, M, 2, dtype=dtype) for _ in range(3))
    a[..., 0] = -a[..., 0].exp()
    return a, b, c, torch.rand(H, dtype=dtype) + 0.1


def steps(modes: s4d.Modes, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The naive recurrence: outputs [B,H,T] and the state after them."""
    y, after = S4D_CHUNK.form(REFERENCE).run(S4DCall(u.transpose(1, 2), modes, state, False, None, None))
    return y.transpose(1, 2), after


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_discretisation(method: s4d.Discretisation) -> None:
    a, b, c, dt = system()
    modes = s4d.discretise(a, b, c, dt, method)
    got_a, got_b = complexes(modes.power(torch.tensor(1.0))), complexes(modes.b)
    for h in range(H):
        for m in range(M):
            wanted = oracle.s4d_discretise(complexes(a)[h, m], complexes(b)[h, m], float(dt[h]), method)
            np.testing.assert_allclose([got_a[h, m], got_b[h, m]], wanted, rtol=1e-13)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_small_steps_keep_their_precision_in_float32(method: s4d.Discretisation) -> None:
    """|A| and B to a few units of 2^-24, where 1 - |A| formed by subtraction would be off by 1e-3."""
    a, b, c, _ = system()
    dt = torch.full((H,), 1e-4, dtype=torch.float64)
    exact = s4d.discretise(a, b, c, dt, method)
    rough = s4d.discretise(a.float(), b.float(), c.float(), dt.float(), method)
    torch.testing.assert_close(rough.log_radius.double(), exact.log_radius, rtol=1e-6, atol=0)
    torch.testing.assert_close(rough.b.double(), exact.b, rtol=1e-5, atol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 17, 64, 65])
def test_kernel(length: int) -> None:
    a, b, c, dt = system()
    got = kernel(s4d.discretise(a, b, c, dt, "zoh"), length)
    expected = oracle.s4d_kernel(complexes(a), complexes(b), complexes(c), dt.numpy(), length, "zoh")
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
def test_a_chunk_from_a_state_equals_the_recurrence(method: s4d.Discretisation) -> None:
    a, b, c, dt = system()
    modes = s4d.discretise(a, b, c, dt, method)
    u, x = torch.randn(B, H, T, dtype=torch.float64), torch.randn(B, H, M, 2, dtype=torch.float64)
    chunk = fft_convolution(u, kernel(modes, T)) + s4d.response(modes, x, T), s4d.absorb(modes, u, x, None)
    naive = steps(modes, u, x)
    for row in range(B):
        y, last = oracle.s4d_recurrence(u[row].t().numpy(), complexes(a), complexes(b), complexes(c), dt.numpy(),
                                        method=method, state=complexes(x[row]))
        for got_y, got_x in (chunk, naive):
            np.testing.assert_allclose(got_y[row].t().numpy(), y, rtol=1e-11, atol=1e-12)
            np.testing.assert_allclose(complexes(got_x[row]), last, rtol=1e-11, atol=1e-12)


def test_rows_absorb_their_own_counts() -> None:
    a, b, c, dt = system()
    modes = s4d.discretise(a, b, c, dt, "zoh")
    u, x = torch.randn(3, H, T, dtype=torch.float64), torch.randn(3, H, M, 2, dtype=torch.float64)
    after = s4d.absorb(modes, u, x, torch.tensor([0, 5, T]))
    torch.testing.assert_close(after[0], x[0], rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(after[1:2], steps(modes, u[1:2, :, :5], x[1:2])[1], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(after[2:], steps(modes, u[2:], x[2:])[1], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("length", [1, 2, 31, 100])
def test_fft_convolution_equals_the_sum(length: int) -> None:
    torch.manual_seed(0)
    u, lags = torch.randn(B, H, length, dtype=torch.float64), torch.randn(H, length, dtype=torch.float64)
    args = (u.requires_grad_(), lags.requires_grad_())
    got, expected = fft_convolution(*args), FFT_CONVOLUTION.form(REFERENCE).run(ConvolutionCall(*args))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    weight = torch.randn_like(got)
    gradients = [torch.autograd.grad((y * weight).sum(), args) for y in (got, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-11)
    u, lags, expected = u.detach(), lags.detach(), expected.detach()
    np.testing.assert_allclose(expected[1, 2].numpy(), np.convolve(u[1, 2], lags[2])[:length], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("least", "size"), [(1, 1), (3, 3), (9, 10), (511, 512), (513, 640), (700, 768)])
def test_transform_size(least: int, size: int) -> None:
    assert transform_size(least) == size


@pytest.mark.parametrize("d_state", [2, 6, 16])
def test_initial_modes(d_state: int) -> None:
    for got, wanted in zip(hippo_legs(d_state), oracle.hippo_legs(d_state), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-15)
    ones = np.ones(d_state // 2)
    for name, (a, b) in {"lin": (oracle.s4d_lin(d_state), ones), "inv": (oracle.s4d_inv(d_state), ones),
                         "legs": oracle.s4d_legs(d_state)}.items():
        got_a, got_b = diagonal_modes(name, d_state)
        np.testing.assert_allclose(complexes(got_a), a, rtol=1e-12)
        np.testing.assert_allclose(complexes(got_b), b, rtol=1e-12)
