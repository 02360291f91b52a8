"""Full and depthwise causal convolutions against the NumPy oracle, with and without a history."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from oracles.convolution import causal_convolution as oracle
from weft.core.clock import Clock
from weft.core.span import Span
from weft.ops.short_convolution import causal_convolution

D, T = 4, 6


@pytest.mark.parametrize("steps", [1, T])
@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("carried", [False, True])
def test_equals_the_oracle(carried: bool, packed: bool, depthwise: bool, steps: int) -> None:
    torch.manual_seed(0)
    x, past = torch.randn(1, steps, D, dtype=torch.float64), torch.randn(1, 4, D, dtype=torch.float64)
    weight = torch.randn(D, 1 if depthwise else D, 3, dtype=torch.float64)
    bias = torch.randn(D, dtype=torch.float64)
    begins = [packed and t in (0, 3) and not (t == 0 and carried) for t in range(steps)]
    clock = Clock.start(1).replace(seen=torch.tensor([4])) if carried else None
    span = Span(begins=torch.tensor([begins]) if packed else None).resolve(clock, x)
    got = causal_convolution(x, weight, bias, past if carried else None, span, dilation=2)
    full = torch.zeros(D, D, 3, dtype=torch.float64)
    full[torch.arange(D), torch.arange(D)] = weight[:, 0]
    expected = oracle(x[0].numpy(), (full if depthwise else weight).numpy(), bias.numpy(), dilation=2, begins=begins,
                      history=past[0].numpy() if carried else None)
    np.testing.assert_allclose(got[0].numpy(), expected, rtol=1e-12, atol=1e-13)
