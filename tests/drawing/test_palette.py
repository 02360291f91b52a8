"""Colours, measured: enough contrast to be read, enough distance to be told apart, also by those who see fewer hues."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.drawing.figure import DARK, LIGHT, MODELS_DARK, MODELS_LIGHT
from weft.drawing.marks import DASHES, SHAPES, ModelStyle

THEMES = [pytest.param(LIGHT, MODELS_LIGHT, id="light"), pytest.param(DARK, MODELS_DARK, id="dark")]
SIGHT: dict[str, NDArray[np.float64]] = {
    "normal": np.eye(3),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]])}
"""Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB."""


def linear(colour: str) -> NDArray[np.float64]:
    """Linear RGB of ``#rrggbb``."""
    parts = np.array([int(colour[at:at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, from 1 to 21."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ottosson 2020."""
    cones = np.cbrt(np.clip(rgb, 0, 1) @ np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                                                   [0.2119034982, 0.6806995451, 0.1073969566],
                                                    [0.0883024619, 0.2817188376, 0.6299787005]]).T)
    return np.asarray(cones @ np.array([[0.2104542553, 0.7936177850, -0.0040720468],
                                        [1.9779984951, -2.4285922050, 0.4505937099],
                                        [0.0259040371, 0.7827717662, -0.8086757660]]).T)


@pytest.mark.parametrize(("paper", "models"), THEMES)
def test_text_reaches_aa_and_lines_three_to_one(paper: Mapping[str, str], models: tuple[str, ...]) -> None:
    for name in ("ink", "quiet", "accent", "flag", "matched"):
        assert contrast(paper[name], paper["paper"]) >= 4.5, name
    for name in ("ink", "quiet"):
        assert contrast(paper[name], paper["raised"]) >= 4.5, name
    assert all(contrast(model, paper["paper"]) >= 3 for model in models)


@pytest.mark.parametrize("sight", list(SIGHT))
@pytest.mark.parametrize(("paper", "models"), THEMES)
def test_no_two_models_look_alike(paper: Mapping[str, str], models: tuple[str, ...], sight: str) -> None:
    seen = [oklab(linear(model) @ SIGHT[sight].T) for model in models]
    # Twice what is easily told apart side by side; a just noticeable difference is near 0.02.
    assert min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2)) > 0.08


def test_what_has_one_colour_differs_in_marker_and_dash() -> None:
    styles = [ModelStyle(index) for index in range(16)]
    assert {style.colour for style in styles} == {f"m{index}" for index in range(8)}
    assert len({(style.outline, style.hollow) for style in styles}) == 16
    for one, other in zip(styles[:8], styles[8:], strict=True):
        assert one.colour == other.colour and one.dash != other.dash and one.hollow != other.hollow
    assert len(SHAPES) == 8 and len(DASHES) == 4
