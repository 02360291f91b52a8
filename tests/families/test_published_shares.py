"""Where the operations of GPT-3 go, counted exactly, beside the shares that are often quoted.

Assumptions: a forward pass over rows of T = 2048 tokens, a vocabulary of 50257, scores between every query and every
key (no causal saving), dense layers, two operations a multiplication and addition, element-wise work left out.
"""

from __future__ import annotations

from functools import cache

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.flops import Flops, forward_flops
from weft.analysis.shapes import shape_of
from weft.families.family import families

T, V = 2048, 50257
QUOTED = {"gpt3-large": (0.35, 0.44, 0.15, 0.06), "gpt3-175b": (0.17, 0.80, 0.03, 0.003)}
"""Attention's projections, feed-forward, scores, logits: as a lecture has them."""

COUNTED = {"gpt3-large": (0.25, 0.50, 0.17, 0.085), "gpt3-175b": (0.32, 0.65, 0.027, 0.0035)}


@cache
def flops(name: str) -> Flops:
    gpt3 = families()["gpt3"]
    size = next(size for size in gpt3.sizes if size.name == name)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return forward_flops(shape_of(gpt3.config(size), mode, None), mode, T)


def shares(found: Flops, *, causal: bool = False) -> tuple[float, ...]:
    by_part = {part.part: part.share_visible if causal else part.share_full for part in found.parts}
    return tuple(by_part[part] for part in ("attention projections", "feed-forward", "attention scores", "logits"))


@pytest.mark.parametrize("name", COUNTED)
def test_shares_are_those_of_the_shapes_and_not_the_quoted_ones(name: str) -> None:
    found = shares(flops(name))
    assert sum(found) == pytest.approx(1)
    assert found == pytest.approx(COUNTED[name], rel=0.03)
    assert abs(found[0] - QUOTED[name][0]) > 0.08


@pytest.mark.parametrize("name", COUNTED)
def test_projections_to_feed_forward_is_one_to_two_whatever_is_assumed(name: str) -> None:
    """4 d^2 and 8 d^2 parameters: no T, vocabulary or mask makes 35:44 or 17:80 of it."""
    found = flops(name)
    full, causal = shares(found), shares(found, causal=True)
    assert full[1] / full[0] == pytest.approx(2)
    assert causal[1] / causal[0] == pytest.approx(2)
    assert causal[2] < 0.6 * full[2]


def test_the_counts_by_hand() -> None:
    """2 (4 d^2 + 8 d^2) + 4 T d a layer, and 2 V d, d = 1536 and 24 layers."""
    d, layers = 1536, 24
    assert flops("gpt3-large").full == layers * (2 * (4 * d * d + 8 * d * d) + 4 * T * d) + 2 * V * d


def test_a_row_of_the_table_is_wider_than_its_name() -> None:
    """XL as printed has 24 heads of 128 in d_model 2048: 1.52 billion, and 1.3 billion with 16."""
    found = {size.name: size for size in families()["gpt3"].sizes}
    assert found["gpt3-xl"].values["n_heads"] * found["gpt3-xl"].values["d_head"] == 3072
    assert (found["gpt3-xl"].parameters, found["gpt3-xl-16-heads"].parameters) == (1_520_000_000, 1_300_000_000)
