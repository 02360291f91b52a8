"""Attention after a memory of zeros against a loop over explicit zeros, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from by_hand import Array, randomise, require_agreement
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import Span

D, H, E, T = 6, 2, 3, 9
CONFIG = {"kind": "zero_memory_attention", "n_heads": H, "d_head": E, "mask": "causal & window(4)",
          "position": {"kind": "transformer_xl"}}


def layer(**fields: Any) -> Any:
    found = parse_part(("mixer",), CONFIG | fields).build(Dims(D, 11, 32)).double().eval()
    randomise(found)
    return found


def window(i: int, j: int) -> bool:
    return i - 4 < j <= i


def segments(i: int, j: int) -> bool:
    return 3 * (i // 3) - 2 <= j <= i


def by_hand(seen: Any, clamp: int | None, x: Array, qkv: Array, out: Array, r: Array, u: Array, v: Array) -> Array:
    """Dai et al. 2019, section 3.3, by head, with the input of every earlier position zero."""
    before = 12
    padded = np.concatenate([np.zeros((before, D)), x])
    q, k, values = (each.reshape(-1, H, E) for each in np.split(padded @ qkv.T, 3, axis=1))
    theta = 10000.0 ** (-2 * np.arange(D // 2) / D)
    y = np.zeros((len(x), H, E))
    for i in range(len(x)):
        for h in range(H):
            scores, vectors = [], []
            for j in range(-before, len(x)):
                if not seen(i, j):
                    continue
                far = i - j if clamp is None else min(i - j, clamp)
                waves = np.concatenate([np.sin(far * theta), np.cos(far * theta)])
                place = r.reshape(H, E, D)[h] @ waves
                query, key = q[before + i, h], k[before + j, h]
                scores.append(((query + u[h]) @ key + (query + v[h]) @ place) / math.sqrt(E))
                vectors.append(values[before + j, h])
            weights = np.exp(scores) / np.exp(scores).sum()
            y[i, h] = weights @ np.stack(vectors)
    found: Array = y.reshape(len(x), H * E) @ out.T
    return found


@pytest.mark.parametrize(("mask", "seen", "clamp"), [
    ("causal & window(4)", window, None), ("segments(3, 2)", segments, 2), ("causal & window(4)", window, 2)])
def test_values_and_gradients_are_those_of_explicit_zeros(mask: str, seen: Any, clamp: int | None) -> None:
    found = layer(mask=mask, position={"kind": "transformer_xl", "max_distance": clamp})
    x = torch.randn(1, T, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    own = [found.qkv.weight, found.output.weight, found.position.r.weight, found.position.u, found.position.v]
    assert len(own) == len(list(found.parameters()))
    require_agreement(found(x).y, [x, *own], lambda x, *rest: by_hand(seen, clamp, x[0], *rest)[None])


def test_each_document_of_a_row_has_a_memory_of_zeros() -> None:
    found = layer()
    x = torch.randn(1, T, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    begins = torch.zeros(1, T, dtype=torch.bool)
    begins[0, 5] = True
    packed = found(x, None, Span(begins=begins)).y
    apart = torch.cat([found(x[:, :5]).y, found(x[:, 5:]).y], 1)
    torch.testing.assert_close(packed, apart, rtol=1e-12, atol=1e-13)


def test_zeros_that_a_query_sees_take_weight() -> None:
    """The first tokens differ from those after an empty memory; from the reach of the mask on, none does."""
    found = layer()
    plain = parse_part(("mixer",), CONFIG | {"kind": "attention"}).build(Dims(D, 11, 32)).double().eval()
    plain.load_state_dict(found.state_dict())
    x = torch.randn(1, T, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    apart = (found(x).y - plain(x).y).detach().abs().amax((0, 2))
    assert bool((apart[:3] > 1e-3).all()) and float(apart[3:].max()) < 1e-14


@pytest.mark.parametrize(("fields", "said"), [
    ({"mask": "causal"}, "mask: causal hides no keys by their distance alone, or lets a query see later tokens. Give "
     "causal & window(m) or segments(t, m)."),
    ({"position": "alibi"}, "position: the scores of zeros under 'alibi' are not known here. Give a transformer_xl."),
    ({"bias": "all"}, "bias: keys and values of zeros would not be zero, or not the only ones without a value. Leave "
     "it out, or use the kind attention."),
    ({"sinks": True}, "sinks: keys and values of zeros would not be zero"),
    ({"backend": "banded"}, "backend: the form 'banded' has no sinks that differ by query. Use 'auto' or "
     "'reference'.")])
def test_what_does_not_fit_is_said(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as found:
        layer(**fields)
    assert said in str(found.value)
