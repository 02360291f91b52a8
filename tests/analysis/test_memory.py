"""Bytes against real runs on the CPU and against formulas worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from seeing_ahead import seeing_ahead
from weft.analysis.calls import training_step
from weft.analysis.memory import States, buffer_bytes, state_sizes, training_bytes, weight_bytes
from weft.analysis.shapes import shape_of
from weft.core.config import parse_part
from weft.core.model import LanguageModel, ModelConfig

BATCH, STEPS, CLOCK = 3, 20, 4 * 8


def config(*layers: Any, **fields: Any) -> ModelConfig:
    data = {"kind": "decoder", "vocab_size": 29, "context": 64, "d_model": 8,
            "blocks": [{"repeat": 2, "of": [{"kind": "pre", "layers": list(layers)}]}], **fields}
    found = parse_part(("model",), data)
    assert isinstance(found, ModelConfig)
    return found


def shapes(source: ModelConfig | LanguageModel, dtype: torch.dtype | None = None) -> tuple[LanguageModel,
                                                                                          FakeTensorMode]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    return shape_of(source, mode, dtype), mode


def really_kept(model: LanguageModel) -> int:
    """Bytes that autograd keeps in a real training step, by address."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and storage.nbytes():
            kept[storage.data_ptr()] = storage
        return tensor

    tokens = torch.zeros(BATCH, STEPS, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = model.train().hidden(tokens)
        loss = -model.readout.log_prob(out.y, torch.zeros_like(tokens)).mean()
        loss = loss + sum((extra.value for extra in out.losses), torch.zeros(()))
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("layers", [
    [{"kind": "attention", "n_heads": 2, "position": "rope"}, "mlp"],
    [{"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "mask": "causal & window(5)"}, "glu"],
    [{"kind": "attention", "n_heads": 2, "position": "alibi", "backend": "reference"}],
    ["lstm", "channel_mix"], ["gru"], ["elman"], [{"kind": "s4d", "d_state": 8}], ["gated_convolution"],
    [{"kind": "moe", "expert": {"kind": "glu", "d_ff": 6}, "n_experts": 4}]])
def test_activations_equal_those_of_a_real_step(layers: list[Any]) -> None:
    torch.manual_seed(0)
    source = config(*layers)
    step = training_step(*shapes(source), BATCH, STEPS)
    model = source.build()
    assert isinstance(model, LanguageModel)
    assert step.activations == really_kept(model)
    assert sum(step.activations_by_part.values()) == step.activations


def sizes(states: States | None) -> list[int]:
    assert states is not None
    return [each.bytes for each in states.sizes]


def test_key_value_state_grows_by_two_vectors_a_token() -> None:
    attention = {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "d_head": 5, "d_value": 3}
    states = state_sizes(*shapes(config(attention, "mlp"), torch.bfloat16), BATCH, (16, 64))
    per_token = 2 * 2 * (5 + 3) * 2  # layers, key/value heads, sizes, bytes of bfloat16
    assert sizes(states) == [BATCH * (CLOCK + tokens * per_token) for tokens in (16, 64)]
    assert states is not None and states.growth == "growing" and states.per_token == per_token


def test_rolling_and_recurrent_states_are_bounded() -> None:
    rolling = state_sizes(*shapes(config({"kind": "attention", "n_heads": 2, "mask": "causal & window(7)"})), 1,
                          (4, 16, 64))
    assert sizes(rolling) == [CLOCK + 2 * 7 * 2 * 8 * 4] * 3
    recurrent = state_sizes(*shapes(config("lstm")), 1, (4, 64))
    assert sizes(recurrent) == [CLOCK + 2 * 2 * 8 * 4] * 2
    assert recurrent is not None and recurrent.growth == "bounded" and recurrent.per_token == 0


def test_a_memory_is_part_of_the_state() -> None:
    states = state_sizes(*shapes(config({"kind": "cross_attention", "n_heads": 2})), 1, (8, 16))
    per_token = 2 * (2 * 8 * 4 + 1)  # layers, keys and values of 8 numbers, and whether the source has the token
    assert sizes(states) == [CLOCK + tokens * per_token for tokens in (8, 16)]


def test_a_bidirectional_model_has_no_state() -> None:
    model, mode = shapes(config({"kind": "attention", "n_heads": 2}))
    assert state_sizes(seeing_ahead(model), mode, 1, (8,)) is None


def test_one_context_tells_no_growth() -> None:
    states = state_sizes(*shapes(config("gru")), 1, (8,))
    assert states is not None and states.growth.startswith("unknown")


def test_weights_and_what_training_adds() -> None:
    model, _ = shapes(config("mlp"), torch.bfloat16)
    numbers = sum(parameter.numel() for parameter in config("mlp").build().parameters())
    assert weight_bytes(model) == {"float64": 8 * numbers, "float32": 4 * numbers, "bfloat16": 2 * numbers}
    low, single = training_bytes(model, torch.bfloat16), training_bytes(model, torch.float32)
    assert (low.weights, low.gradients, low.optimizer) == (6 * numbers, 2 * numbers, 8 * numbers)
    assert (single.weights, single.gradients, single.optimizer) == (4 * numbers, 4 * numbers, 8 * numbers)


def test_tables_of_frequencies_keep_their_dtype() -> None:
    source = config({"kind": "attention", "n_heads": 2, "position": "rope"})
    cast, _ = shapes(source, torch.bfloat16)
    assert buffer_bytes(cast) == sum(4 * buffer.numel() for buffer in source.build().buffers()) > 0
