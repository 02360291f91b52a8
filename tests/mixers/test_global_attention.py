"""Global tokens with projections of their own against the equations of Beltagy et al. 2020, section 3.1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import randomise, require_agreement
from weft.core.config import parse, parse_part
from weft.core.errors import ConfigError
from weft.core.model import EncoderInputs
from weft.core.part_config import Dims
from weft.core.probes import probe
from weft.core.span import Span
from weft.mixers import global_attention
from weft.mixers.global_attention import GlobalAttention, GlobalAttentionConfig
from weft.mixers.key_value import KeyValueState
from weft.mixers.self_attention import RollingState
from weft.ops.attention import ATTENTION, ROWS, AttentionCall
from weft.ops.forms import forced

D, T, H, E = 6, 11, 2, 3
Near = Callable[[int, int, int], bool]
"""Of a head, a query and a key: whether it lies in the query's window."""

PATTERNS: dict[str, Near] = {
    "symmetric_window(2, 2)": lambda h, i, j: abs(i - j) <= 2,
    "symmetric_window(1, 1, 3)": lambda h, i, j: abs(i - j) in (0, 3),
    "causal & window(3)": lambda h, i, j: i - 3 < j <= i,
    "dilated(3, 2)": lambda h, i, j: i - j in (0, 2, 4),
    "per_head(window(2), dilated(2, 3))": lambda h, i, j: i - j in ((0, 1), (0, 3))[h],
}


def build(**fields: Any) -> GlobalAttention:
    layer = parse(GlobalAttentionConfig, {"n_heads": H, "d_head": E, **fields}).build(Dims(D)).double().eval()
    randomise(layer)
    assert isinstance(layer, GlobalAttention)
    return layer


def vectors(steps: int = T) -> Tensor:
    return torch.randn(1, steps, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64, requires_grad=True)


def longformer(near: Near, chosen: set[int], causal: bool) -> Callable[..., Any]:
    """One query at a time, as the paper says it: x [T,D], both fused projections [3 H E, D], the output's [D, H E]."""
    def run(x: Any, local: Any, globally: Any, out: Any) -> Any:
        x, y = x[0], np.zeros((len(x[0]), H * E))
        for h in range(H):
            rows = slice(h * E, (h + 1) * E)
            (q, k, v), (q_g, k_g, v_g) = ([x @ part[rows].T for part in np.split(w, 3)] for w in (local, globally))
            for i in range(len(x)):
                seen = [j for j in range(len(x)) if i in chosen or j in chosen or near(h, i, j)]
                seen = [j for j in seen if j <= i] if causal else seen
                query, keys, values = (q_g[i], k_g, v_g) if i in chosen else (q[i], k, v)
                weights = np.exp([query @ keys[j] / math.sqrt(E) for j in seen])
                y[i, rows] = sum(w * values[j] for w, j in zip(weights / weights.sum(), seen, strict=True))
        return (y @ out.T)[None]

    return run


def arguments(layer: GlobalAttention, x: Tensor) -> list[Tensor]:
    return [x, layer.qkv.weight, layer.global_qkv.weight, layer.output.weight]


@pytest.mark.parametrize("mask", PATTERNS)
def test_tokens_by_index(mask: str) -> None:
    layer, x = build(mask=mask, global_tokens=[0, 4]), vectors()
    causal = not mask.startswith("symmetric")
    require_agreement(layer(x).y, arguments(layer, x), longformer(PATTERNS[mask], {0, 4}, causal))


@pytest.mark.parametrize("mask", ["symmetric_window(2, 2)", "causal & window(3)"])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_tokens_that_a_call_marks(mask: str, backend: str) -> None:
    layer, x = build(mask=mask, backend=backend), vectors()
    marks = torch.zeros(1, T, dtype=torch.int64)
    marks[0, [3, 4, 9]] = 1
    y = layer(x, None, Span(facts={"globals": marks})).y
    require_agreement(y, arguments(layer, x), longformer(PATTERNS[mask], {3, 4, 9}, mask.startswith("causal")))
    plain = layer(x).y  # none is marked
    require_agreement(plain, [x, layer.qkv.weight, layer.output.weight], lambda x, w, out: longformer(
        PATTERNS[mask], set(), mask.startswith("causal"))(x, w, np.zeros_like(w), out))


def test_rows_of_several_documents_count_their_tokens_from_each_begin() -> None:
    layer, x = build(mask="causal & window(2)", global_tokens=[1]), vectors()
    begins = torch.zeros(1, T, dtype=torch.bool)
    begins[0, [0, 4, 9]] = True
    whole = layer(x, None, Span(begins=begins)).y
    apart = torch.cat([layer(piece).y for piece in x.split([4, 5, 2], 1)], 1)
    assert_close(whole, apart, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mask", ["symmetric_window(5, 5)", "causal & window(6)"])
def test_long_rows_are_cut_into_blocks_and_the_global_queries_are_few(mask: str,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = build(mask=mask, global_tokens=[0, 9]), vectors(3 * ROWS + 5)
    seen: list[tuple[str, int]] = []

    def noted(call: AttentionCall, form: str | None = None) -> Tensor:
        seen.append((ATTENTION.choose(call, form).form.name, call.q.shape[1]))
        return ATTENTION(call, form)

    monkeypatch.setattr(global_attention, "ATTENTION", noted)
    y = layer(x).y
    assert seen == [("sdpa", 10), ("banded", 3 * ROWS + 5)]
    with forced({"attention": "reference"}):
        assert_close(layer(x).y, y, rtol=1e-11, atol=1e-12)
    near = (lambda h, i, j: abs(i - j) <= 5) if mask.startswith("s") else (lambda h, i, j: i - 6 < j <= i)
    wanted = longformer(near, {0, 9}, mask.startswith("c"))(*(each.detach().numpy() for each in arguments(layer, x)))
    np.testing.assert_allclose(y.detach().numpy(), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("in_place", [False, True])
def test_decoding_keeps_a_window_and_the_first_tokens_of_both_kinds(*, in_place: bool) -> None:
    layer, x = build(mask="causal & window(3)", global_tokens=[0, 2], position="alibi"), vectors(30)
    whole, state, found = layer(x).y, layer.init_state(1), []
    for piece in x.split([1, 1, 1, 7, 1, 15, 1, 3], 1):
        with torch.set_grad_enabled(not in_place):
            out = layer(piece, state)
        state = out.state
        assert isinstance(state, RollingState)
        assert state.keys.shape[1:3] == (2 * H, 3 + 3)
        found.append(out.y)
    assert_close(torch.cat(found, 1), whole, rtol=1e-11, atol=1e-12)


def test_marked_tokens_may_lie_anywhere_so_that_all_keys_are_kept() -> None:
    layer, x = build(mask="causal & window(3)"), vectors()
    assert isinstance(layer(x, layer.init_state(1)).state, KeyValueState)


def test_a_probe_sees_the_weights_of_each_token_s_own_softmax() -> None:
    layer, x = build(mask="causal & window(2)", global_tokens=[0, 5]), vectors()
    with probe(layer, "weights") as seen:
        layer(x)
    weights, = seen["weights"]
    assert_close(weights.sum(-1), torch.ones(1, H, T, dtype=torch.float64), rtol=1e-12, atol=0)
    assert ((weights[0, 0] > 0).sum(-1)).tolist() == [1, 2, 3, 3, 3, 6, 3, 4, 4, 4, 4]
    q, k, _ = layer.projected(layer.global_qkv, x, Span().resolve(None, x).ticks)
    wanted = (torch.einsum("he,she->hs", q[0, 5], k[0, :6]) / math.sqrt(E)).softmax(-1)
    assert_close(weights[0, :, 5, :6], wanted, rtol=1e-12, atol=1e-14)


def test_projections_start_as_copies_and_are_counted_as_projections() -> None:
    layer = parse(GlobalAttentionConfig, {"n_heads": 2, "bias": "all"}).build(Dims(D))
    assert all(torch.equal(value, layer.qkv.state_dict()[name])
               for name, value in layer.global_qkv.state_dict().items())
    assert layer.global_qkv.weight is not layer.qkv.weight
    assert dict(layer.declares().child_roles) == dict.fromkeys(("qkv", "output", "global_qkv"), "attention projections")


def test_an_encoder_reads_the_marks_and_a_classifier_s_first_token_needs_none() -> None:
    def encoder(**fields: Any) -> Any:
        attention = {"kind": "global_attention", "n_heads": 2, "mask": "symmetric_window(1, 1)", **fields}
        torch.manual_seed(0)
        return parse_part(("encoder",), {"kind": "encoder", "vocab_size": 11, "d_model": 8, "blocks": [
            {"kind": "pre", "layers": [attention, {"kind": "mlp", "d_ff": 8}]}]}).build().double().eval()

    tokens = torch.arange(9)[None]
    first = torch.zeros(1, 9, dtype=torch.bool)
    first[0, 0] = True
    marked = encoder().vectors(EncoderInputs(tokens=tokens, globals_=first)).y
    assert_close(marked, encoder(global_tokens=[0]).vectors(EncoderInputs(tokens=tokens)).y, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(marked, encoder().vectors(EncoderInputs(tokens=tokens)).y, atol=1e-3)


@pytest.mark.parametrize(("fields", "message"), [
    ({"global_tokens": [0, 40]},
     "mixer.global_tokens: the token 40 lies outside the context of 32 tokens. Give indices from 0 to 31."),
    ({"global_tokens": []},
     "global_tokens: global: no token is given. Give the indices of the global tokens, such as global(0). "
     "Leave global_tokens out where calls mark them."),
    ({"global_tokens": [-1]},
     "global_tokens: global: indices is -1, but tokens are counted from the begin of their document, from "
     "0. Give 0 or more. Leave global_tokens out where calls mark them."),
])
def test_fields_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(GlobalAttentionConfig, {"n_heads": 2, **fields}).build(Dims(D, context=32, path="mixer"))
    assert caught.value.problems == (message,)


def test_the_system_s_name_leads_to_the_kind() -> None:
    with pytest.raises(ConfigError, match="global_attention"):
        parse_part(("mixer",), {"kind": "longformer"})
