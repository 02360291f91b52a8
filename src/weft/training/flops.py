"""Floating-point operations of a training step, and how many a second this machine can do."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.flops import forward_flops
from weft.analysis.matmul import matmul_rate
from weft.analysis.shapes import shape_of
from weft.core.model import Model
from weft.tasks import Lengths

BACKWARD = 2
"""The backward pass multiplies each matrix twice, for the gradients of its input and of its weights."""


def model_flops_per_token(model: Model, context: int) -> float:
    """Operations of a forward and a backward pass over rows of ``context`` tokens, per token; see `flops_per_row`."""
    return flops_per_row(model, Lengths(context)) / context


def flops_per_row(model: Model, lengths: Lengths) -> float:
    """Operations of a forward and a backward pass over one row, without padding.

    Three times those of the forward pass, as counted by `weft.analysis.flops.forward_flops`, with attention scores
    only where the mask allows. What is computed again (activation checkpointing) is not work of the model
    (Chowdhery et al. 2022, appendix B). A mean length that is no whole number is interpolated between its neighbours:
    exact for all that grows in proportion to a length; attention scores, which grow with its square, are counted as if
    all rows had the mean length.

    Args:
        model: is not changed; only its shapes are read.
        lengths: tokens of the row, and of its source for a model that reads one (None: as many).
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    shapes = shape_of(model, mode, None)

    def forward(tokens: int, source: int | None) -> float:
        return forward_flops(shapes, mode, tokens, source).visible * tokens

    return (1 + BACKWARD) * sum(share * other * forward(tokens, source) for (tokens, share), (source, other) in product(
        _neighbours(lengths.tokens), [(None, 1.0)] if lengths.source is None else _neighbours(lengths.source)))


def peak_flops(dtype: torch.dtype) -> float:
    """Operations a second of a large square product in ``dtype`` on this CPU, by the fastest route. The measurement
    takes a moment; make it once in a run."""
    return matmul_rate(dtype)


def _neighbours(length: float) -> list[tuple[int, float]]:
    """The whole numbers on both sides of a length, with their weights in a linear interpolation."""
    below = math.floor(length)
    share = length - below
    return [(below, 1 - share), (below + 1, share)] if share else [(below, 1.0)]
