"""Initial values of RWKV's decays, bonuses and mixes, which depend on the channel and on the layer, as in the released
training code (Peng et al. 2023, appendix E; Peng et al. 2024, appendix; Peng et al. 2025, appendix)."""

from __future__ import annotations

import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from weft.core.part_config import Dims


@final
class Depth(NamedTuple):
    """Where in the model a layer is.

    Attributes:
        ratio: layer / (n_layers - 1), from 0 for the first to 1 for the last; 0 in a model of one.
        share: layer / n_layers.
    """

    ratio: float
    share: float

    @staticmethod
    def of(dims: Dims) -> Depth:
        """Those of a part that is built for these dimensions."""
        return Depth(dims.layer / max(1, dims.n_layers - 1), dims.layer / dims.n_layers)

    def norm_scale(self, n_layers: int) -> float:
        """The initial weight of the norm of heads, ((layer + 1) / n_layers)^0.7."""
        return math.pow(self.share + 1 / n_layers, 0.7)


def rising(size: int, power: float) -> Tensor:
    """(i / size)^power for channel i."""
    return (torch.arange(size) / size) ** power


def line(size: int) -> Tensor:
    """i / (size - 1), from 0 to 1; 0 for a single channel."""
    return torch.arange(size) / max(1, size - 1)


def decay_schedule(size: int, depth: Depth, *, first: float, span: float) -> Tensor:
    """log(-log of the decay): from ``first`` for channel 0 to ``first + span`` for the last, the later layers the more
    bent towards ``first``."""
    return first + span * line(size) ** (0.7 + 1.3 * depth.ratio)


def zigzag(size: int) -> Tensor:
    """0, 1, -1, 0, 1, -1, ..., by channel."""
    return ((torch.arange(size) + 1) % 3 - 1) / 1  # in the default dtype, which may be float64


def four_bonus(size: int) -> Tensor:
    """RWKV-4's bonuses u."""
    return math.log(0.3) + 0.5 * zigzag(size)


def matrix_bonus(size: int, depth: Depth) -> Tensor:
    """The bonuses u of RWKV-5 and 6."""
    return depth.ratio * (1 - line(size)) + 0.1 * zigzag(size)


def seven_decay(size: int, depth: Depth) -> Tensor:
    """RWKV-7's w for channels, before what differs within heads."""
    return -5.5 + 6 * line(size) ** (1 + math.pow(depth.ratio, 0.3))


def within_heads(size: int, d_head: int) -> Tensor:
    """x |x| for x from -1 for the first feature of each head to 1 for the last; 0 in heads of one feature."""
    middle = (d_head - 1) / 2
    from_middle = (torch.arange(size) % d_head - middle) / max(middle, 0.5)
    curved: Tensor = from_middle * from_middle.abs()
    return curved
