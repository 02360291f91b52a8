"""Operations and memory of mixers over the delta rule, against formulas worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from analysis import test_memory as memory
from analysis.test_flops import D, T, config, count
from weft.analysis.calls import training_step
from weft.analysis.memory import state_sizes
from weft.core.model import LanguageModel
from weft.ops.forms import forced

TAPS, HEADS = 4, 2


def by_chunk(e: int, f: int) -> int:
    """The operations of a chunk of 64 tokens of one head, see `weft.ops.delta_rule_chunks`: 48 tokens are one chunk."""
    size = 64
    scores, systems = 4 * size * size * e, size * size * f + size * size * (e + f) // 2
    return 2 * (scores + systems + 4 * size * e * f + 2 * size * size * f)


@pytest.mark.parametrize(("kind", "e", "f", "projected"), [
    ("delta_net", 8, 8, 2 * D * (6 * 8 + HEADS) + 2 * 16 * D),
    ("gated_delta_net", 8, 16, 2 * D * (4 * 8 + 2 * 16 + 2 * HEADS + 2 * 16) + 2 * 32 * D),
    ("kimi_delta", 8, 8, 2 * D * (6 * 8 + HEADS + 8 + 8) + 2 * 2 * 8 * 16 + 2 * 16 * D)])
def test_operations_by_hand(kind: str, e: int, f: int, projected: int) -> None:
    """In C two products with the memory and two outer ones of each token and head."""
    convolution = 2 * TAPS * HEADS * (2 * e + f)
    with forced({"delta_rule": "native"}):
        flops, parts = count(config({"kind": kind, "n_heads": HEADS}))
    assert flops.uncounted == ()
    assert parts["memory projections"].full == projected
    assert parts["memory"].full == convolution + HEADS * 8 * e * f
    if kind == "kimi_delta":
        return
    with forced({"delta_rule": "operator"}):
        parts = count(config({"kind": kind, "n_heads": HEADS}))[1]
    assert parts["memory"].full * T == pytest.approx(convolution * T + HEADS * by_chunk(e, f), abs=T)


@pytest.mark.parametrize("form", ["native", "operator"])
@pytest.mark.parametrize("kind", ["delta_net", "gated_delta_net", "kimi_delta", "fast_weights"])
def test_operations_of_many_tokens_are_proportional_to_them(kind: str, form: str) -> None:
    """Per token, those of 8,192 tokens are those of 2,048, whose segments and chunks are whole."""
    with forced({"delta_rule": form}):
        found = [count(config({"kind": kind, "n_heads": 2}, context=8192), steps)[0].full for steps in (2048, 8192)]
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["delta_net", "gated_delta_net", "kimi_delta", "fast_weights", "gated_attention"])
def test_activations_equal_those_of_a_real_step(kind: str) -> None:
    torch.manual_seed(0)
    source = memory.config({"kind": kind, "n_heads": 2})
    model = source.build()
    assert isinstance(model, LanguageModel)
    assert training_step(*memory.shapes(source), memory.BATCH, memory.STEPS).activations == memory.really_kept(model)


@pytest.mark.parametrize(("layer", "sums", "history"), [
    ({"kind": "delta_net", "n_heads": 2}, 2 * 4 * 4, 3 * 24),
    ({"kind": "gated_delta_net", "n_heads": 2, "n_value_heads": 4, "d_value": 3, "d_conv": 2}, 4 * 4 * 3, 28),
    ({"kind": "kimi_delta", "n_heads": 2, "d_conv": None}, 2 * 4 * 4, 0),
    ({"kind": "fast_weights", "n_heads": 2, "nu": 3}, 2 * 24 * 4, 0)], ids=str)
def test_states_are_bounded_and_memories_float32(layer: dict[str, Any], sums: int, history: int) -> None:
    states = state_sizes(*memory.shapes(memory.config(layer), torch.bfloat16), 1, (16, 64))
    assert memory.sizes(states) == [memory.CLOCK + 2 * (4 * sums + 2 * history)] * 2  # two layers
    assert states is not None and states.growth == "bounded" and states.per_token == 0
