"""Proximities and what holds of them, against the formulas of the papers, written out in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from pictures.reading import curves, fields
from weft.core.part_config import Dims
from weft.core.registry import REGISTRY
from weft.pictures.positions import Placed, position_figures
from weft.pictures.proximity import (
    Properties,
    by_content,
    by_distance,
    codes,
    properties,
    proximities,
    wavelengths,
)
from weft.positions.base import PositionScheme

HEADS, SIZE, TOKENS = 4, 8, 24


def built(kind: str, **fields: Any) -> PositionScheme:
    torch.manual_seed(0)
    config: Any = REGISTRY.get(("position",), kind).model_validate(fields)
    scheme: PositionScheme = config.build_for_heads(Dims(HEADS * SIZE, 11, 64), HEADS, SIZE)
    return scheme


def proximity(kind: str, head: int = 0, **fields: Any) -> torch.Tensor:
    found = proximities(built(kind, **fields), TOKENS, HEADS, SIZE)
    assert found is not None
    return found[head]


def test_sinusoidal_proximity_is_the_mean_cosine_and_not_monotone() -> None:
    width = HEADS * SIZE
    theta = 10000.0 ** (-2 * np.arange(width // 2) / width)
    distance = np.arange(TOKENS)
    expected = np.cos(distance[:, None] * theta).mean(1)
    found = by_distance(proximity("sinusoidal")).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-12)
    rises = np.flatnonzero(np.diff(expected) > 0)
    assert properties(proximity("sinusoidal")).first_rise == rises[0]
    assert properties(proximity("sinusoidal")).monotone == pytest.approx(1 - len(rises) / (TOKENS - 1))


def test_rotary_proximity_is_the_mean_cosine_of_its_pairs() -> None:
    theta = 10000.0 ** (-2 * np.arange(SIZE // 2) / SIZE)
    for layout in ("interleaved", "half_split"):
        found = by_distance(proximity("rope", layout=layout)).numpy()
        np.testing.assert_allclose(found, np.cos(np.arange(TOKENS)[:, None] * theta).mean(1), atol=1e-12)
    assert wavelengths(built("rope"), SIZE) == pytest.approx(list(2 * math.pi / theta))
    assert len(wavelengths(built("rope", rot=4), SIZE)) == 2  # the rest is not rotated


def test_alibi_s_proximity_is_its_penalty() -> None:
    for head in range(HEADS):
        expected = -(2.0 ** (-8 * (head + 1) / HEADS)) * np.abs(np.arange(TOKENS)[:, None] - np.arange(TOKENS))
        np.testing.assert_allclose(proximity("alibi", head).numpy(), expected, atol=1e-12)
    assert properties(proximity("alibi")) == Properties(1.0, None, pytest.approx(1.0), 0.0)


def test_what_holds_of_each_scheme() -> None:
    assert properties(proximity("rope")).invariant == pytest.approx(1.0)
    assert properties(proximity("sinusoidal")).asymmetry == 0.0
    integer = properties(proximity("integer"))
    assert integer.monotone == 1.0 and integer.invariant < 0.5  # p q depends on where the pair stands
    assert properties(proximity("t5")).invariant == pytest.approx(1.0)
    assert properties(proximity("t5")).asymmetry > 0.1  # left and right have weights of their own
    assert properties(proximity("tupe")).invariant < 0.9


def test_the_measures_of_matrices_drawn_by_hand() -> None:
    distance = (torch.arange(6)[:, None] - torch.arange(6)).abs().double()
    assert properties(-distance) == Properties(1.0, None, 1.0, 0.0)
    assert properties(distance).monotone == 0.0 and properties(distance).first_rise == 0
    skew = torch.arange(6)[:, None].double() - torch.arange(6)
    assert properties(skew).asymmetry == pytest.approx(1.0)
    places = torch.arange(6.0).double()[:, None].expand(6, 6)
    # i = (i - j) / 2 + (i + j) / 2: on a diagonal with n entries the second varies by (n^2 - 1) / 12.
    left = sum(n * (n * n - 1) / 12 for n in (1, 2, 3, 4, 5, 6, 5, 4, 3, 2, 1))
    assert properties(places).invariant == pytest.approx(1 - left / (6 * 17.5))


def test_terms_that_depend_on_content_have_no_proximity() -> None:
    for kind in ("shaw", "transformer_xl", "deberta"):
        assert by_content(built(kind), HEADS, SIZE), kind
        assert proximities(built(kind), TOKENS, HEADS, SIZE) is None
    for kind in ("alibi", "t5", "tupe"):
        assert not by_content(built(kind), HEADS, SIZE), kind


def test_a_scheme_without_a_point_has_none() -> None:
    assert proximities(built("none"), TOKENS, HEADS, SIZE) is None


def test_the_picture_of_a_code_is_the_code() -> None:
    scheme = built("sinusoidal")
    placed = Placed(scheme, "sinusoidal", 1, HEADS * SIZE, "", 64)
    code, near = position_figures(placed, "p", TOKENS)
    expected = codes(scheme, TOKENS, HEADS * SIZE).numpy()
    np.testing.assert_allclose(fields(code)[0], expected / np.abs(expected).max(), atol=0.51 / 255)
    assert "so it is not monotone" in str(near.caption) and "100%" in str(near.caption)


def test_the_curves_of_a_bias_are_the_bias() -> None:
    placed = Placed(built("alibi"), "alibi", HEADS, SIZE, "Block 0.", 64)
    [figure] = position_figures(placed, "p", TOKENS)
    drawn = curves(figure)
    assert list(drawn) == [f"head {head}" for head in range(HEADS)]
    # In the drawing's coordinates a line's slope is that of the head, up to one factor for all, to a tenth of a unit.
    slopes = [(points[0][1] - points[-1][1]) for points in drawn.values()]
    np.testing.assert_allclose(np.array(slopes) / slopes[0], [4.0 ** -head for head in range(HEADS)], atol=2e-3)
    assert figure.caption == "Block 0. All 4 heads; the same to both sides."


def test_wavelengths_are_drawn_with_the_context() -> None:
    waves, near = position_figures(Placed(built("rope", rot=4), "rope", HEADS, SIZE, "", 64), "p", TOKENS)
    assert len(curves(waves)["wavelength"]) == 2 and "4 of 8 features are not rotated" in str(waves.caption)
    assert "training context of 64" in str(waves.caption) and "mean" in curves(near)
