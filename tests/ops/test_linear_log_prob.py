"""Log-probabilities of targets, in one piece and in many."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import require_agreement
from oracles import losses
from weft.ops.linear_log_prob import linear_log_prob, linear_logits

B, T, D, V = 2, 5, 3, 7
TARGETS = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(0))


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)


def oracle(softcap: float | None):
    def run(h, weight, bias=None):
        z = h @ weight.T + (0.0 if bias is None else bias)
        z = z if softcap is None else softcap * np.tanh(z / softcap)
        return np.stack([losses.gathered_log_prob(row, goals) for row, goals in zip(z, TARGETS.tolist(), strict=True)])
    return run


@pytest.mark.parametrize("entries", [1, 3 * V, 4 * V + 1, 1 << 22], ids=["token", "three", "four", "whole"])
@pytest.mark.parametrize("bias", [None, random(V, seed=3)], ids=["plain", "bias"])
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_pieces_equal_the_oracle_in_values_and_gradients(entries: int, bias: Tensor | None,
                                                         softcap: float | None) -> None:
    h, weight = random(B, T, D, seed=1), random(V, D, seed=2)
    y = linear_log_prob(h, weight, bias, TARGETS, softcap, chunk_entries=entries)
    require_agreement(y, [h, weight] + ([] if bias is None else [bias]), oracle(softcap))


def test_pieces_hold_no_logits_for_the_backward_pass() -> None:
    h, weight = random(B, T, D, seed=1), random(V, D, seed=2)
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        linear_log_prob(h, weight, None, TARGETS, chunk_entries=2 * V)
        pieces = list(sizes)
        sizes.clear()
        linear_log_prob(h, weight, None, TARGETS)
    assert max(sizes) == B * T * V
    assert max(pieces, default=0) <= max(B * T * D, V * D)


def test_without_gradients_pieces_agree_too() -> None:
    with torch.no_grad():
        h, weight = random(B, T, D, seed=1), random(V, D, seed=2)
        pieces = linear_log_prob(h, weight, None, TARGETS, chunk_entries=V)
        assert_close(pieces, linear_log_prob(h, weight, None, TARGETS), rtol=1e-13, atol=1e-13)
        assert not pieces.requires_grad


def test_no_tokens_give_no_log_probabilities() -> None:
    empty = linear_log_prob(random(B, 0, D, seed=1), random(V, D, seed=2), None, TARGETS[:, :0])
    assert empty.shape == (B, 0)


def test_narrow_floats_are_summed_in_float32() -> None:
    h, weight = random(B, T, D, seed=1), random(V, D, seed=2)
    narrow = linear_log_prob(h.bfloat16(), weight.bfloat16(), None, TARGETS)
    assert narrow.dtype is torch.float32
    # Logits of size about 5 rounded to 8 bits: at most 0.02 each, some rounding of h and weight on top.
    assert_close(narrow.double(), linear_log_prob(h, weight, None, TARGETS), rtol=0, atol=0.1)


def test_logits_are_capped_smoothly() -> None:
    h, weight = random(B, T, D, seed=1), random(V, D, seed=2)
    plain = linear_logits(h, weight, None, None)
    assert_close(linear_logits(h, weight, None, 2.0), 2.0 * torch.tanh(plain / 2.0), rtol=1e-14, atol=0)
    assert linear_logits(1e3 * h, weight, None, 2.0).abs().max() <= 2.0
