"""Rotary forms and frequencies against transformers and numbers by hand.

Stored numbers come from transformers 5.23.0; rotations ran in float64 and were printed with 12 decimals (1e-11
absolute), frequencies are computed there in float32 (3e-7 relative).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from . import rope, rope_frequencies
from .waves import wave

# Llama's and GPT-J's apply_rotary_pos_emb, float64, y = wave((2, 6), 0.3), positions 1 and 5, d = 6, base 10000
HALF_SPLIT = [
    [-0.40871241865, 0.838635389948, 0.992980715849, 0.613625993311, 0.080579479327, -0.609719995531],
    [0.021456246502, -1.055371312947, -0.38451230529, 1.02574986308, 0.62444052257, 0.985273458359],
]
INTERLEAVED = [
    [-0.548403169184, 0.703320392743, 0.959255796635, 0.720748167664, 0.042898772779, -0.611766888195],
    [-1.124454444467, 0.686774680644, -0.435508162161, 0.217196736567, 0.83972994637, 0.998461718364],
]
Y, AT, THETA = wave((2, 6), 0.3), np.array([1.0, 5.0]), rope_frequencies.base_frequencies(6)


def test_every_interleaved_form_equals_gptj():
    assert_allclose(rope.rope_interleaved(Y, AT, THETA), INTERLEAVED, rtol=0, atol=1e-11)
    assert_allclose(rope.rope_matrix(Y, AT, THETA), INTERLEAVED, rtol=0, atol=1e-11)
    turned = rope.rope_complex(rope.complex_pairs(Y), AT, THETA)
    assert_allclose(rope.real_pairs(turned), INTERLEAVED, rtol=0, atol=1e-11)


def test_half_split_equals_llama_and_the_permutation_joins_the_layouts():
    assert_allclose(rope.rope_half_split(Y, AT, THETA), HALF_SPLIT, rtol=0, atol=1e-11)
    p, back = rope.half_split_order(6), rope.interleaved_order(6)
    assert p == [0, 2, 4, 1, 3, 5] and back == [0, 3, 1, 4, 2, 5]
    assert_allclose(rope.rope_half_split(Y[:, p], AT, THETA)[:, back], INTERLEAVED, rtol=0, atol=1e-11)
    w_q = wave((6, 4), 0.8)
    x = wave((2, 4), 0.9)
    through_weights = rope.rope_half_split(x @ w_q[p].T, AT, THETA)
    assert_allclose(through_weights, rope.rope_interleaved(x @ w_q.T, AT, THETA)[:, p], rtol=0, atol=1e-14)


def test_all_score_forms_agree_and_see_distances_only():
    q, k = wave((3, 6), 0.2), wave((4, 6), 0.6)
    m, n = np.array([2.0, 3.0, 7.5]), np.array([0.0, 1.0, 2.0, 9.0])
    expected = rope.rope_interleaved(q, m, THETA) @ rope.rope_interleaved(k, n, THETA).T
    conjugate = rope.scores_conjugate_pairs(q, k, m, n, THETA)
    assert_allclose(rope.scores_real_part(q, k, m, n, THETA), expected, rtol=0, atol=1e-13)
    assert_allclose(conjugate.real, expected, rtol=0, atol=1e-13)
    assert_allclose(conjugate.imag, 0.0, rtol=0, atol=1e-13)
    shifted = rope.rope_interleaved(q, m + 11, THETA) @ rope.rope_interleaved(k, n + 11, THETA).T
    assert_allclose(shifted, expected, rtol=0, atol=1e-13)
    relative = rope.rotation_matrix(m[0], THETA).T @ rope.rotation_matrix(n[3], THETA)
    assert_allclose(relative, rope.rotation_matrix(n[3] - m[0], THETA), rtol=0, atol=1e-13)


def test_partial_rotary_turns_the_first_features_only():
    wide = np.concatenate([Y, wave((2, 3), 0.4)], axis=1)
    assert_allclose(rope.rope_partial(wide, AT, THETA)[:, :6], HALF_SPLIT, rtol=0, atol=1e-11)
    assert_allclose(rope.rope_partial(wide, AT, THETA, "interleaved")[:, :6], INTERLEAVED, rtol=0, atol=1e-11)
    assert (rope.rope_partial(wide, AT, THETA)[:, 6:] == wide[:, 6:]).all()


# fmt: off
SHORT, LONG = [1.0 + 0.05 * i for i in range(8)], [1.0 + 0.9 * i for i in range(8)]
YARN_40 = [1.0, 0.3162277638912, 0.1000000014901, 0.02391472458839, 0.005124999675900, 8.498621755280e-04,
           2.499999936845e-05, 7.905694474175e-06]
# ROPE_INIT_FUNCTIONS with head_dim 16 and rope_theta 10000 (llama3 500000, "bound clamped" 100): theta and factor
FREQUENCIES = {
    "linear": (
        lambda: (rope_frequencies.linear(16, 1e4, 4.0), 1.0), 1.0,
        [0.25, 0.07905694097281, 0.02500000037253, 0.007905694656074, 0.002499999944121, 7.905694656074e-04,
         2.500000118744e-04, 7.905694656074e-05],
    ),
    "dynamic, 200 tokens": (
        lambda: (rope_frequencies.dynamic_ntk(16, 1e4, 4.0, 64, 200), 1.0), 1.0,
        [1.0, 0.2292583733797, 0.05255939811468, 0.01204968243837, 0.002762490650639, 6.333240889944e-04,
         1.451948483009e-04, 3.328713501105e-05],
    ),
    "dynamic, 20 tokens": (
        lambda: (rope_frequencies.dynamic_ntk(16, 1e4, 4.0, 64, 20), 1.0), 1.0,
        [1.0, 0.3162277638912, 0.1000000014901, 0.03162277862430, 0.009999999776483, 0.003162277862430,
         0.001000000047497, 3.162277862430e-04],
    ),
    "yarn": (
        lambda: rope_frequencies.yarn(16, 1e4, 4.0, 64), 1.138629436111989,
        [1.0, 0.2371708154678, 0.04999999701977, 0.007905694656074, 0.002499999944121, 7.905694656074e-04,
         2.500000118744e-04, 7.905694656074e-05],
    ),
    "yarn, not truncated": (
        lambda: rope_frequencies.yarn(16, 1e4, 4.0, 64, truncate=False, beta_fast=8, beta_slow=0.5), 1.138629436111989,
        [1.0, 0.2384084612131, 0.04424830153584, 0.007905694656074, 0.002499999944121, 7.905694656074e-04,
         2.500000118744e-04, 7.905694656074e-05],
    ),
    "yarn, mscale": (
        lambda: rope_frequencies.yarn(16, 1e4, 40.0, 4096, mscale=0.707, mscale_all_dim=1.0), 0.9210423553163399,
        YARN_40,
    ),
    "yarn, attention factor": (
        lambda: rope_frequencies.yarn(16, 1e4, 40.0, 4096, attention_factor=1.25), 1.25, YARN_40,
    ),
    "yarn, bound clamped": (
        lambda: rope_frequencies.yarn(16, 100.0, 8.0, 1 << 17, beta_fast=4096.0), 1.2079441541679836,
        [1.0, 0.562341332436, 0.316227763891, 0.165858745575, 0.086538463831, 0.044879160821, 0.02310895361,
         0.011798199266],
    ),
    "llama3": (
        lambda: (rope_frequencies.llama3(16, 5e5, 8.0, 128), 1.0), 1.0,
        [1.0, 0.1911264955997, 0.004700753837824, 9.115831344388e-04, 1.767766807461e-04, 3.428102354519e-05,
         6.647869668086e-06, 1.289173155783e-06],
    ),
    "longrope, 64 tokens": (
        lambda: rope_frequencies.longrope(16, 1e4, SHORT, LONG, 64, 256, 64), 1.1547005383792517,
        [1.0, 0.3011693060398, 0.09090909361839, 0.02749806828797, 0.008333332836628, 0.002529822289944,
         7.692307699472e-04, 2.342427906115e-04],
    ),
    "longrope, 65 tokens": (
        lambda: rope_frequencies.longrope(16, 1e4, SHORT, LONG, 64, 256, 65), 1.1547005383792517,
        [1.0, 0.1664356738329, 0.03571428731084, 0.008546696044505, 0.002173912944272, 5.749595584348e-04,
         1.562499965075e-04, 4.331887248554e-05],
    ),
}
# fmt: on


@pytest.mark.parametrize("name", FREQUENCIES)
def test_frequencies_equal_transformers(name):
    ours, factor, theta = FREQUENCIES[name]
    assert_allclose(ours()[0], theta, rtol=3e-7)
    assert_allclose(ours()[1], factor, rtol=1e-14)


def test_ntk_aware_by_hand():
    # d = 4: base 100 * 9^2 = 8100, theta_1 = 8100^(-1/2) = 1/90, the old slowest 1/10 divided by 9
    assert_allclose(rope_frequencies.ntk_aware(4, 100.0, 9.0), [1.0, 1 / 90], rtol=1e-14)


def test_yarn_of_the_paper_is_linear_in_turns():
    # L0 = 200 pi: turns r = 100 theta = 100, 10, 1 for theta = 1, 1/10, 1/100 (d = 6, base 1000)
    theta, _ = rope_frequencies.yarn(6, 1000.0, 4.0, 200 * math.pi, beta_fast=19.0, beta_slow=1.0, ramp="rotations")
    assert_allclose(theta, [1.0, 0.5 * 0.1 / 4 + 0.5 * 0.1, 0.01 / 4], rtol=1e-13)
