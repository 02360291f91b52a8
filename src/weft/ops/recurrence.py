"""What the scans of Elman networks, GRUs and LSTMs share. All is time-major, [T,B,...].

A scan is one operator to `torch.compile` (unrolled, 256 steps take minutes to compile), and its backward makes one
product for the weight's gradient where automatic differentiation adds up one per step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


def resets(starts: Bool[Tensor, "T B"] | None, steps: int) -> Sequence[Tensor | None]:
    """For each step the rows [B,1] whose state is zero before it, None when there are none."""
    return [None] * steps if starts is None else starts[..., None].unbind(0)


def found(first: Float[Tensor, "B H"], after: Float[Tensor, "T B H"],
          starts: Bool[Tensor, "T B"] | None) -> Float[Tensor, "T B H"]:
    """What each step finds: the value ``after`` the previous step, ``first`` at the first, zero at ``starts``."""
    before = torch.cat([first[None], after[:-1]])
    return before if starts is None else before.masked_fill(starts[..., None], 0)


def after_count(first: Float[Tensor, "B H"], after: Float[Tensor, "T B H"],
                count: Int64[Tensor, " B"] | None) -> Float[Tensor, "B H"]:
    """The value after ``count[b]`` steps of row b (None: all), ``first`` when that is none."""
    if count is None:
        return after[-1].clone()  # a view would keep the whole chunk alive as long as the state
    every = torch.cat([first[None], after])
    return every.gather(0, count[None, :, None].expand(1, -1, first.shape[1]))[0]
