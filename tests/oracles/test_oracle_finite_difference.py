"""The finite differences themselves: against derivatives by hand and against torch.autograd, and that they can fail."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from . import attention, masks, recurrent
from .finite_difference import directional_derivative, gradient_agrees, gradient_errors
from .waves import wave


def test_a_derivative_known_by_hand():
    x, v = wave((5,), 0.1), wave((5,), 0.9)
    measured = directional_derivative(lambda a: np.exp(np.sin(a)), [x], [v], eps=1e-2)
    exact = np.exp(np.sin(x)) * np.cos(x) * v
    assert_allclose(measured, exact, rtol=0, atol=1e-8)  # Richardson leaves O(eps^4); plain central differences 1e-5
    assert np.max(np.abs(measured - exact)) > 1e-13


def quadratic(a, b):
    return float(a @ b @ a)


def test_right_gradients_pass_and_wrong_ones_do_not():
    rng = np.random.default_rng(0)
    a, b = wave((4,), 0.2), wave((4, 4), 0.3)
    right = [(b + b.T) @ a, np.outer(a, a)]
    assert gradient_agrees(quadratic, [a, b], right, rng, rtol=1e-10)
    assert not gradient_agrees(quadratic, [a, b], [right[0], 1.001 * right[1]], rng, rtol=1e-5)
    one_entry = right[1].copy()
    one_entry[2, 1] += 1e-3
    errors = gradient_errors(quadratic, [a, b], [right[0], one_entry], rng)
    assert errors[0] < 1e-10 and errors[1] > 1e-5
    assert not gradient_agrees(quadratic, [a, b], [right[0], np.full((4, 4), np.nan)], rng)
    with pytest.raises(ValueError, match="one gradient per argument"):
        gradient_agrees(quadratic, [a, b], [right[0], right[1][0]], rng)


def test_a_nan_in_the_oracle_is_an_error():
    rng = np.random.default_rng(0)
    assert not gradient_agrees(lambda a: a.sum() * np.nan, [np.ones(2)], [np.ones(2)], rng)


def test_lstm_gradients_equal_autograd():
    rng = np.random.default_rng(1)
    args = [wave((5, 3), 0.1), wave((8, 3), 0.2), wave((8, 2), 0.3), wave((8,), 0.4)]
    cotangent = wave((5, 2), 0.5)
    x, w_x, w_h, bias = [torch.tensor(a, requires_grad=True) for a in args]
    module = torch.nn.LSTM(3, 2).double()
    parameters = {"weight_ih_l0": w_x, "weight_hh_l0": w_h, "bias_ih_l0": bias, "bias_hh_l0": torch.zeros_like(bias)}
    y = torch.func.functional_call(module, parameters, (x,))[0]
    gradients = torch.autograd.grad((y * torch.tensor(cotangent)).sum(), (x, w_x, w_h, bias))
    numbers = [g.numpy() for g in gradients]
    assert max(gradient_errors(lambda *p: recurrent.lstm(*p)[0], args, numbers, rng, cotangent=cotangent)) < 1e-9


def test_attention_gradients_equal_autograd_also_where_they_vanish():
    rng = np.random.default_rng(2)
    mask = masks.dense(masks.causal, range(4), range(4))
    args = [wave((4, 6), 0.1), *(wave((6, 6), phase) for phase in (0.2, 0.3, 0.4, 0.5)), wave((6,), 0.6)]
    cotangent = wave((4, 6), 0.7)

    def oracle(x, w_q, w_k, w_v, w_o, b_k):
        return attention.multi_head_attention(x, w_q, w_k, w_v, w_o, 2, b_k=b_k, mask=mask)

    leaves = [torch.tensor(a, requires_grad=True) for a in args]
    x, w_q, w_k, w_v, w_o, b_k = leaves
    q, k, v = [(x @ w.T + b).view(4, 2, 3).transpose(0, 1) for w, b in ((w_q, 0.0), (w_k, b_k), (w_v, 0.0))]
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).reshape(4, 6) @ w_o.T
    gradients = [g.numpy() for g in torch.autograd.grad((y * torch.tensor(cotangent)).sum(), leaves)]
    assert np.max(np.abs(gradients[5])) < 1e-12
    assert max(gradient_errors(oracle, args, gradients, rng, cotangent=cotangent)) < 1e-7
