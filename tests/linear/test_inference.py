"""The inference form of a model: what it shares, what it leaves out, and that the model stays as it is. That it
computes the same is a law (`weft.laws.equal_forms`), shown for every part."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from weft.core.config import parse_part
from weft.core.declarations import HasInferenceForm
from weft.core.layer import Part
from weft.feedforward.glu import GLU, FusedGLU
from weft.linear.inference import inference_form
from weft.ops.dropout import Dropout


def model() -> Any:
    torch.manual_seed(0)
    block = {"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}, "glu"], "dropout": 0.5}
    return parse_part(("model",), {"kind": "decoder", "vocab_size": 7, "d_model": 8, "norm": "rmsnorm",
                                   "blocks": [{"repeat": 2, "of": [block]}]}).build(None)


def test_the_model_stays_as_it_is() -> None:
    original = model().train()
    before = {name: (id(p), p.requires_grad, p.clone()) for name, p in original.named_parameters()}
    inference_form(original)
    assert original.training
    for name, parameter in original.named_parameters():
        key, trains, values = before[name]
        assert (id(parameter), parameter.requires_grad) == (key, trains)
        assert torch.equal(parameter, values)
    assert sum(isinstance(part, GLU) for part in original.modules()) == 2


def test_parts_are_fused_and_dropout_is_left_out() -> None:
    form = inference_form(model())
    assert sum(isinstance(part, FusedGLU) for part in form.modules()) == 2
    assert not any(isinstance(part, Dropout) for part in form.modules())
    assert not form.training
    assert not any(parameter.requires_grad for parameter in form.parameters())


def test_weights_whose_form_does_not_change_are_shared_and_tied_ones_stay_tied() -> None:
    original = model()
    form: Any = inference_form(original)
    table = original.embedding.tokens.weight.data_ptr()
    assert form.embedding.tokens.weight.data_ptr() == form.readout.map.weight.data_ptr() == table
    assert (form.stack.layers[0].layers[0].qkv.weight.data_ptr()
            == original.stack.layers[0].layers[0].qkv.weight.data_ptr())


def test_a_module_that_stands_in_two_places_is_one_module_afterwards() -> None:
    linear = nn.Linear(2, 2)
    form = inference_form(nn.Sequential(linear, linear))
    assert form[0] is form[1] is not linear


class Numbered(nn.Module):
    """A number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Renewed(Part, HasInferenceForm):
    """Its inference form has a new child, and comes into being among others that come and go."""

    def __init__(self, number: int, others: list[nn.Module], draw: random.Random) -> None:
        super().__init__()
        self.number, self.others, self.draw = number, others, draw

    def inference(self) -> Part:
        for _ in range(self.draw.randrange(6)):
            if self.others and self.draw.random() < 0.5:
                self.others.pop(self.draw.randrange(len(self.others)))
            else:
                self.others.append(nn.Identity())
        form = Part()
        form.child = Numbered(self.number)
        return form


@pytest.mark.parametrize("seed", range(10))
def test_no_part_gets_the_form_of_another_whose_place_in_memory_it_took(seed: int) -> None:
    """Forms are remembered by the identity of what they were made from, which must live as long."""
    draw, others = random.Random(seed), list[nn.Module]()
    form: Any = inference_form(nn.ModuleList(Renewed(number, others, draw) for number in range(40)))
    assert [each.child.number for each in form] == list(range(40))
