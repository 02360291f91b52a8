"""ALiBi: a penalty on each score that grows linearly with the distance."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.positions.base import Point, PositionConfig, PositionScheme
from weft.positions.coordinates import one_dimensional
from weft.positions.frequencies import Constant, angle_dtype

Rounding = Literal["none", "bfloat16"]


def press_slopes(n_heads: int, steepness: float = 8.0) -> list[float]:
    """2^(-8h/H) for h = 1 .. H; where H is not a power of two, the slopes of the power P below, then every second one
    of 2P. Press et al. 2022, section 3, and its released code; BLOOM, Falcon."""
    below = 2 ** (n_heads.bit_length() - 1)
    return [*_geometric(below, steepness), *_geometric(2 * below, steepness)[0::2][:n_heads - below]]


def mpt_slopes(n_heads: int, steepness: float = 8.0) -> list[float]:
    """As `press_slopes` where H is a power of two; else the slopes of the power above, second, fourth, ..., then first,
    third, ..., the first H of them. MPT's released code."""
    above = 2 ** math.ceil(math.log2(n_heads))
    slopes = _geometric(above, steepness)
    return slopes if above == n_heads else [*slopes[1::2], *slopes[0::2]][:n_heads]


def _geometric(count: int, steepness: float) -> list[float]:
    return [2 ** (-steepness * h / count) for h in range(1, count + 1)]


@register
class AlibiConfig(PositionConfig):
    """Attention with linear biases.

    Attributes:
        slopes: the rule for numbers of heads that are not a power of two, ``press`` or ``mpt``.
        steepness: the last head's slope is 2^-steepness where H is a power of two (MPT's ``alibi_bias_max``).
        scaled: whether the penalty is divided by sqrt(d_head), as the scores are (Falcon).
        rounding: ``bfloat16``: each position, each slope and each product of the two is rounded to bfloat16, for
            any dtype of the model, and the penalty is the difference of products (Falcon). Positions beyond 256 then
            share products, and a shift of all positions changes the numbers; use it for models trained that way.
    """

    kind: ClassVar[str] = "alibi"
    about = About(
        title="ALiBi", source="Press et al. 2022, section 3",
        equation=r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{E}} - m_h (i - j), \qquad m_h = 2^{-8 h / H}",
        differs=(("t5", "the bias is a fixed line in place of a learned table."),
                 ("rope", "acts on scores, and has no wavelengths that a longer text could leave.")))
    slopes: Literal["press", "mpt"] = "press"
    steepness: float = Field(default=8.0, gt=0)
    scaled: bool = False
    rounding: Rounding = "none"

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'alibi' acts on scores, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> Alibi:
        slopes = press_slopes if self.slopes == "press" else mpt_slopes
        return Alibi(slopes(n_heads, self.steepness), divisor=math.sqrt(d_head) if self.scaled else 1.0,
                     rounding=self.rounding)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(slopes="mpt", steepness=4.0), cls(scaled=True, rounding="bfloat16")]


class Alibi(PositionScheme):
    """-slope_h |i - j| on the scaled score of query position i and key position j, itself unscaled.

    There are no parameters and no table. Under a causal mask |i - j| is the paper's i - j; without one it is the
    symmetric form, which never favours later tokens. Distances are computed in float32 (float64 for float64 models) and
    rounded to the queries' dtype once. BLOOM adds slope_h j instead, the same up to a constant per query, which
    softmax removes; Falcon divides by sqrt(d_head) as well (``divisor``) and adds products in bfloat16, of which with
    ``rounding`` this is -|slope_h i - slope_h j|: the same up to that constant under a causal mask.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores"})

    def __init__(self, slopes: list[float], *, divisor: float = 1.0, rounding: Rounding = "none") -> None:
        super().__init__()
        self.divisor, self.rounding = divisor, rounding
        self.minus_slopes = Constant([-slope for slope in slopes])

    @property
    def relative(self) -> bool:
        return self.rounding == "none"

    def bias(self, q: Float[Tensor, "B T H E"], k: Tensor, ticks: Ticks, keys: Keys) -> Float[Tensor, "#B H T S"]:
        dtype = angle_dtype(q)
        i = one_dimensional(ticks.position, "alibi").to(dtype)
        j = one_dimensional(keys.position, "alibi").to(dtype)
        if self.rounding == "bfloat16":
            penalty = -(self._product(i)[..., :, None] - self._product(j)[..., None, :]).abs()
        else:
            penalty = self.minus_slopes.at(dtype)[:, None, None] * (i[:, :, None] - j[:, None, :]).abs()[:, None]
        return (penalty / self.divisor if self.divisor != 1.0 else penalty).to(q.dtype)

    def _product(self, position: Tensor) -> Float[Tensor, "#B H T"]:
        """Slope times position, rounded to bfloat16."""
        slopes = self.minus_slopes.at(torch.float32).to(torch.bfloat16)
        return (slopes[:, None] * position[:, None].to(torch.bfloat16)).to(position.dtype)
