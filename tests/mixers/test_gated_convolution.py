"""The gated convolution against the NumPy oracle, in float64, and its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oracles import convolution as oracle
from oracles.finite_difference import gradient_agrees
from weft.core.config import parse
from weft.core.errors import ConfigError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.mixers.gated_convolution import GatedConvolution, GatedConvolutionConfig

D, T = 3, 9
Array = np.ndarray[Any, Any]


def build(**options: Any) -> GatedConvolution:
    torch.manual_seed(0)
    return GatedConvolutionConfig(**options).build(Dims(D)).double()


@pytest.mark.parametrize("begins", [None, [False, True, False, False, False, False, True, True, False]],
                         ids=["one document", "documents"])
@pytest.mark.parametrize(("kernel", "dilation"), [(4, 1), (3, 2), (1, 1), (2, 7)])
def test_values_and_gradients_match_the_oracle(kernel: int, dilation: int, begins: list[bool] | None) -> None:
    layer = build(d_conv=kernel, dilation=dilation)
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    y = layer(x, None, Span(begins=None if begins is None else torch.tensor([begins]))).y

    def reference(x: Array, weight: Array, bias: Array) -> Array:
        return oracle.gated_convolution(x, weight[:D], bias[:D], weight[D:], bias[D:], dilation=dilation,
                                        begins=begins)

    parameters = [layer.convolution.weight, layer.convolution.bias]
    args = [x.detach()[0].numpy(), *(p.detach().numpy() for p in parameters)]
    np.testing.assert_allclose(y[0].detach().numpy(), reference(*args), rtol=1e-12, atol=1e-14)
    cotangent = torch.randn_like(y)
    gradients = torch.autograd.grad((y * cotangent).sum(), [x, *parameters])
    found = [gradients[0][0].numpy(), *(g.numpy() for g in gradients[1:])]
    assert gradient_agrees(reference, args, found, np.random.default_rng(0), cotangent=cotangent[0].numpy())


def test_state_is_the_last_inputs_of_the_current_document() -> None:
    layer = build(d_conv=3, dilation=2)
    x = torch.randn(3, 6, D, dtype=torch.float64)
    begins = torch.zeros(3, 6, dtype=torch.bool)
    begins[1, 4] = True
    history = layer(x, layer.init_state(3), Span(begins=begins, count=torch.tensor([6, 6, 1]))).state.history
    blank = torch.zeros(1, D, dtype=torch.float64)
    torch.testing.assert_close(history[0], x[0, 2:], rtol=0, atol=0)
    torch.testing.assert_close(history[1], torch.cat([blank, blank, x[1, 4:]]), rtol=0, atol=0)
    torch.testing.assert_close(history[2], torch.cat([blank, blank, blank, x[2, :1]]), rtol=0, atol=0)


@pytest.mark.parametrize("steps", [1, 4])
def test_a_chunk_that_marks_nothing_still_knows_where_its_document_began(steps: int) -> None:
    """A document that began in the chunk before, less than the kernel's reach ago."""
    layer = build(d_conv=5)
    x = torch.randn(1, 7 + steps, D, dtype=torch.float64)
    begins = torch.zeros(1, 7 + steps, dtype=torch.bool)
    begins[0, 6] = True
    state = layer(x[:, :7], layer.init_state(1), Span(begins=begins[:, :7])).state
    torch.testing.assert_close(layer(x[:, 7:], state).y, layer(x[:, 6:]).y[:, 1:], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", ["d_conv", "dilation"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: Input should be greater than 0, got 0"):
        parse(GatedConvolutionConfig, {name: 0})
