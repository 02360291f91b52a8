"""Transformer-XL's relative positions: sinusoids of the distance, projected, and two learned biases for queries."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, Self

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Keys, Ticks
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.linear.linear import Linear
from weft.positions.base import Bias, Content, Point, PositionConfig, PositionScheme
from weft.positions.coordinates import distances, of_pairs, one_dimensional
from weft.positions.frequencies import Constant, angle_dtype


@register
class TransformerXlConfig(PositionConfig):
    """Scores ((q_i + u) k_j + (q_i + v) W_r R_(i-j)) / sqrt(d_head) of query i and key j, with R the sinusoids of their
    distance and with u and v learned for each head.

    The segment memory is the attention's state, and its mask says how long it is. Under ``segments(t, m)`` a query sees
    its segment of t tokens and m tokens before it (the paper); under ``causal & window(w)`` it sees the last w tokens
    (the released code with ``same_length``).

    Attributes:
        max_distance: longer distances, in tokens, are taken as this one (the released code's ``clamp_len``); None: no
            limit.
        base: of the wavelengths, which run from 2 pi to about 2 pi base tokens.
        std: standard deviation of the normal distribution that u and v start from.
    """

    kind: ClassVar[str] = "transformer_xl"
    about = About(
        title="Transformer-XL positions", also_called=("txl", "xlnet"),
        source="Dai et al. 2019, section 3.3; sinusoids in halves, as in its released code",
        equation=r"s_{ij} = \frac{q_i \cdot k_j + q_i \cdot W_r R_{i-j} + u \cdot k_j + v \cdot W_r R_{i-j}}{\sqrt{E}}",
        differs=(("shaw", "distances have sinusoids that are projected, without a largest distance."),
                 ("deberta", "has constant queries u and v in place of projected ones of the distance.")))
    max_distance: int | None = Field(default=None, ge=1)
    base: float = Field(default=10000.0, gt=1)
    std: float = Field(default=0.02, gt=0)

    def build(self, dims: Dims) -> PositionScheme:
        raise dims.problem("", "'transformer_xl' acts on scores, so it has no place outside attention.",
                           "Put it in the attention's `position`.")

    def build_for_heads(self, dims: Dims, n_heads: int, d_head: int) -> TransformerXl:
        if dims.d_model % 2:
            raise dims.problem("", f"sinusoids come in pairs of features, d_model is {dims.d_model}.",
                               "Choose an even d_model.")
        return TransformerXl(self, dims.d_model, n_heads, d_head)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(std=0.5), cls(max_distance=20, base=100.0, std=0.5)]


class TransformerXl(PositionScheme):
    """The three terms that are added to q_i . k_j.

    R_d = [sin d theta, cos d theta]. R_(i-j) . a equals R_j . b, where b is ``a`` with each pair of features rotated by
    i theta. So the terms with R are one product of rotated queries with R_j, over d_model features in each head: keys
    may stand at any positions, fractions too, and nothing is computed for single distances. The released code projects
    R of every distance instead, which takes fewer operations where T and S are alike. With ``clamp`` it is done so
    here: the R of all distances are projected once a call.

    The state holds keys. The released code holds the layer's input and projects it again in the next segment, which
    differs only while weights change.
    """

    acts_on: ClassVar[frozenset[Point]] = frozenset({"scores"})

    def __init__(self, config: TransformerXlConfig, d_model: int, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.clamp = config.max_distance
        self.frequencies = Constant([config.base ** (-2 * i / d_model) for i in range(d_model // 2)])
        # Queries are multiplied with the transpose of its matrix, so nothing may stand in its place.
        self.r = Linear(d_model, n_heads * d_head, bias=False, allows=frozenset())
        self.u, self.v = (nn.Parameter(torch.empty(n_heads, d_head)) for _ in range(2))
        for each in (self.u, self.v):
            nn.init.normal_(each, std=config.std)

    def scale(self, d_head: int) -> float:
        return float(d_head ** -0.5)

    def declares(self) -> Declared:
        return replace(super().declares(), borders=() if self.clamp is None else (self.clamp,))

    def prepared(self, content: Content) -> Bias:
        matrix = self.r.weight.unflatten(0, self.u.shape)
        if self.clamp is None:
            return partial(self._bias, partial(self._by_angles, matrix))
        distance = torch.arange(-self.clamp, self.clamp + 1, device=matrix.device)
        rows = torch.einsum("ld,hed->lhe", self._waves(distance, matrix).to(matrix.dtype), matrix)
        return partial(self._bias, partial(self._by_rows, rows))

    def of_distances(self, q: Float[Tensor, "B T H E"], distance: Int64[Tensor, " L"]) -> Float[Tensor, "B H T L"]:
        """(q_i + v) . W_r R_d over the root of d_head for these distances d: the scores of keys that are zero."""
        matrix = self.r.weight.unflatten(0, self.u.shape)
        distance = distance if self.clamp is None else distance.clamp(-self.clamp, self.clamp)
        rows = torch.einsum("ld,hed->lhe", self._waves(distance, matrix).to(matrix.dtype), matrix)
        return torch.einsum("bthe,lhe->bhtl", q + self.v, rows) * self.scale(q.shape[3])

    def _bias(self, by_position: Bias, q: Float[Tensor, "B T H E"], k: Float[Tensor, "B S K E"], ticks: Ticks,
              keys: Keys) -> Float[Tensor, "B H T S"]:
        of_keys = torch.einsum("bske,kge->bkgs", k.to(q.dtype), self.u.unflatten(0, (k.shape[2], -1))).flatten(1, 2)
        return (by_position(q + self.v, k, ticks, keys) + of_keys[:, :, None]) * self.scale(q.shape[3])

    def _by_rows(self, rows: Float[Tensor, "L H E"], q: Tensor, k: Tensor, ticks: Ticks, keys: Keys) -> Tensor:
        assert self.clamp is not None
        row = distances(ticks, keys, "transformer_xl with clamp").clamp(-self.clamp, self.clamp) + self.clamp
        return of_pairs(torch.einsum("bthe,lhe->bhtl", q, rows), row)

    def _by_angles(self, matrix: Float[Tensor, "H E D"], q: Tensor, k: Tensor, ticks: Ticks, keys: Keys) -> Tensor:
        i, j = (self._waves(one_dimensional(part.position, "transformer_xl"), q).to(q.dtype) for part in (ticks, keys))
        sines, cosines = torch.einsum("bthe,hed->bthd", q, matrix).chunk(2, dim=-1)
        sin, cos = i[:, :, None].chunk(2, dim=-1)
        turned = torch.cat([sin * cosines - cos * sines, sin * sines + cos * cosines], -1)
        return torch.einsum("bthd,bsd->bhts", turned, j.expand(len(q), -1, -1))

    def _waves(self, position: Tensor, like: Tensor) -> Tensor:
        """Return the sines, then the cosines, of each position, [..., D]."""
        dtype = angle_dtype(like)
        angles = position.to(dtype)[..., None] * self.frequencies.at(dtype)
        return torch.cat([angles.sin(), angles.cos()], -1)
