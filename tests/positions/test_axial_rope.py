"""Rotary positions on a grid: each axis against the oracle of one, differences alone, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from oracles import rope as oracle
from oracles import rope_frequencies
from weft.core.clock import Ticks
from weft.core.config import parse
from weft.core.errors import ConfigError, InputError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.positions.rope import AxialRope, AxialRopeConfig


def build(d_head: int = 8, **fields: Any) -> AxialRope:
    return parse(AxialRopeConfig, fields).build_for_heads(Dims(8, path="mixer.position"), 2, d_head)


def at(places: Tensor | None, steps: int) -> Ticks:
    return Span(coordinates=places).resolve(None, torch.zeros(1, steps, 1)).ticks


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def turned(x: Any, places: Any, base: float, layout: str) -> Any:
    """[T,E]: the pairs of each axis by rotary positions of one coordinate."""
    axes = places.shape[1]
    order = np.arange(x.shape[1]).reshape(-1, 2) if layout == "interleaved" else np.arange(x.shape[1]).reshape(2, -1).T
    out = np.empty_like(x)
    for axis, own in enumerate(np.split(order, axes)):
        theta = rope_frequencies.base_frequencies(2 * len(own), base)
        out[:, own.flatten()] = oracle.rope_interleaved(x[:, own.flatten()], places[:, axis], theta)
    return out


@pytest.mark.parametrize("layout", ["interleaved", "half_split"])
@pytest.mark.parametrize(("grid", "d_head", "base"), [((4,), 8, 100.0), ((2, 3), 12, 30.0)])
def test_each_axis_turns_as_rotary_positions_do(layout: str, grid: tuple[int, ...], d_head: int, base: float) -> None:
    x, places = randn(1, 5, 2, d_head), randn(1, 5, len(grid) + 1, seed=1) * 7
    y = build(d_head, grid=grid, base=base, layout=layout).rotate(x, at(places, 5))
    for head in range(2):
        wanted = turned(x[0, :, head].numpy(), places[0].numpy(), base, layout)
        np.testing.assert_allclose(y[0, :, head].numpy(), wanted, rtol=1e-12, atol=1e-13)


def test_scores_depend_on_the_differences_along_each_axis() -> None:
    scheme, q, k = build(), randn(1, 6, 1, 8), randn(1, 6, 1, 8, seed=1)
    places = torch.randint(0, 9, (1, 6, 2), generator=torch.Generator().manual_seed(2))
    moved = places + torch.tensor([5, -3])
    scores = [torch.einsum("bthe,bshe->bts", scheme.rotate(q, at(each, 6)), scheme.rotate(k, at(each, 6)))
              for each in (places, moved)]
    assert_close(scores[0], scores[1], rtol=1e-12, atol=1e-12)


def test_without_coordinates_tokens_lie_row_by_row_on_the_grid() -> None:
    assert build(grid=(3,)).places(at(None, 7))[0].tolist() == [
        [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2], [2, 0]]
    film = build(12, grid=(2, 3)).places(at(None, 13))[0].tolist()
    assert film == [[index // 6, index // 3 % 2, index % 3] for index in range(13)]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mixer.position.grid: the 6 features of a head do not make as many pairs "
                                          r"for each of 2 axes. Choose a d_head among the multiples of 4."):
        build(6)
    with pytest.raises(ConfigError, match=r"mixer.position.grid: an axis of 0 tokens. Give positive sizes."):
        build(grid=(0,))
    with pytest.raises(ConfigError, match=r"'axial_rope' turns queries and keys, so it has no place outside"):
        AxialRopeConfig().build(Dims(8))
    for places, given in ((torch.zeros(1, 3), 1), (torch.zeros(1, 3, 3), 3)):
        with pytest.raises(InputError, match=rf"axial_rope takes 2 coordinates per token, got {given}. Give "
                                                   r"coordinates of shape \[B,T,2\], or none for a grid's row order."):
            build().rotate(randn(1, 3, 2, 8), at(places, 3))
