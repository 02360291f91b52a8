"""Programs that solve generated rows exactly, each from the row alone, sharing no code with what makes them."""

from __future__ import annotations

import statistics

import numpy as np

NAMES = [*map(str, range(10)), "[MIN", "[MAX", "[MED", "[SM", "]"]


def copied(ids: list[int], marker: int) -> list[int]:
    """The tokens that are neither noise (0) nor the marker, in order."""
    return [each for each in ids if each not in (0, marker)]


def followed(ids: list[int]) -> int:
    """What followed the row's last token where that stood before."""
    return ids[ids.index(ids[-1]) + 1]


def recalled(ids: list[int], pairs: int, places: list[int]) -> list[int]:
    """The value of the key at each place."""
    known = dict(zip(ids[:2 * pairs:2], ids[1:2 * pairs:2], strict=True))
    return [known[ids[place]] for place in places]


def evaluated(words: list[str]) -> int:
    """The value of an expression, by a stack."""
    rules = {"[MIN": min, "[MAX": max, "[MED": lambda each: int(statistics.median(each)),
             "[SM": lambda each: sum(each) % 10}
    stack: list[list[int | str]] = [[]]
    for word in words:
        if word.startswith("["):
            stack.append([word])
        elif word == "]":
            operator, *values = stack.pop()
            stack[-1].append(rules[str(operator)](values))
        else:
            stack[-1].append(int(word))
    assert len(stack) == 1 and len(stack[0]) == 1, "one whole expression"
    return int(stack[0][0])


def joined(starts: np.ndarray, ends: np.ndarray, dots: tuple[complex, complex], reach: float) -> bool:
    """Whether one can go from dot to dot, from dash to dash by steps of at most ``reach`` between points of them."""
    along = np.linspace(0, 1, 21)
    points = starts[:, None] + along * (ends - starts)[:, None]
    near = np.array([[np.abs(a[:, None] - b[None]).min() for b in points] for a in points]) <= reach + 1e-9
    found = {int(np.abs(points - dots[0]).min(1).argmin())}
    while True:
        grown = {int(each) for dash in found for each in np.flatnonzero(near[dash])}
        if grown == found:
            return int(np.abs(points - dots[1]).min(1).argmin()) in found
        found = grown


def flooded(image: np.ndarray, radius: float, dot: float) -> bool:
    """Whether one dot reaches the other over bright pixels, in steps of at most ``radius``, from the picture alone.

    A dot is where a disc of its size is white; all of it but the pixels at its centre is wiped out first, so that a
    path that passes by is not touched by it.
    """
    white = image >= 128
    full = np.ones_like(white)
    for y, x in _disc(dot - 1):
        full &= np.roll(white, (y, x), (0, 1))
    centres = np.argwhere(full)
    far = np.abs(centres - centres[0]).max(1) > dot
    dots = [centres[~far].mean(0), centres[far].mean(0)]
    for centre in dots:
        away = np.hypot(*(np.indices(white.shape) - centre[:, None, None]))
        white = (white & (away > dot + 1)) | (away < 1)
    reached, goal = (np.hypot(*(np.indices(white.shape) - centre[:, None, None])) < 1 for centre in dots)
    while True:
        grown = np.zeros_like(white)
        for y, x in _disc(radius):
            grown |= np.roll(reached, (y, x), (0, 1))
        grown &= white
        if (grown == reached).all():
            return bool((reached & goal).any())
        reached = grown


def _disc(radius: float) -> list[tuple[int, int]]:
    """Steps of at most ``radius``."""
    reach = range(-int(radius), int(radius) + 1)
    return [(y, x) for y in reach for x in reach if y * y + x * x <= radius**2]
