"""Operations and memory of mixers over a linear recurrence, against formulas worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from analysis import test_memory as memory
from analysis.test_flops import D, T, V, config, count, shapes
from weft.analysis.calls import training_step
from weft.analysis.memory import state_sizes
from weft.core.model import LanguageModel
from weft.ops.forms import forced

HEADS, KV, SIZE, VALUE = 4, 2, 4, 3
SIZES = {"n_heads": HEADS, "n_kv_heads": KV, "d_head": SIZE, "d_value": VALUE}
PROJECTIONS = 2 * D * (HEADS * SIZE + KV * (SIZE + VALUE)) + 2 * HEADS * VALUE * D


def sums(heads: int, group: int, e: int, f: int, scores: float = T) -> float:
    """Operations a token of one chunk of T tokens: what it adds to the state and reads, and scores of all pairs."""
    return 2 * heads * (e * f * (1 + group) + group * scores * (e + f))


@pytest.mark.parametrize(("options", "expected"), [
    ({}, sums(KV, 2, SIZE, VALUE + 1)),
    ({"normalise": False}, sums(KV, 2, SIZE, VALUE)),
    # The sum of the weights by itself: its values are one number, whose product with scores is one of matrices too.
    ({"position": "rope"}, sums(KV, 2, SIZE, VALUE) + sums(KV, 2, SIZE, 1)),
    ({"kind": "performer", "n_features": 10}, sums(KV, 2, 10, VALUE + 1)),
])
def test_linear_attention_by_hand(options: dict[str, Any], expected: float) -> None:
    flops, parts = count(config({"kind": "linear_attention", **SIZES, **options}))
    assert flops.uncounted == ()
    assert parts["attention projections"].full == PROJECTIONS
    random = 2 * SIZE * options.get("n_features", 0) * (HEADS + KV)
    assert parts["attention sums"].full == expected + random


@pytest.mark.parametrize(("form", "pairs"), [("operator", T), ("native", 0)])
def test_retention_by_hand(form: str, pairs: int) -> None:
    with forced({"linear_recurrence": form}):
        _, parts = count(config({"kind": "retention", "n_heads": 2}))
    size = D // 2
    assert parts["memory projections"].full == 2 * D * (2 * D + 4 * D) + 2 * 2 * D * D
    assert parts["memory"].full == sums(2, 1, size, 2 * size, pairs)


def test_gated_linear_attention_by_hand() -> None:
    """48 tokens are padded to 64: blocks of 64, 32, 16, ... have scores of half their tokens with the other half."""
    with forced({"linear_recurrence": "operator"}):
        _, parts = count(config({"kind": "gated_linear_attention", "n_heads": 2, "decay_rank": 3}))
    key, value = D // 4, D // 2
    scores = sum(64 // (2 * half) * half * half for half in (1, 2, 4, 8, 16, 32))
    # Those of neighbours are one number each, and multiply values element by element.
    inner = 2 * 2 * (scores * (key + value) - 32 * value)
    low_rank = 2 * D * 3 + 2 * 3 * 2 * key
    assert parts["memory"].full * T == pytest.approx(T * (2 * 2 * 2 * key * value + low_rank) + inner, abs=T)


def test_mamba2_by_hand() -> None:
    """In C a state costs one product a token with its key and value and one with its query, whatever heads share."""
    _, parts = count(config({"kind": "mamba2", "n_heads": 4, "d_head": 5, "d_state": 3, "n_groups": 2}))
    inner, mixed = 4 * 5, 4 * 5 + 2 * 2 * 3
    assert parts["state-space projections"].full == 2 * D * (inner + mixed + 4) + 2 * inner * D
    assert parts["state space"].full == 2 * 4 * 2 * 3 * 5 + 2 * 4 * mixed


@pytest.mark.parametrize("kind", ["linear_attention", "performer", "retention", "gated_linear_attention"])
def test_operations_of_many_tokens_are_proportional_to_them(kind: str) -> None:
    """Per token, those of 8,192 tokens are those of 2,048, whose segments and chunks are whole."""
    found = [count(config({"kind": kind, "n_heads": 2}, context=8192), steps)[0].full for steps in (2048, 8192)]
    assert found[0] == found[1]


def test_a_step_of_training_by_hand() -> None:
    """The backward pass of T tokens, a chunk: the state again, four products with states, five of scores."""
    batch, e, f = 2, SIZE, VALUE + 1
    step = training_step(*shapes(config({"kind": "linear_attention", **SIZES})), batch, T)
    back = 2 * KV * (e * f * (1 + 2 + 2 + 1 + 1) + 2 * T * (3 * e + 2 * f))
    assert step.flops == batch * T * (3 * (PROJECTIONS + 2 * D * V) + sums(KV, 2, e, f) + back)


@pytest.mark.parametrize("layers", [
    [{"kind": "linear_attention", "n_heads": 2, "position": "rope"}], ["retention"],
    [{"kind": "linear_attention", "n_heads": 2, "normalise": False}],
    [{"kind": "gated_linear_attention", "n_heads": 2, "decay_rank": 2}]], ids=str)
def test_activations_equal_those_of_a_real_step(layers: list[Any]) -> None:
    torch.manual_seed(0)
    source = memory.config(*layers)
    model = source.build()
    assert isinstance(model, LanguageModel)
    assert training_step(*memory.shapes(source), memory.BATCH, memory.STEPS).activations == memory.really_kept(model)


@pytest.mark.parametrize(("layer", "numbers"), [
    ({"kind": "linear_attention", "n_heads": 2}, 2 * 4 * (4 + 1)),
    ({"kind": "linear_attention", "n_heads": 2, "normalise": False}, 2 * 4 * 4),
    ({"kind": "performer", "n_heads": 2, "n_features": 6}, 2 * (6 * (4 + 1) + 1)),
    ({"kind": "retention", "n_heads": 2}, 2 * 4 * 8),
    ({"kind": "gated_linear_attention", "n_heads": 2}, 2 * 2 * 4)], ids=str)
def test_states_are_bounded_and_float32(layer: dict[str, Any], numbers: int) -> None:
    states = state_sizes(*memory.shapes(memory.config(layer), torch.bfloat16), 1, (16, 64))
    assert memory.sizes(states) == [memory.CLOCK + 2 * 4 * numbers] * 2  # two layers
    assert states is not None and states.growth == "bounded" and states.per_token == 0
