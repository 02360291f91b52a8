"""S4's oracle against numbers that the annotated S4 computed, by Cauchy products and by its dense matrices; linear SSMs
against SciPy. All in float64; stored numbers had 12 decimals."""

from __future__ import annotations

import numpy as np
import scipy.linalg
import scipy.signal
from numpy.testing import assert_allclose

from . import dense_ssm, ssm
from .waves import wave

STORED = {"rtol": 0.0, "atol": 1e-11}
DT = np.array([0.05, 0.4])
KERNELS = [
    [0.256379089861, -0.077501939377, -0.179801781476, -0.171605869162, -0.121253822188, -0.064612287691],
    [-0.099425259967, -0.67530389517, 0.456256814637, -0.851016466668, 0.261332077063, 0.210003331201],
]
OUTPUTS = [
    [0.144762523426, 0.203275283863, 0.056923496017, -0.231046490036, -0.495948759928, -0.576186603897,
     -0.402171782547, -0.03384846614, 0.367057458111],
    [-0.056139724706, -0.477107284741, -0.483479752564, -0.697434504143, -0.520775601829, 0.045478677853,
     0.65627035361, 0.967372675653, 0.808312257539],
]
STATES = [
    [0.025505174929 + 0.005135636033j, 0.020392495396 + 0.036930727681j, -0.014088391553 - 0.210445739044j],
    [-0.256802291989 - 0.00787971412j, 0.261806077285 - 0.266422786873j, 0.03071754573 - 0.001083663183j],
]
"""The annotated S4 (srush/annotated-s4, commit f19e246) in JAX, float64, N = 6, both steps: kernel_DPLR with L = 16,
scan_SSM of discrete_DPLR. Its eigenvectors are turned so that B is real, and its C is such that C (I - A^L) is its
C~; C = wave((3,), 0.1) + j wave((3,), 0.2), u = wave((9,), 0.6)."""


def legs() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    modes, b = ssm.s4d_legs(6)
    c = wave((3,), 0.1) + 1j * wave((3,), 0.2)
    return dense_ssm.dplr(*(np.stack([each, each]) for each in (modes, b / np.sqrt(2), b, c)), DT)


def test_kernels_outputs_and_states_are_those_of_the_annotated_s4() -> None:
    assert_allclose(dense_ssm.kernels(legs(), 6), KERNELS, **STORED)
    u = np.repeat(wave((9, 1), 0.6), 2, axis=1)
    y, states = dense_ssm.channels(u, legs(), np.zeros(2))
    assert_allclose(y.T, OUTPUTS, **STORED)
    assert_allclose(states[:, :3], STATES, **STORED)
    assert_allclose(states[:, 3:], states[:, :3].conj(), rtol=1e-12, atol=1e-12)


def test_the_system_is_that_of_hippo_in_another_basis() -> None:
    """B^T A^l B and P^T A^l B do not depend on the basis: they are those of the real matrix, discretised by SciPy."""
    a, b, p = ssm.hippo_legs(6)
    modes, half = ssm.s4d_legs(6)
    for row, c in ((b, half), (p, half / np.sqrt(2))):
        discrete = scipy.signal.cont2discrete((a, b[:, None], row[None], np.zeros((1, 1))), 0.1, method="bilinear")
        theirs = [(row @ np.linalg.matrix_power(discrete[0], step) @ discrete[1]).item() for step in range(8)]
        systems = dense_ssm.dplr(*(each[None] for each in (modes, half / np.sqrt(2), half, c)), np.array([0.1]))
        assert_allclose(dense_ssm.kernels(systems, 8)[0], theirs, rtol=1e-10)


def test_a_beginning_forgets_and_a_state_continues() -> None:
    u = wave((8, 2), 0.6)
    skip = wave((2,), 0.7)
    whole, last = dense_ssm.channels(u, legs(), skip)
    first, states = dense_ssm.channels(u[:3], legs(), skip)
    second, end = dense_ssm.channels(u[3:], legs(), skip, states=states)
    assert_allclose(np.concatenate([first, second]), whole, rtol=1e-12)
    assert_allclose(end, last, rtol=1e-12)
    packed, _ = dense_ssm.channels(u, legs(), skip, states=last, begins=[True, False, False, True] + 4 * [False])
    fresh, _ = dense_ssm.channels(u[3:], legs(), skip)
    assert_allclose(packed, np.concatenate([first, fresh]), rtol=1e-12)


def test_linear_systems_are_discretised_channel_by_channel() -> None:
    a, b, c = wave((2, 3, 3), 0.1) - np.eye(3), wave((2, 3), 0.2), wave((2, 3), 0.3)
    found = dense_ssm.linear(a, b, c, DT, "zoh")
    for d, (a_d, _, c_d) in enumerate(found):
        assert_allclose(a_d, scipy.linalg.expm(DT[d] * a[d]), rtol=1e-10)
        assert_allclose(c_d, c[d])
