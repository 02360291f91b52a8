"""Whole plans: of every model, of models that exist, and of requests that cannot be met."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from weft.analysis.cost_plan import Plan, plan
from weft.core.config import parse_part
from weft.core.errors import InputError
from weft.core.model import LanguageModel, ModelConfig
from weft.core.registry import REGISTRY
from weft.ops.forms import forced


def config(*layers: Any, **fields: Any) -> ModelConfig:
    data = {"kind": "decoder", "vocab_size": 29, "context": 32, "d_model": 8,
            "blocks": [{"repeat": 2, "of": [{"kind": "pre", "layers": list(layers)}]}], **fields}
    found = parse_part(("model",), data)
    assert isinstance(found, ModelConfig)
    return found


ATTENTION = {"kind": "attention", "n_heads": 2}


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder", "feedforward", "ngram"])
def test_every_model_has_a_plan(kind: str) -> None:
    for source in REGISTRY.get(("model",), kind).examples():
        assert isinstance(source, ModelConfig)
        found = plan(source, context=8, contexts=(4, 8))
        model = source.build()
        assert found.parameters.total == sum(parameter.numel() for parameter in model.parameters())
        assert json.loads(json.dumps(found.to_json()))["model"] == kind


def test_parameters_by_part_and_path() -> None:
    found = plan(config(ATTENTION, {"kind": "mlp", "d_ff": 12}), contexts=(4,)).parameters
    parts = {part.part: part.numbers for part in found.parts}
    assert parts == {"embeddings": 29 * 8, "attention projections": 2 * 4 * 64, "feed-forward": 2 * (2 * 96 + 20),
                     "norms": 2 * 2 * 16}
    assert found.tied and found.embeddings == 29 * 8 and found.total == found.active == sum(parts.values())
    groups = {group.path: group for group in found.groups}
    assert groups["stack.layers.*.layers.*.qkv.weight"].copies == 2
    assert groups["stack.layers.*.layers.*.qkv.weight"].shape == (24, 8)
    assert sum(group.numbers for group in found.groups) == found.total


def test_untied_readout_and_experts_not_chosen() -> None:
    experts = {"kind": "moe", "expert": {"kind": "glu", "d_ff": 6}, "n_experts": 4, "top_k": 1}
    found = plan(config(experts, readout={"kind": "linear", "tied": False}), contexts=(4,)).parameters
    assert not found.tied and {part.part: part.numbers for part in found.parts}["logits"] == 29 * 8
    assert found.total - found.active == 2 * 3 * (3 * 6 * 8)


def test_shared_parts_count_once_under_their_own_name() -> None:
    shared = config({"shared": "wide"}, shared={"wide": {"kind": "mlp", "d_ff": 12}})
    found = plan(shared, contexts=(4,))
    assert {part.part: part.numbers for part in found.parameters.parts}["feed-forward"] == 2 * 96 + 20
    assert found.flops is not None
    assert {part.part: part.full for part in found.flops.parts}["feed-forward"] == 2 * 4 * 96


def test_a_model_is_planned_as_its_configuration_and_left_alone() -> None:
    source = config(ATTENTION, "mlp")
    model = source.build().eval()
    assert isinstance(model, LanguageModel)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert plan(model, batch=2, contexts=(4, 8)) == plan(source, batch=2, contexts=(4, 8))
    assert plan(model, dtype=torch.bfloat16, contexts=(4,)).dtype == "bfloat16"
    assert not model.training and all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_that_is_fitted_by_counting() -> None:
    source = parse_part(("model",), {"kind": "ngram", "vocab_size": 5, "order": 3})
    assert isinstance(source, ModelConfig)
    model = source.build()
    assert isinstance(model, LanguageModel)
    empty = plan(model)
    assert empty.flops is None and empty.training is None and empty.step is None and empty.time_here is None
    assert empty.states is not None and {each.bytes for each in empty.states.sizes} == {4 * 8 + 2 * 8}
    assert any(note.startswith("Not differentiable: fitted by counting") for note in empty.notes)
    model.fit(torch.arange(50) * 7 % 5)  # type: ignore[operator]
    assert plan(model).buffers == sum(buffer.numel() * 8 for buffer in model.buffers()) > empty.buffers


def test_time_here_is_the_work_over_the_rate() -> None:
    found = plan(config("mlp"), batch=2, context=16, contexts=(4,), tokens=10_000)
    assert found.step is not None and found.time_here is not None
    assert found.time_here.flops == found.step.flops / 32 * 10_000
    assert found.time_here.seconds == found.time_here.flops / found.time_here.rate > 0


def notes(source: ModelConfig) -> str:
    found: Plan = plan(source, context=16, contexts=(4,))
    return "\n".join(found.notes)


def test_forms_are_listed_with_their_reasons_and_notes_do_not_repeat_them() -> None:
    found = plan(config(ATTENTION, {**ATTENTION, "scores": {"softcap": 5.0}}), context=16, contexts=(4,))
    forms = {(each.form, phase): (each.reason, *each.passed) for each in found.forms if each.operation == "attention"
             for phase in each.phases}
    assert forms["sdpa", "training"][0] == "PyTorch's fused kernel"
    assert forms["one_query", "single tokens"] == ("one query for each head, in C",)
    assert "sdpa: it has no softcap" in forms["reference", "training"]
    text = "\n".join(found.notes)
    assert not any(form in text for form, _ in forms)
    assert "element-wise work" in text


def test_notes_on_a_rotation_fixed_by_length() -> None:
    scaling = {"kind": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1.0, 4.0], "original_length": 6,
               "extended_length": 24}
    text = notes(config({**ATTENTION, "position": {"kind": "rope", "scaling": scaling}}))
    assert "runs the whole text again, which takes about " in text


def test_notes_on_packing_for_mixers_that_transform() -> None:
    with forced({"fft_convolution": "operator"}):  # short rows are convolved term by term, which resets
        assert "Packed documents: s4d cannot reset inside a row" in notes(config("s4d"))
        assert "Packed documents" not in notes(config("lstm"))


def test_contexts_beyond_the_models_reach_are_left_out() -> None:
    found = plan(config(ATTENTION, position="learned"), contexts=(8, 32, 64))
    assert found.states is not None and [each.context for each in found.states.sizes] == [8, 32]


def test_a_context_beyond_the_models_reach_is_refused() -> None:
    with pytest.raises(InputError, match=r"context: 64 tokens, but this model's positions end at 32\. Give at most 32"):
        plan(config(ATTENTION, position="learned"), context=64)


@pytest.mark.parametrize("name", ["context", "batch", "tokens"])
def test_numbers_must_be_positive(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name}: 0 is not a positive number\. Give 1 or more\."):
        plan(config("mlp"), **{name: 0})  # type: ignore[arg-type]
