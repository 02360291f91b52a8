"""Rotary forms: fast ones against the NumPy oracle, naive ones against the oracle and each other, layouts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ops import rotary_formulas as formulas
from oracles import rope as oracle
from oracles.finite_difference import gradient_agrees
from weft.ops import rotary

LAYOUTS: tuple[rotary.Layout, ...] = ("interleaved", "half_split")
EXACT = {"rtol": 1e-12, "atol": 1e-13}  # float64, a handful of products of order one
POSITIONS = np.array([0.0, 1.0, 2.5, 17.0, 1000.0])
THETA = np.array([1.0, 0.3, 0.01])


def waves(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def angles_of(positions: np.ndarray = POSITIONS) -> Tensor:
    return torch.as_tensor(np.outer(positions, THETA))


def oracle_rotate(x: np.ndarray, layout: str, positions: np.ndarray = POSITIONS) -> np.ndarray:
    """[B,T,H,E], head by head."""
    heads = [[oracle.rope_partial(x[b, :, h], positions, THETA, layout) for h in range(x.shape[2])]
             for b in range(x.shape[0])]
    return np.array(heads).transpose(0, 2, 1, 3)


def permute_heads(weight: Tensor, n_heads: int, order: list[int]) -> Tensor:
    """The rows of a query or key projection, [n_heads * E, ...] or a bias [n_heads * E], each head's in ``order``."""
    return torch.unflatten(weight, 0, (n_heads, -1))[:, order].flatten(0, 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d_head", [6, 7, 10])
def test_fast_form_equals_the_oracle(layout: rotary.Layout, d_head: int) -> None:
    x, angles = waves(2, 5, 3, d_head), angles_of()[None]
    fast = rotary.rotate(x, angles.cos(), angles.sin(), layout)
    np.testing.assert_allclose(fast.numpy(), oracle_rotate(x.numpy(), layout), **EXACT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_agree_with_differences_of_the_oracle(layout: rotary.Layout) -> None:
    x, cotangent, angles = waves(1, 5, 2, 8).requires_grad_(), waves(1, 5, 2, 8, seed=1), angles_of()[None]
    rotary.rotate(x, angles.cos(), angles.sin(), layout).backward(cotangent)
    assert gradient_agrees(lambda point: oracle_rotate(point, layout), [x.detach().numpy()], [x.grad.numpy()],
                           np.random.default_rng(0), cotangent=cotangent.numpy())


@pytest.mark.parametrize("view", ["odd offset", "odd stride", "transposed"])
def test_any_memory_layout_is_turned_alike(view: str) -> None:
    """Complex views need even strides and offsets; other memory is copied."""
    x = {"odd offset": waves(5 * 3 * 6 + 1)[1:].view(1, 5, 3, 6), "odd stride": waves(1, 5, 3, 7)[..., :6],
         "transposed": waves(1, 5, 6, 3).transpose(2, 3)}[view]
    angles = angles_of()[None]
    turned = rotary.rotate(x, angles.cos(), angles.sin(), "interleaved")
    np.testing.assert_allclose(turned.numpy(), oracle_rotate(x.numpy(), "interleaved"), **EXACT)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_form_equals_the_eager_one_in_values_and_gradients(layout: rotary.Layout) -> None:
    angles = angles_of()[None]
    results = []
    for function in (rotary.rotate, torch.compile(rotary.rotate, fullgraph=True, backend="eager")):
        x = waves(2, 5, 3, 8).requires_grad_()
        y = function(x, angles.cos(), angles.sin(), layout)
        y.backward(waves(2, 5, 3, 8, seed=2))
        results.append((y.detach(), x.grad))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_low_precision_is_rounded_once(layout: rotary.Layout) -> None:
    """Within half a bf16 unit of the exact result, 2^-8 of it; rounding cos, sin or a product first exceeds that."""
    x = waves(1, 5, 2, 6).to(torch.bfloat16).requires_grad_()
    angles = angles_of()[None].float()
    turned = rotary.rotate(x, angles.cos(), angles.sin(), layout)
    cotangent = waves(1, 5, 2, 6, seed=1).to(torch.bfloat16)
    turned.backward(cotangent)
    back = oracle_rotate(cotangent.double().numpy(), layout, -POSITIONS)  # R_m is orthogonal: R_m^T = R_-m
    for found, exact in ((turned, oracle_rotate(x.detach().double().numpy(), layout)), (x.grad, back)):
        error = (found.detach().double() - torch.as_tensor(exact)).abs()
        assert found.dtype == torch.bfloat16
        assert (error <= torch.as_tensor(exact).abs() * 2.0**-8 + 1e-4).all()  # 1e-4: float32 angles up to 1000


def test_naive_complex_forms_equal_the_oracle() -> None:
    x, angles = waves(5, 6), angles_of()
    z = oracle.complex_pairs(x.numpy())
    np.testing.assert_allclose(formulas.naive_complex(x, angles).numpy(), oracle.rope_complex(z, POSITIONS, THETA),
                               **EXACT)
    np.testing.assert_allclose(formulas.naive_conjugate_pairs(x, angles).numpy(),
                               oracle.rope_conjugate_pairs(z, POSITIONS, THETA), **EXACT)


def test_naive_real_forms_equal_the_oracle() -> None:
    x, angles = waves(5, 6), angles_of()
    np.testing.assert_allclose(rotary.naive_matrix(angles[3]).numpy(), oracle.rotation_matrix(17.0, THETA), **EXACT)
    for naive, wanted in ((formulas.naive_matrix_product, oracle.rope_matrix),
                          (formulas.naive_interleaved, oracle.rope_interleaved),
                          (formulas.naive_half_split, oracle.rope_half_split)):
        np.testing.assert_allclose(naive(x, angles).numpy(), wanted(x.numpy(), POSITIONS, THETA), **EXACT)


def test_every_form_gives_the_same_scores() -> None:
    q, k, angles = waves(5, 6), waves(5, 6, seed=1), angles_of()
    wanted = formulas.naive_matrix_product(q, angles) @ formulas.naive_matrix_product(k, angles).T
    pairs = formulas.naive_conjugate_pairs(q, angles) @ formulas.naive_conjugate_pairs(k, angles).mH
    order = rotary.half_split_order(6, 6)
    forms = {
        "complex": (formulas.naive_complex(q, angles) @ formulas.naive_complex(k, angles).mH).real,
        "conjugate pairs": pairs.real,
        "real part": formulas.naive_real_part_scores(q, k, angles[:, None] - angles[None]),
        "element-wise": formulas.naive_interleaved(q, angles) @ formulas.naive_interleaved(k, angles).T,
        "half-split": formulas.naive_half_split(q[:, order], angles) @ formulas.naive_half_split(k[:, order], angles).T,
    }
    for name, scores in forms.items():
        torch.testing.assert_close(scores, wanted, rtol=1e-12, atol=1e-12, msg=name)
    assert pairs.imag.abs().max() < 1e-13


def test_orders_are_the_oracle_s_and_invert_each_other() -> None:
    assert rotary.half_split_order(6, 6) == oracle.half_split_order(6)
    assert rotary.interleaved_order(6, 6) == oracle.interleaved_order(6)
    assert rotary.half_split_order(4, 7) == [0, 2, 1, 3, 4, 5, 6]
    there, back = rotary.half_split_order(6, 9), rotary.interleaved_order(6, 9)
    assert [there[i] for i in back] == list(range(9))


@pytest.mark.parametrize("rot", [4, 6])
def test_permuted_weights_give_identical_scores(rot: int) -> None:
    n_heads, d_head, d_model = 2, 6, 5
    h, angles = waves(1, 7, d_model), torch.arange(7.0, dtype=torch.float64)[None, :, None] * torch.as_tensor(
        THETA[:rot // 2])
    weights = waves(2, n_heads * d_head, d_model, seed=3)
    bias = waves(n_heads * d_head, seed=4)

    def scores(weight_q: Tensor, weight_k: Tensor, bias_q: Tensor, layout: rotary.Layout) -> Tensor:
        q, k = (h @ weight_q.T + bias_q).unflatten(-1, (n_heads, d_head)), (h @ weight_k.T).unflatten(-1, (2, d_head))
        turned = [rotary.rotate(part, angles.cos(), angles.sin(), layout) for part in (q, k)]
        return torch.einsum("bthe,bshe->bhts", *turned) / math.sqrt(d_head)

    wanted = scores(weights[0], weights[1], bias, "interleaved")
    order = rotary.half_split_order(rot, d_head)
    moved = [permute_heads(part, n_heads, order) for part in (weights[0], weights[1], bias)]
    torch.testing.assert_close(scores(*moved, "half_split"), wanted, rtol=1e-13, atol=1e-13)
    assert (scores(weights[0], weights[1], bias, "half_split") - wanted).abs().max() > 0.1
    back = [permute_heads(part, n_heads, rotary.interleaved_order(rot, d_head)) for part in moved]
    assert all(torch.equal(a, b) for a, b in zip(back, (weights[0], weights[1], bias), strict=True))
