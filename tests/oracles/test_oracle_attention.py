"""Attention and masks against torch's MultiheadAttention and SDPA, transformers, and patterns drawn by hand.

All in float64: 1e-12 against torch; transformers' numbers were printed with 12 decimals.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose

from . import alibi, attention, masks, norms, rope, rope_frequencies
from .waves import wave

EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("cross", [False, True])
def test_equals_torch_multihead_attention(cross):
    torch.manual_seed(0)
    kdim, vdim = (5, 5) if cross else (None, None)
    module = torch.nn.MultiheadAttention(6, 3, kdim=kdim, vdim=vdim).double()
    for p in module.parameters():
        torch.nn.init.normal_(p)
    x, memory = wave((4, 6), 0.1), wave((7, 5), 0.2)
    source = memory if cross else x
    mask = masks.dense(masks.causal, range(4), range(4)) if not cross else np.ones((4, 7), dtype=bool)
    mask[:, 2] = mask[:, 2] & (not cross)
    forbidden = torch.tensor(~mask)
    t, s = torch.tensor(x), torch.tensor(source)
    theirs, maps = module(t, s, s, attn_mask=forbidden, average_attn_weights=False)
    separate = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    parts = separate if cross else module.in_proj_weight.chunk(3)
    w_q, w_k, w_v = [p.detach().numpy() for p in parts]
    b_q, b_k, b_v = [p.detach().numpy() for p in module.in_proj_bias.chunk(3)]
    w_o, b_o = module.out_proj.weight.detach().numpy(), module.out_proj.bias.detach().numpy()
    given = {"b_q": b_q, "b_k": b_k, "b_v": b_v, "memory": memory if cross else None, "mask": mask}
    ours = attention.multi_head_attention(x, w_q, w_k, w_v, w_o, 3, b_o=b_o, **given)
    assert_allclose(ours, theirs.detach(), **EXACT)
    q, k = attention.linear(x, w_q, b_q)[:, 2:4], attention.linear(source, w_k, b_k)[:, 2:4]
    assert_allclose(attention.weights(attention.scores(q, k), mask=mask), maps[1].detach(), **EXACT)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_grouped_queries_free_sizes_bias_and_scale_equal_sdpa(n_kv_heads):
    x = wave((5, 7), 0.1)
    w_q, w_k, w_v = wave((4 * 3, 7), 0.2), wave((n_kv_heads * 3, 7), 0.3), wave((n_kv_heads * 2, 7), 0.4)
    w_o = wave((7, 4 * 2), 0.5)
    additive = alibi.causal_mask(alibi.slopes_press(4), range(5), range(5))
    bias = alibi.bias(alibi.slopes_press(4), range(5), range(5))
    mask = masks.dense(masks.causal, range(5), range(5))
    ours = attention.multi_head_attention(x, w_q, w_k, w_v, w_o, 4, n_kv_heads, scale=0.3, bias=bias, mask=mask)
    t = torch.tensor(x)
    q = (t @ torch.tensor(w_q).T).view(5, 4, 3).transpose(0, 1)[None]
    k = (t @ torch.tensor(w_k).T).view(5, n_kv_heads, 3).transpose(0, 1)[None]
    v = (t @ torch.tensor(w_v).T).view(5, n_kv_heads, 2).transpose(0, 1)[None]
    heads = F.scaled_dot_product_attention(q, k, v, torch.tensor(additive)[None], scale=0.3, enable_gqa=True)
    theirs = heads[0].transpose(0, 1).reshape(5, 8)
    assert_allclose(ours, theirs @ torch.tensor(w_o).T, **EXACT)
    joined = attention.multi_head_attention(x, w_q, w_k, w_v, None, 4, n_kv_heads, scale=0.3, bias=bias, mask=mask)
    assert_allclose(joined, theirs, **EXACT)


def test_norm_rotation_and_softcap_follow_the_stage_order():
    x, gain = wave((4, 6), 0.1), 1.0 + 0.3 * wave((4,), 0.7)
    w_q, w_k, w_v, w_o = wave((8, 6), 0.2), wave((4, 6), 0.3), wave((4, 6), 0.4), wave((6, 8), 0.5)
    theta = rope_frequencies.base_frequencies(4)
    turn = partial(rope.rope_half_split, positions=np.arange(4) + 3, theta=theta)
    norm = partial(norms.rmsnorm, weight=gain, eps=1e-6)
    mask = masks.dense(masks.causal, range(4), range(4))
    ours = attention.multi_head_attention(
        x, w_q, w_k, w_v, w_o, 2, 1, norm_q=norm, norm_k=norm, rotate_q=turn, rotate_k=turn, softcap=0.4, mask=mask
    )
    t, g = torch.tensor(x), torch.tensor(gain)
    angles = torch.arange(3.0, 7.0, dtype=torch.float64)[:, None] * torch.tensor(theta)

    def prepare(w):
        y = F.rms_norm((t @ torch.tensor(w).T).view(4, -1, 4), (4,), g, 1e-6)
        turned = torch.complex(y[..., :2], y[..., 2:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
        return torch.cat([turned.real, turned.imag], dim=-1)

    scores = torch.einsum("the,se->hts", prepare(w_q), prepare(w_k)[:, 0]) / 2.0
    scores = (0.4 * torch.tanh(scores / 0.4)).masked_fill(torch.tensor(~mask), -torch.inf)
    heads = torch.einsum("hts,se->the", scores.softmax(-1), t @ torch.tensor(w_v).T).reshape(4, 8)
    assert_allclose(ours, heads @ torch.tensor(w_o).T, **EXACT)


def test_sinks_equal_gpt_oss():
    # transformers 5.23.0 gpt_oss.eager_attention_forward, float64: q wave((1,2,3,4), 0.1), k wave((1,1,3,4), 0.2),
    # v wave((1,1,3,4), 0.3), causal, scaling 0.5, sinks (0.5, -1); indexed [T, H, E]
    stored = np.array(
        [
            [
                [0.190185971481, 0.541539878192, 0.638199118395, 0.434703341081],
                [0.190390725232, 0.542122898699, 0.638886202004, 0.435171341634],
            ],
            [
                [0.047471450408, -0.28539359692, -0.484033576218, -0.455025001388],
                [0.158513961125, 0.204536150222, 0.154361791904, 0.031588670885],
            ],
            [
                [-0.047585007705, 0.341532382405, 0.57002175648, 0.530420991647],
                [0.050857608139, 0.231029790386, 0.302545052275, 0.231768648681],
            ],
        ]
    )
    q, k, v = wave((2, 3, 4), 0.1), wave((3, 4), 0.2), wave((3, 4), 0.3)
    mask = masks.dense(masks.causal, range(3), range(3))
    for h, sink in enumerate((0.5, -1.0)):
        ours = attention.weights(attention.scores(q[h], k, 0.5), mask=mask, sink=sink) @ v
        assert_allclose(ours, stored[:, h], rtol=0, atol=1e-11)


def test_bilinear_scores_equal_separate_projections():
    x, w_q, w_k = wave((4, 5), 0.1), wave((3, 5), 0.2), wave((3, 5), 0.3)
    merged = attention.bilinear_scores(x, x, w_k.T @ w_q)
    assert_allclose(merged, attention.scores(x @ w_q.T, x @ w_k.T, scale=1.0), **EXACT)
    assert np.max(np.abs(merged - merged.T)) > 0.1
    whole = attention.bilinear_attention(x, w_k.T @ w_q)
    t = torch.tensor(x)
    theirs = torch.softmax(t @ torch.tensor(w_q).T @ torch.tensor(w_k) @ t.T, -1) @ t
    assert_allclose(whole, theirs, **EXACT)


def test_a_query_that_sees_nothing_gets_zeros():
    mask = np.array([[True, False], [False, False]])
    assert attention.weights(np.zeros((2, 2)), mask=mask).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def drawn(rule, size=6):
    return ["".join("x" if seen else "." for seen in row) for row in masks.dense(rule, range(size), range(size))]


def test_causal_and_continuations():
    assert (masks.dense(masks.causal, range(5), range(5)) == np.tril(np.ones((5, 5), dtype=bool))).all()
    whole = masks.dense(partial(masks.window, width=3), range(7), range(7))
    assert (masks.dense(partial(masks.window, width=3), range(4, 7), range(7)) == whole[4:]).all()
    assert whole.sum(axis=1).tolist() == [1, 2, 3, 3, 3, 3, 3]


# 6 x 6 pictures, rows are queries
PICTURES = {
    "window 2": (lambda i, j: masks.window(i, j, 2), "x..... xx.... .xx... ..xx.. ...xx. ....xx"),
    "symmetric 2": (lambda i, j: masks.window_symmetric(i, j, 2), "xx.... xxx... .xxx.. ..xxx. ...xxx ....xx"),
    "dilated": (lambda i, j: masks.window_dilated(i, j, 2, 3), "x..... .x.... ..x... x..x.. .x..x. ..x..x"),
    "dilated symmetric": (
        lambda i, j: masks.window_dilated_symmetric(i, j, 2, 2),
        "x.x... .x.x.. x.x.x. .x.x.x ..x.x. ...x.x",
    ),
    "prefix 3": (lambda i, j: masks.prefix(i, j, 3), "xxx... xxx... xxx... xxxx.. xxxxx. xxxxxx"),
    "strided local 2": (lambda i, j: masks.strided_local(i, j, 2), "x..... xx.... xxx... .xxx.. ..xxx. ...xxx"),
    "strided 3": (lambda i, j: masks.strided(i, j, 3), "x..... .x.... ..x... x..x.. .x..x. ..x..x"),
    "fixed local 3": (lambda i, j: masks.fixed_local(i, j, 3), "x..... xx.... xxx... ...x.. ...xx. ...xxx"),
    "fixed 3, 1": (lambda i, j: masks.fixed(i, j, 3, 1), "...... ...... ..x... ..x... ..x... ..x..x"),
    "fixed, head 1": (lambda i, j: masks.fixed(i, j, 3, 1, head=1), "...... .x.... .x.... .x.... .x..x. .x..x."),
    "global 1": (lambda i, j: masks.global_tokens(i, j, {1}), ".x.... xxxxxx .x.... .x.... .x.... .x...."),
    "documents": (
        lambda i, j: masks.same_document(i, j, [True, False, True, False, False, True]),
        "xx.... xx.... ..xxx. ..xxx. ..xxx. .....x",
    ),
    "padding": (
        lambda i, j: masks.real_key(i, j, [False, True, True, True, False, True]),
        ".xxx.x .xxx.x .xxx.x .xxx.x .xxx.x .xxx.x",
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_patterns_drawn_by_hand(name):
    rule, picture = PICTURES[name]
    assert drawn(rule) == picture.split()


def test_documents_are_those_of_equal_number():
    begins = [False, False, True, True, False]
    numbers = np.array(masks.document_of(begins))
    assert numbers.tolist() == [0, 0, 1, 2, 2]
    dense = masks.dense(partial(masks.same_document, begins=begins), range(5), range(5))
    assert (dense == (numbers[:, None] == numbers[None])).all()


def test_two_strided_heads_reach_every_earlier_token():
    # Child et al. 2019, section 4.2: with p = 2 steps each earlier position is reached
    local = masks.dense(lambda i, j: masks.strided_local(i, j, 4), range(16), range(16)).astype(int)
    strided = masks.dense(lambda i, j: masks.strided(i, j, 4), range(16), range(16)).astype(int)
    assert ((strided @ local > 0) == np.tril(np.ones((16, 16), dtype=bool))).all()
