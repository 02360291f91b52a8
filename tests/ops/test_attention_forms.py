"""The forms of attention against the oracle, head by head, and against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from by_hand import require_agreement
from ops.native_sets import TensorKeys
from oracles import attention as oracle
from oracles import masks
from weft.core.clock import Keys
from weft.core.errors import UnsupportedError
from weft.core.span import WHOLE
from weft.masks import Causal
from weft.masks.visible import MaskFacts, VisibleKeys, visible
from weft.ops.attention import ATTENTION, AttentionCall, WrittenTerm, grouped_rows, reference, sdpa

T, S, E, F = 4, 6, 3, 5
FORMS: dict[str, Callable[[AttentionCall], Tensor]] = {"reference": reference, "sdpa": sdpa}
SOME = torch.tensor(masks.dense(lambda i, j: i - 3 < j <= i, range(S - T, S), range(S)))


def causal(steps: int) -> VisibleKeys:
    span = WHOLE.resolve(None, torch.empty(1, steps))
    return visible(MaskFacts.of(Causal(), 1), Keys.of(span.ticks), span)


CAUSAL = causal(T)
SEEN: list[dict[str, Any]] = [{}, {"visible": TensorKeys(SOME[None, None])}, {"visible": CAUSAL}]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)


def inputs(heads: int = 4, kv_heads: int = 2, queries: int = T, keys: int = S, rows: int = 1,
           **facts: Any) -> AttentionCall:
    q, k, v = (random(rows, queries, heads, E), random(rows, keys, kv_heads, E, seed=1),
               random(rows, keys, kv_heads, F, seed=2))
    return AttentionCall(q=q, k=k, v=v, **{"scale": 0.7, **facts})


def by_heads(call: AttentionCall) -> Callable[..., Any]:
    """The oracle of one row's call as a function of q, k, v and the bias where there is one."""
    allowed = call.visible.dense()
    mask = None if allowed is None else allowed[0].expand(call.q.shape[2], -1, -1).numpy()
    share = call.q.shape[2] // call.k.shape[2]

    def run(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        out = np.zeros((1, *q.shape[1:3], v.shape[-1]))
        for h in range(q.shape[2]):
            raw = oracle.scores(q[0, :, h], k[0, :, h // share], call.scale)
            weights = oracle.weights(raw, None if bias is None else bias[0, h % bias.shape[1]], call.softcap,
                                     None if mask is None else mask[h])
            out[0, :, h] = weights @ v[0, :, h // share]
        return out

    return run


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (4, 2), (4, 1)])
@pytest.mark.parametrize("facts", SEEN, ids=["all", "mask", "causal"])
def test_values_and_gradients(form: str, heads: int, kv_heads: int, facts: dict[str, Any]) -> None:
    call = inputs(heads, kv_heads, keys=T if facts.get("visible") is CAUSAL else S, **facts)
    require_agreement(FORMS[form](call), [call.q, call.k, call.v], by_heads(call))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("facts", SEEN, ids=["all", "mask", "causal"])
@pytest.mark.parametrize("biased", [1, 4])
def test_a_bias_is_added_to_the_scaled_scores(form: str, facts: dict[str, Any], biased: int) -> None:
    keys = T if facts.get("visible") is CAUSAL else S
    bias = random(1, biased, T, keys, seed=3)
    call = inputs(keys=keys, terms=(WrittenTerm(bias),), **facts)
    require_agreement(FORMS[form](call), [call.q, call.k, call.v, bias], by_heads(call))


@pytest.mark.parametrize("allowed", [None, SOME[None, None]], ids=["all", "mask"])
def test_the_cap_comes_after_the_bias_and_before_the_mask(allowed: Tensor | None) -> None:
    bias = random(1, 4, T, S, seed=3)
    call = inputs(terms=(WrittenTerm(bias),), softcap=0.5,
                  **({} if allowed is None else {"visible": TensorKeys(allowed)}))
    require_agreement(ATTENTION(call), [call.q, call.k, call.v, bias], by_heads(call))


def test_each_head_may_see_other_keys() -> None:
    allowed = torch.stack([SOME, ~SOME, SOME.flip(1), torch.ones_like(SOME)])[None]
    call = inputs(visible=TensorKeys(allowed))
    for run in FORMS.values():
        require_agreement(run(call), [call.q, call.k, call.v], by_heads(call))


@pytest.mark.parametrize("form", FORMS)
def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients(form: str) -> None:
    allowed = SOME.clone()
    allowed[1] = False
    for biased in (False, True):
        bias = random(1, 4, T, S, seed=3) if biased else None
        call = inputs(visible=TensorKeys(allowed[None, None]), terms=() if bias is None else (WrittenTerm(bias),))
        y = FORMS[form](call)
        assert y[:, 1].abs().max() == 0
        wanted = [call.q, call.k, call.v] + ([] if bias is None else [bias])
        require_agreement(y, wanted, by_heads(call))


@pytest.mark.parametrize("form", FORMS)
def test_rows_and_no_keys_at_all(form: str) -> None:
    call = inputs(rows=3)
    whole = FORMS[form](call)
    for row in range(3):
        alone = replace(call, q=call.q[row:row + 1], k=call.k[row:row + 1], v=call.v[row:row + 1])
        assert_close(FORMS[form](alone)[0], whole[row], rtol=1e-12, atol=1e-14)
    empty = inputs(keys=0, visible=TensorKeys(torch.ones(1, 1, T, 0, dtype=torch.bool)))
    assert FORMS[form](empty).shape == (1, T, 4, F)
    assert FORMS[form](empty).abs().sum() == 0


def test_dropped_weights_are_zero_or_enlarged_and_average_to_the_whole() -> None:
    torch.manual_seed(0)
    # Values that are the unit vectors show the weights themselves.
    values = torch.eye(S, dtype=torch.float64)[None, :, None, :].expand(1, S, 4, S)
    call = replace(inputs(4, 4), v=values)
    plain = reference(call)
    for run in FORMS.values():
        dropped = torch.stack([run(replace(call, dropout=0.25)) for _ in range(400)])
        kept = dropped != 0
        assert_close(dropped[kept], (plain / 0.75).expand_as(dropped)[kept], rtol=1e-12, atol=0)
        # A Bernoulli share over 400 * 96 draws has a standard deviation of 0.0022.
        assert abs(kept.double().mean().item() - 0.75) < 0.01


def test_value_terms_see_the_weights() -> None:
    seen: list[Tensor] = []

    def terms(weights: Tensor) -> Tensor | None:
        seen.append(weights)
        return weights.sum(-1).transpose(1, 2)[..., None] * 10

    call = inputs(visible=TensorKeys(SOME[None, None]), value_terms=terms)
    assert_close(ATTENTION(call), reference(replace(call, value_terms=None)) + 10, rtol=1e-12, atol=1e-12)
    assert seen[0].shape == (1, 4, T, S)
    assert seen[0][:, :, ~SOME].abs().max() == 0
    assert_close(ATTENTION(replace(call, value_terms=lambda weights: None)), ATTENTION(replace(call, value_terms=None)),
                 rtol=1e-12, atol=1e-14)


def test_scores_of_narrow_floats_are_normalised_in_float32() -> None:
    wide = inputs()
    narrow = AttentionCall(*(x.detach().bfloat16() for x in (wide.q, wide.k, wide.v)), scale=0.7)
    y = reference(narrow)
    assert y.dtype is torch.bfloat16
    # bfloat16 has 8 bits; values are near 1 and three roundings (scores, weights, values) meet.
    assert_close(y.double(), reference(wide).detach(), rtol=0, atol=0.03)


def learned(queries: int = T) -> dict[str, Any]:
    return {"terms": (WrittenTerm(random(1, 4, queries, S)),)}


@pytest.mark.parametrize(("facts", "queries", "name", "reason"), [
    ({}, T, "sdpa", "banded: the keys are not in the order of tokens"),
    ({"softcap": 1.0}, T, "reference", "sdpa: it has no softcap"),
    ({"sinks": random(4)}, T, "reference", "sdpa: it has no sinks"),
    ({"value_terms": lambda weights: None}, T, "reference", "sdpa: it returns no weights"),
    ({"record": lambda weights: None}, T, "reference", "sdpa: it returns no weights"),
    ({}, 1, "sdpa", "grouped_rows: it runs only without gradients"),
    (learned(), T, "reference", "sdpa: a learned bias is slow in it on a CPU"),
    ({"terms": (WrittenTerm(random(1, 4, T, S).detach()),)}, T, "sdpa", "PyTorch's fused kernel"),
])
def test_the_form_is_chosen_by_facts_and_says_why(facts: dict[str, Any], queries: int, name: str, reason: str) -> None:
    form, why, passed = ATTENTION.choose(inputs(queries=queries, **facts))
    assert form.name == name
    assert reason in (why, *passed)


def test_a_named_form_serves_or_refuses() -> None:
    assert ATTENTION.choose(inputs(), "reference").form.name == "reference"
    assert ATTENTION.choose(inputs(queries=1), "sdpa").form.name == "sdpa"
    with pytest.raises(UnsupportedError, match=r"kernels.attention: the form 'sdpa' of 'attention' cannot serve this "
                                               r"call: it has no softcap. Those that can: reference."):
        ATTENTION(inputs(softcap=1.0), "sdpa")
    with pytest.raises(UnsupportedError, match=r"'banded' of 'attention' cannot serve this call: the keys are not "
                                               r"in the order of tokens. Those that can: sdpa, reference."):
        ATTENTION(inputs(), "banded")


def test_one_query_without_gradients_reads_each_group_s_keys_once() -> None:
    with torch.no_grad():
        assert ATTENTION.choose(inputs(queries=1)).form.name == "grouped_rows"


@pytest.mark.parametrize("facts", [
    {}, {"terms": (WrittenTerm(random(1, 4, 1, S).detach()),)},
    {"visible": TensorKeys(torch.tensor([[[[True, False, True, True, False, True]]]]))},
    {"visible": TensorKeys(torch.zeros(1, 1, 1, S, dtype=torch.bool))},
    {"visible": TensorKeys(random(1, 4, 1, S) > 0), "terms": (WrittenTerm(random(1, 1, 1, S).detach()),)}])
@torch.no_grad()
def test_grouped_rows_equal_the_reference(facts: dict[str, Any]) -> None:
    call = inputs(queries=1, **facts)
    assert_close(grouped_rows(call), reference(call), rtol=1e-12, atol=1e-12)
