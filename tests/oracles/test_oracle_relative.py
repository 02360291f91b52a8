"""Relative positions against the attention modules of transformers 4.37.2 and TUPE's released code.

All weights and inputs are waves; stored are the first feature of every row, and the last row where it says so.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from . import attention, t5_bias
from . import relative_positions as relative
from .waves import wave

T, D, H, E = 6, 4, 2, 2
X = wave((T, D), 0.3)
MAPS = [wave((4, 4), phase) for phase in (1.0, 2.0, 3.0, 4.0)]
FULL, CAUSAL = np.ones((T, T), bool), np.tril(np.ones((T, T), bool))
FLOAT32 = 1e-6
"""Relative tolerance where the module works its softmax or its scale out in float32."""


def head(table, h):
    return None if table is None else table[:, h * E : (h + 1) * E]


@pytest.mark.parametrize(
    ("decoder", "stored"),
    [
        (False, [1.04658632, -1.13586942, 0.39040993, 0.32039996, -0.88764566, 0.25045124]),
        (True, [0.63317765, -0.80062159, 0.80168367, -0.82558998, -0.02736185, 0.16332231]),
    ],
)
def test_t5_attention(decoder, stored):
    # T5Attention(is_decoder=decoder), 8 buckets, longest distance 5
    bias = t5_bias.bias(wave((8, 2), 0.9), range(T), range(T), bidirectional=not decoder, max_distance=5)
    y = attention.multi_head_attention(X, *MAPS, H, H, scale=1.0, bias=bias, mask=CAUSAL if decoder else FULL)
    assert_allclose(y[:, 0], stored, rtol=FLOAT32, atol=1e-7)


def test_shaw_s_keys():
    # SeamlessM4Tv2ConformerSelfAttention, relative_key, 2 positions on either side
    stored = [0.9206804024478622, 0.028538570495537815, 0.5948278835427728, -0.1389644121842246, -0.5168103321028157,
              0.515134031358927]  # fmt: skip
    y = relative.attention(X, *MAPS, H, H, lambda h, q, k: relative.shaw_scores(q, k, wave((5, 2), 0.9), 2), FULL)
    assert_allclose(y[:, 0], stored, rtol=1e-12)


def test_shaw_s_values_by_hand():
    table = np.array([[1.0], [10.0], [100.0]])
    weights = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]])
    assert_allclose(relative.shaw_values(weights, table, 1), [[55.0], [10.0], [4.6]])


@pytest.mark.parametrize(
    ("terms", "stored", "rtol"),
    [
        ("both", [0.85495120, -0.62816278, 1.13603287, 0.55029988, -0.67498042, 0.21212287], FLOAT32),
        ("p2c", [1.2902713101093994, -0.6551200619045509, 1.2439773937992769, 0.5900096703957295, -0.6061540124138415,
                 0.17955718896180237], 1e-12),
    ],
)  # fmt: skip
def test_deberta_v1(terms, stored, rtol):
    # DisentangledSelfAttention, max_relative_positions 3
    table, biases = wave((6, D), 0.9), (wave((4,), 0.2), None, wave((4,), 0.4))
    k_r = table @ wave((4, 4), 5.0).T if terms == "both" else None
    q_r = table @ wave((4, 4), 6.0).T + wave((4,), 0.6)
    y = relative.attention(X, *MAPS[:3], np.eye(4), H, H,
                           lambda h, q, k: relative.deberta_scores(q, k, head(k_r, h), head(q_r, h)), FULL,
                           biases=biases)  # fmt: skip
    assert_allclose(y[:, 0], stored, rtol=rtol)


@pytest.mark.parametrize(
    ("maps", "stored"),
    [
        ((2.0, 0.4, 1.0, 0.2), [1.13570768, 0.60477278, 1.12585701, 0.33881141, 1.17385677]),
        ((5.0, 0.8, 6.0, 0.6), [0.55625157, -0.19490314, 1.42535249, 0.33477947, 1.00527653]),
    ],
)
def test_deberta_v2_with_the_content_s_projections_and_with_others(maps, stored):
    # DisentangledSelfAttention of deberta_v2, 8 buckets, max_relative_positions 20; every eighth of 40 rows
    x, table = wave((40, D), 0.3), wave((16, D), 0.9)
    k_r = table @ wave((4, 4), maps[0]).T + wave((4,), maps[1])
    q_r = table @ wave((4, 4), maps[2]).T + wave((4,), maps[3])
    y = relative.attention(x, *MAPS[:3], np.eye(4), H, H,
                           lambda h, q, k: relative.deberta_scores(q, k, head(k_r, h), head(q_r, h), 20),
                           np.ones((40, 40), bool), biases=[wave((4,), 0.2 * n) for n in (1, 2, 3)])  # fmt: skip
    assert_allclose(y[::8, 0], stored, rtol=FLOAT32)


@pytest.mark.parametrize(("span", "longest", "total"), [(256, 512, 117110664), (8, 20, 6585318), (32, 128, 19750642)])
def test_all_log_positions(span, longest, total):
    # sum over r = -700 .. 700 of (r + 701) * make_log_bucket_position(r, span, longest)
    assert sum((r + 701) * relative.log_position(r, span, longest) for r in range(-700, 701)) == total


@pytest.mark.parametrize(
    ("clamp", "stored"),
    [
        (None, [0.43868564, -0.94988768, 0.41766936, -0.66630369, 0.21642484, 0.32925305]),
        (3, [0.43868564, -0.94856457, 0.36766896, -0.68240946, 0.04423715, 0.48130021]),
    ],
)
def test_transformer_xl_with_a_memory_of_three(clamp, stored):
    # RelPartialLearnableMultiHeadAttn in float32, its norm left out and its residual taken off
    both, u, v, w_r = np.concatenate([wave((3, D), 0.7), X]), wave((2, 2), 0.5), wave((2, 2), 0.8), wave((4, 4), 5.0)
    y = relative.attention(both, *MAPS, H, H, lambda h, q, k: relative.transformer_xl_scores(
        q, k, u[h], v[h], head(w_r.T, h).T, range(9), range(9), clamp), np.tril(np.ones((9, 9), bool)))  # fmt: skip
    assert_allclose(y[3:, 0], stored, rtol=2e-6)


def test_tupe_with_an_untied_first_token():
    # the lines of TransformerSentenceEncoder.forward that make abs_pos_bias; theta are what its two extra rows give
    stored = [0.4943711102758345, 0.12436909654900254, -0.0265393353424978, 0.6060035629823631, -0.47864511823882916,
              1.3349302253267143]  # fmt: skip
    rows = wave((T + 1, D), 0.9)
    rows = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    p_q, p_k = np.split(rows @ wave((8, 4), 5.0).T + wave((8,), 0.6), 2, axis=1)

    def score(h, q, k):
        own_q, own_k = head(p_q, h), head(p_k, h)
        theta = [own_q[row] @ own_k[row] / np.sqrt(2 * E) for row in (0, 1)]
        return relative.tupe_scores(q, k, own_q[1:], own_k[1:], theta=theta)

    assert_allclose(relative.attention(X, *MAPS, H, H, score, FULL)[:, 0], stored, rtol=1e-12)
