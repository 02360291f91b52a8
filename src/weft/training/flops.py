"""Operations that training takes, and how many a second this machine can do."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.flops import forward_flops
from weft.analysis.matmul import matmul_rate
from weft.analysis.shapes import shape_of
from weft.core.model import Model

BACKWARD = 2
"""The backward pass multiplies each matrix twice, for the gradients of its input and of its weights."""


def model_flops_per_token(model: Model, context: int) -> float:
    """Operations of a forward and a backward pass over rows of ``context`` tokens, per token.

    Three times those of the forward pass, as counted by `weft.analysis.flops.forward_flops`, with attention scores
    only where the mask allows. What is computed again (activation checkpointing) is not work of the model
    (Chowdhery et al. 2022, appendix B).

    Args:
        model: is not changed; only its shapes are read.
        context: tokens of a row.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    shapes = shape_of(model, mode, None)
    return (1 + BACKWARD) * forward_flops(shapes, mode, context).visible


def peak_flops(dtype: torch.dtype) -> float:
    """Operations a second of a large square product in ``dtype`` on this CPU, by the fastest route. The measurement
    takes a moment; make it once in a run."""
    return matmul_rate(dtype)
