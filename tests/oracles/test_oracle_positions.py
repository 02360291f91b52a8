"""Position codes, ALiBi and T5 buckets against transformers and numbers by hand.

Stored numbers come from transformers 5.23.0 with the arguments written beside them; it computes codes in
float32, hence 4e-7 relative; slopes are powers of two and buckets integers.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from . import alibi, positions, t5_bias
from .waves import wave


def test_sinusoidal_by_hand():
    code = positions.sinusoidal_interleaved([0, 1, 7], 4)
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in (0, 1, 7)]
    assert_allclose(code, expected, rtol=1e-15)
    assert_allclose(positions.sinusoidal_halves([0, 1, 7], 4), np.array(expected)[:, [0, 2, 1, 3]], rtol=1e-15)


def test_sinusoidal_halves_equal_marian_and_fairseq_equals_m2m100():
    # rows 1 and 5 of MarianSinusoidalPositionalEmbedding(8, 6) and M2M100SinusoidalPositionalEmbedding.get_embedding
    marian = [
        [
            0.8414709568023682,
            0.04639922454953194,
            0.002154432935640216,
            0.5403022766113281,
            0.9989230036735535,
            0.9999976754188538,
        ],
        [
            -0.9589242935180664,
            0.23000171780586243,
            0.01077196467667818,
            0.28366219997406006,
            0.9731902480125427,
            0.9999420046806335,
        ],
    ]
    m2m100 = [
        [
            0.84147095680236816,
            0.0099998330697417259,
            9.9999990197829902e-05,
            0.5403023362159729,
            0.99994999170303345,
            1.0,
        ],
        [
            -0.95892429351806641,
            0.049979165196418762,
            4.9999996554106474e-04,
            0.28366219997406006,
            0.99875026941299438,
            0.99999988079071045,
        ],
    ]
    assert_allclose(positions.sinusoidal_halves([1, 5], 6), marian, rtol=4e-7)
    assert_allclose(positions.sinusoidal_fairseq([1, 5], 6), m2m100, rtol=4e-7)


def test_naive_codes_by_hand():
    assert positions.integer_code([0, 3, 9]).tolist() == [[0.0], [3.0], [9.0]]
    assert_allclose(positions.fraction_code(4), [[0.0], [1 / 3], [2 / 3], [1.0]], rtol=1e-15)
    assert positions.fraction_code(1).tolist() == [[0.0]]
    assert positions.binary_code([0, 5, 6, 13], 3).tolist() == [[0, 0, 0], [1, 0, 1], [0, 1, 1], [1, 0, 1]]
    assert_allclose(positions.sine_code([0, 1, 3], math.pi / 2), [[0.0], [1.0], [-1.0]], rtol=0, atol=1e-15)


def test_alibi_slopes_equal_bloom_and_mpt():
    # build_alibi_tensor and build_mpt_alibi_tensor for 6 heads
    six = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    assert_allclose(alibi.slopes_press(6), six, rtol=1e-15)
    assert_allclose(alibi.slopes_mpt(6), six, rtol=1e-15)
    assert_allclose(alibi.slopes_press(8), [2.0**-h for h in range(1, 9)], rtol=1e-15)
    for n_heads in range(1, 41):  # the two rules are one as long as MPT's alibi_bias_max is 8
        assert_allclose(alibi.slopes_mpt(n_heads), alibi.slopes_press(n_heads), rtol=1e-15)
    assert_allclose(alibi.slopes_mpt(2, bias_max=4.0), [0.25, 0.0625], rtol=1e-15)


def test_alibi_products_equal_falcon():
    # build_alibi_tensor for 12 heads, heads 0, 8, 9 and 11
    products = alibi.falcon_products(12, [1, 3, 100, 255, 257, 299])
    assert products[[0, 8, 9, 11]].tolist() == [
        [0.5, 1.5, 50.0, 127.5, 128.0, 150.0],
        [0.70703125, 2.125, 70.5, 180.0, 181.0, 212.0],
        [0.353515625, 1.0625, 35.25, 90.0, 90.5, 106.0],
        [0.08837890625, 0.265625, 8.8125, 22.5, 22.625, 26.5],
    ]


def test_alibi_mask_by_hand():
    mask = alibi.causal_mask(np.array([0.5, 0.25]), [1, 2], [0, 1, 2])
    inf = math.inf
    assert mask.tolist() == [[[-0.5, 0.0, -inf], [-1.0, -0.5, 0.0]], [[-0.25, 0.0, -inf], [-0.5, -0.25, 0.0]]]
    assert alibi.bias(np.array([0.5]), [1], [0, 1, 3]).tolist() == [[[-0.5, 0.0, -1.0]]]


def test_t5_buckets_equal_transformers():
    # T5Attention._relative_position_bucket(distances, ..., 32, 128)
    # fmt: off
    distances = [
        -300, -128, -113, -100, -91, -80, -64, -63, -46, -45, -32, -31, -23, -16, -15, -8, -7, -1, 0, 1, 7, 8,
        12, 16, 20, 32, 64, 100, 128,
    ]
    both = [
        15, 15, 15, 15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 9, 8, 7, 1, 0, 17, 23, 24, 25, 26, 26, 28, 30,
        31, 31,
    ]
    # fmt: on
    past = [31, 31, 31, 30, 29, 28, 26, 26, 24, 23, 21, 21, 18, 16, 15, 8, 7, 1, 0] + 10 * [0]
    assert [t5_bias.bucket(r) for r in distances] == both
    assert [t5_bias.bucket(r, bidirectional=False) for r in distances] == past


@pytest.mark.parametrize(
    ("bidirectional", "n_buckets", "max_distance", "checksum"),
    [(True, 32, 128, 8416990), (False, 32, 128, 2152155), (True, 20, 64, 5219416), (False, 32, 256, 2018274)],
)
def test_all_t5_buckets_equal_transformers(bidirectional, n_buckets, max_distance, checksum):
    # sum over r = -400 .. 400 of (r + 401) * bucket(r), the same function
    total = sum((r + 401) * t5_bias.bucket(r, bidirectional, n_buckets, max_distance) for r in range(-400, 401))
    assert total == checksum


def test_t5_bias_looks_up_key_minus_query():
    table = wave((32, 2), 0.1)
    bias = t5_bias.bias(table, [0, 5], [0, 1, 2, 3])
    assert bias.shape == (2, 2, 4)
    assert_allclose(bias[:, 0, 3], table[16 + 3], rtol=0)
    assert_allclose(bias[:, 1, 3], table[2], rtol=0)
