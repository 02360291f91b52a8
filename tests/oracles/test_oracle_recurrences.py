"""Recurrent nets, convolutions, state-space models and RWKV's channel mixing against torch, SciPy, ONNX, transformers.

All in float64: 1e-12 against torch and 1e-10 against SciPy (matrix exponentials); stored numbers had 12 decimals.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.signal
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose

from . import convolution, recurrent, rwkv, ssm
from .waves import wave

EXACT = {"rtol": 1e-12, "atol": 1e-12}
STORED = {"rtol": 0.0, "atol": 1e-11}


def torch_parameters(module):
    return [p.detach().numpy() for p in module.parameters()]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_elman_equals_torch(activation):
    module = torch.nn.RNN(3, 4, nonlinearity=activation).double()
    w_x, w_h, b_x, b_h = torch_parameters(module)
    x, h0 = wave((6, 3), 0.1), wave((4,), 0.2)
    theirs, last = module(torch.tensor(x), torch.tensor(h0)[None])
    ours, h = recurrent.elman(x, w_x, w_h, b_x + b_h, activation=activation, h0=h0)
    assert_allclose(ours, theirs.detach(), **EXACT)
    assert_allclose(h, last[0].detach(), **EXACT)


def test_elman_sigmoid_by_hand():
    y, _ = recurrent.elman(np.array([[0.0], [1.0]]), np.array([[np.log(3.0)]]), np.zeros((1, 1)), activation="sigmoid")
    assert_allclose(y, [[0.5], [0.75]], **EXACT)


def test_lstm_equals_torch():
    module = torch.nn.LSTM(3, 4).double()
    w_x, w_h, b_x, b_h = torch_parameters(module)
    x, h0, c0 = wave((6, 3), 0.1), wave((4,), 0.2), wave((4,), 0.3)
    theirs, (h, c) = module(torch.tensor(x), (torch.tensor(h0)[None], torch.tensor(c0)[None]))
    ours, h_last, c_last = recurrent.lstm(x, w_x, w_h, b_x + b_h, h0=h0, c0=c0)
    assert_allclose(ours, theirs.detach(), **EXACT)
    assert_allclose(h_last, h[0].detach(), **EXACT)
    assert_allclose(c_last, c[0].detach(), **EXACT)


def test_gru_equals_torch():
    module = torch.nn.GRU(3, 4).double()
    x, h0 = wave((6, 3), 0.1), wave((4,), 0.2)
    theirs, last = module(torch.tensor(x), torch.tensor(h0)[None])
    ours, h = recurrent.gru(x, *torch_parameters(module), h0=h0)
    assert_allclose(ours, theirs.detach(), **EXACT)
    assert_allclose(h, last[0].detach(), **EXACT)


def test_both_grus_equal_onnx():
    # onnx.reference GRU, double: rows r, z, n of W wave((9, 2), 0.1), R wave((9, 3), 0.2), Wb wave((9,), 0.3),
    # Rb wave((9,), 0.4), X wave((4, 1, 2), 0); linear_before_reset 0, then 1
    cho = [
        [-0.324379727501, -0.475962910133, -0.501175869757],
        [-0.830290643338, -0.796352893274, -0.5776053985],
        [-0.9156504802, -0.863939264706, -0.235780457355],
        [-0.926375512975, -0.617686568084, 0.593157429564],
    ]
    after = [
        [-0.31422330476, -0.474358384663, -0.488611382467],
        [-0.728479953845, -0.795984702617, -0.562511184618],
        [-0.817874625477, -0.87859047277, -0.019683575024],
        [-0.835666571385, -0.417779632197, 0.767966724653],
    ]
    args = wave((4, 2), 0.0), wave((9, 2), 0.1), wave((9, 3), 0.2), wave((9,), 0.3), wave((9,), 0.4)
    assert_allclose(recurrent.gru(*args, reset_after=False)[0], cho, **STORED)
    assert_allclose(recurrent.gru(*args)[0], after, **STORED)


def test_a_beginning_forgets_and_a_state_continues():
    x, w_h = wave((7, 3), 0.1), {"elman": wave((2, 2), 0.2), "lstm": wave((8, 2), 0.2), "gru": wave((6, 2), 0.2)}
    begins = [False, False, False, True, False, False, False]
    for name, net in (("elman", recurrent.elman), ("lstm", recurrent.lstm), ("gru", recurrent.gru)):
        w_x = wave((len(w_h[name]), 3), 0.3)
        packed = net(x, w_x, w_h[name], begins=begins)
        first, second = net(x[:3], w_x, w_h[name]), net(x[3:], w_x, w_h[name])
        assert_allclose(packed[0], np.concatenate([first[0], second[0]]), **EXACT)
        assert_allclose(packed[1], second[1], **EXACT)
        states = {"h0": first[1], **({"c0": first[2]} if name == "lstm" else {})}
        whole = net(x, w_x, w_h[name])
        assert_allclose(net(x[3:], w_x, w_h[name], **states)[0], whole[0][3:], **EXACT)
        assert np.max(np.abs(whole[0][3:] - second[0])) > 1e-3


@pytest.mark.parametrize("dilation", [1, 2])
def test_convolutions_equal_torch(dilation):
    x, w, v = wave((7, 3), 0.1), wave((4, 3, 3), 0.2), wave((4, 3, 3), 0.3)
    b, c = wave((4,), 0.4), wave((4,), 0.5)
    padded = F.pad(torch.tensor(x).T, (2 * dilation, 0))[None]
    value = F.conv1d(padded, torch.tensor(w), torch.tensor(b), dilation=dilation)
    gate = F.conv1d(padded, torch.tensor(v), torch.tensor(c), dilation=dilation)
    ours = convolution.causal_convolution(x, w, b, dilation=dilation)
    assert_allclose(ours, value[0].T, **EXACT)
    gated = convolution.gated_convolution(x, w, b, v, c, dilation=dilation)
    assert_allclose(gated, F.glu(torch.cat([value, gate], 1), 1)[0].T, **EXACT)
    continued = convolution.causal_convolution(x[4:], w, b, dilation=dilation, history=x[4 - 2 * dilation : 4])
    assert_allclose(continued, ours[4:], **EXACT)


def test_a_convolution_stays_inside_its_document():
    x, w, v = wave((7, 3), 0.1), wave((4, 3, 3), 0.2), wave((4, 3, 3), 0.3)
    begins = [False, False, True, False, False, False, True]
    packed = convolution.gated_convolution(x, w, None, v, None, dilation=2, begins=begins, history=wave((4, 3), 0.9))
    pieces = [
        convolution.gated_convolution(x[:2], w, None, v, None, dilation=2, history=wave((4, 3), 0.9)),
        convolution.gated_convolution(x[2:6], w, None, v, None, dilation=2),
        convolution.gated_convolution(x[6:], w, None, v, None, dilation=2),
    ]
    assert_allclose(packed, np.concatenate(pieces), **EXACT)


def test_channel_mixing_equals_transformers():
    # transformers 5.23.0 RwkvFeedForward(hidden 4, intermediate 6), float64, with the weights below
    stored = [
        [3.568646872433, -0.665509331133, 0.049267141088, 0.879966863952],
        [1.094335497563, -1.124918333271, -0.5540339786, 2.575829578335],
        [1.321767379321, -0.415821467737, -0.889081102853, 0.771573336643],
    ]
    x, mu_k, mu_r = wave((3, 4), 0.0), wave((4,), 0.1) * 0.5 + 0.5, wave((4,), 0.9) * 0.5 + 0.5
    weights = mu_k, mu_r, wave((6, 4), 0.2), wave((4, 6), 0.4), wave((4, 4), 0.6)
    whole, last = rwkv.channel_mixing(x, *weights)
    assert_allclose(whole, stored, **STORED)
    assert (last == x[2]).all()
    _, state = rwkv.channel_mixing(x[:1], *weights)
    assert_allclose(rwkv.channel_mixing(x[1:], *weights, last=state)[0], whole[1:], **EXACT)
    packed, _ = rwkv.channel_mixing(x, *weights, last=x[2], begins=[True, False, True])
    assert_allclose(packed[:2], whole[:2], **EXACT)
    assert_allclose(packed[2:], rwkv.channel_mixing(x[2:], *weights)[0], **EXACT)


@pytest.mark.parametrize("method", ["bilinear", "zoh"])
def test_dense_discretisation_and_recurrence_equal_scipy(method):
    a, b, c, d = wave((3, 3), 0.1) - np.eye(3), wave((3, 2), 0.2), wave((2, 3), 0.3), wave((2, 2), 0.4)
    u = wave((6, 2), 0.5)
    a_d, b_d = ssm.discretise_dense(a, b, 0.3, method)
    theirs = scipy.signal.cont2discrete((a, b, c, d), 0.3, method="zoh" if method == "zoh" else "bilinear")
    assert_allclose(a_d, theirs[0], **EXACT)
    assert_allclose(b_d, theirs[1], **EXACT)
    y, state = ssm.linear_recurrence(u, a_d, b_d, c, d)
    late = (a_d, b_d, c @ a_d, c @ b_d + d, 0.3)  # SciPy's state takes the input in one step later
    assert_allclose(y, scipy.signal.dlsim(late, u)[1], **EXACT)
    assert_allclose(ssm.linear_convolution(u, a_d, b_d, c, d), y, **EXACT)
    half, middle = ssm.linear_recurrence(u[:2], a_d, b_d, c, d)
    rest, end = ssm.linear_recurrence(u[2:], a_d, b_d, c, d, middle)
    assert_allclose(np.concatenate([half, rest]), y, **EXACT)
    assert_allclose(end, state, **EXACT)
    assert_allclose(ssm.matrix_exponential(4 * a), scipy.linalg.expm(4 * a), rtol=1e-10, atol=1e-12)


def modes():
    a = np.stack([ssm.s4d_lin(6), ssm.s4d_inv(6)])
    b, c = wave((2, 3), 0.3) + 1j * wave((2, 3), 0.4), wave((2, 3), 0.1) + 1j * wave((2, 3), 0.2)
    return a, b, c, np.array([0.05, 0.4])


@pytest.mark.parametrize("method", ["bilinear", "zoh"])
def test_s4d_equals_scipy_on_the_real_system(method):
    a, b, c, dt = modes()
    u, skip = wave((9, 2), 0.6), wave((2,), 0.7)
    y, _ = ssm.s4d_recurrence(u, a, b, c, dt, skip, method=method)
    for channel in range(2):
        # z' = a z + b u as a real system in (Re z, Im z): 2 Re(c z) = 2 Re c Re z - 2 Im c Im z
        real, imaginary = np.diag(a[channel].real), np.diag(a[channel].imag)
        system = (
            np.block([[real, -imaginary], [imaginary, real]]),
            np.concatenate([b[channel].real, b[channel].imag])[:, None],
            2 * np.concatenate([c[channel].real, -c[channel].imag])[None],
            np.array([[skip[channel]]]),
        )
        a_d, b_d, *_ = scipy.signal.cont2discrete(system, dt[channel], method=method)
        late = (a_d, b_d, system[2] @ a_d, system[2] @ b_d + system[3], dt[channel])
        assert_allclose(y[:, channel], scipy.signal.dlsim(late, u[:, channel])[1][:, 0], rtol=1e-10, atol=1e-12)
    assert_allclose(ssm.s4d_convolution(u, a, b, c, dt, skip, method=method), y, **EXACT)
    kernel = ssm.s4d_kernel(a, b, c, dt, 9, method)
    assert_allclose(np.convolve(kernel[1], u[:, 1])[:9] + skip[1] * u[:, 1], y[:, 1], **EXACT)


def test_s4d_kernel_equals_the_authors():
    # the lines of state-spaces/s4, models/s4/s4d.py S4DKernel.forward (commit 2ed46fc), complex128: dt 0.05 and 0.4,
    # C = wave((2, 3), 0.1) + j wave((2, 3), 0.2), A of S4D-Lin with N = 6, L = 5
    stored = [
        [0.155973157239, 0.100978915038, 0.043423562187, -0.012165216213, -0.061675070004],
        [0.851260429137, 0.402050077167, 0.110923677772, 0.545908832674, 0.192580485953],
    ]
    a, _, c, dt = modes()
    kernel = ssm.s4d_kernel(np.stack([a[0], a[0]]), np.ones((2, 3)), c, dt, 5)
    assert_allclose(kernel, stored, **STORED)


def test_s4d_state_continues_and_a_beginning_forgets():
    a, b, c, dt = modes()
    u = wave((8, 2), 0.6)
    whole, last = ssm.s4d_recurrence(u, a, b, c, dt)
    first, state = ssm.s4d_recurrence(u[:3], a, b, c, dt)
    kept = state.copy()
    second, end = ssm.s4d_recurrence(u[3:], a, b, c, dt, state=state)
    assert (state == kept).all()
    assert_allclose(np.concatenate([first, second]), whole, **EXACT)
    assert_allclose(end, last, **EXACT)
    packed, _ = ssm.s4d_recurrence(u, a, b, c, dt, state=last, begins=[True] + 2 * [False] + [True] + 4 * [False])
    assert_allclose(packed, np.concatenate([first, ssm.s4d_recurrence(u[3:], a, b, c, dt)[0]]), **EXACT)


def test_initialisations_by_hand():
    assert_allclose(ssm.s4d_lin(4), [-0.5, -0.5 + 1j * np.pi], **EXACT)
    assert_allclose(ssm.s4d_inv(4), [-0.5 + 12j / np.pi, -0.5 + 4j / (3 * np.pi)], **EXACT)
    a, b, p = ssm.hippo_legs(3)
    root = np.sqrt
    assert_allclose(a, [[-1, 0, 0], [-root(3), -2, 0], [-root(5), -root(15), -3]], **EXACT)
    assert_allclose(b, root([1, 3, 5]), **EXACT)
    assert_allclose(p, root([0.5, 1.5, 2.5]), **EXACT)
    # N = 2: A + P P^T = [[-1/2, w], [-w, -1/2]], w = sqrt(3)/2; eigenvector (1, j)/sqrt 2 and so
    # |V* B| = |1 - j sqrt 3|/sqrt 2 = sqrt 2
    eigenvalues, projected = ssm.s4d_legs(2)
    assert_allclose(eigenvalues, [-0.5 + 1j * root(3) / 2], **EXACT)
    assert_allclose(projected, [root(2)], **EXACT)


def test_legs_modes_are_the_spectrum_of_the_normal_part():
    a, _, p = ssm.hippo_legs(8)
    theirs = scipy.linalg.eigvals(a + np.outer(p, p))
    upper = sorted((value for value in theirs if value.imag > 0), key=lambda value: value.imag)
    eigenvalues, projected = ssm.s4d_legs(8)
    assert_allclose(eigenvalues, upper, rtol=1e-10)
    assert_allclose(2 * np.sum(projected**2), 64.0, rtol=1e-12)  # |B|^2 = sum (2n + 1) = N^2, and V is unitary
