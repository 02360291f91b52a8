"""Rows of an embedding table, whose gradient in bfloat16 is a sum in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from weft.core.config import parse_part
from weft.models.decoder import looked_up
from weft.ops.embedding import EMBEDDING, EmbeddingCall, embedding
from weft.ops.forms import OPERATIONS

NUMBERS = (torch.rand(2, 512, generator=torch.Generator().manual_seed(0)).pow(4) * 16).long()
"""The first of sixteen numbers is half of all."""


def summed(numbers: Tensor, dy: Tensor, rows: int) -> Tensor:
    """The gradient of a table, in float64."""
    return torch.zeros(rows, dy.shape[-1], dtype=torch.float64).index_add_(0, numbers.flatten(),
                                                                         dy.flatten(0, 1).double())


def test_the_gradient_of_a_frequent_row_is_rounded_once() -> None:
    torch.manual_seed(0)
    table, dy = torch.randn(16, 8).bfloat16().requires_grad_(), (torch.randn(2, 512, 8) + 0.3).bfloat16()
    y = embedding(NUMBERS, table)
    assert torch.equal(y, table[NUMBERS])
    found, = torch.autograd.grad(y, table, dy)
    assert found.dtype == torch.bfloat16
    # Half of bfloat16's spacing, and what float32 loses in a sum of some hundred terms of about 1.
    assert_close(found.double(), summed(NUMBERS, dy, 16), rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize(("dtype", "gradients", "name"), [(torch.bfloat16, True, "wide_sums"),
                                                          (torch.bfloat16, False, "reference"),
                                                          (torch.float32, True, "reference")])
def test_wide_sums_are_for_narrow_gradients(dtype: torch.dtype, gradients: bool, name: str) -> None:
    with torch.set_grad_enabled(gradients):
        assert EMBEDDING.choose(EmbeddingCall(NUMBERS, torch.ones(16, 2, dtype=dtype))).form.name == name


@pytest.mark.parametrize("config", [
    {"kind": "decoder", "vocab_size": 16, "d_model": 8, "blocks": [{"kind": "pre", "layers": ["mlp"]}]},
    {"kind": "feedforward", "vocab_size": 16, "order": 2, "d_embedding": 8, "d_hidden": 4,
     "readout": {"kind": "linear", "tied": False}},
], ids=lambda config: config["kind"])
def test_models_in_training_sum_the_gradients_of_their_tables_in_float32(config: dict[str, Any]) -> None:
    model = parse_part(("model",), config).build(None).bfloat16()
    with OPERATIONS.observed() as seen:
        model.train()(NUMBERS)
    assert [each.form for each in seen if each.operation == "embedding"] == ["wide_sums"]


def test_an_adapted_table_is_called_as_it_is() -> None:
    table = nn.Embedding(16, 2)
    table.register_forward_hook(lambda module, args, y: y + 1)
    assert torch.equal(looked_up(table, NUMBERS), table.weight[NUMBERS] + 1)
