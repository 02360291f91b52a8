"""Dashed paths that keep apart from one another, and their drawing. Points are complex numbers, row + i column, in
pixels; the centre of the first pixel is 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Complex128, Float64, Int64, UInt8


@dataclass(frozen=True)
class Pixels:
    """Lengths of a picture, in pixels.

    Attributes:
        gaps: half the greatest distance between two dashes that follow one another; one of these for each picture.
        border: rows and columns at the edge that stay empty.
        apart: from the beginning of one long path to that of the other.
        continuity: how straight paths are, see `weft.data.generated.pathfinder.Pathfinder`.
        distracting: dashes of all short paths together.
    """

    dash: float
    thickness: float
    gaps: tuple[int, ...]
    border: int
    apart: float
    dot: float
    continuity: float
    distracting: int

    def changed(self, given: Mapping[str, Any]) -> Pixels:
        """The same with some lengths replaced; those that are None are kept."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass
class Path:
    """A path that is drawn dash by dash.

    Attributes:
        tail: where its first dash begins.
        tip: where its last dash ends.
        turn: direction of its last dash, in radians.
    """

    tail: complex
    tip: complex
    turn: float
    owner: int


@dataclass(frozen=True, eq=False)
class Picture:
    """The contours and distractors that a picture is drawn from.

    Attributes:
        starts: where each dash begins.
        ends: where it ends.
        owners: the number of its path.
        dots: centres of the two dots.
        gap: see `Pixels`.
        joined: 1 if one path joins the dots, else 0.
    """

    starts: Complex128[np.ndarray, " n"]
    ends: Complex128[np.ndarray, " n"]
    owners: Int64[np.ndarray, " n"]
    dots: tuple[complex, complex]
    gap: int
    joined: int


class Canvas:
    """Dashes that keep their distance: centre lines are more than two gaps and a thickness apart, but for dashes that
    follow one another in a path."""

    def __init__(self, size: int, look: Pixels, gap: int) -> None:
        self.size, self.look, self.gap = size, look, gap
        self.count = 0
        self._starts, self._ends = np.zeros(64, dtype=np.complex128), np.zeros(64, dtype=np.complex128)
        self._owners = np.zeros(64, dtype=np.int64)

    def all(self) -> tuple[Complex128[np.ndarray, " n"], Complex128[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Starts, ends and owners of all dashes."""
        return self._starts[:self.count], self._ends[:self.count], self._owners[:self.count]

    def forget_after(self, count: int) -> None:
        """Take away all dashes but the first ``count``."""
        self.count = count

    def resumed(self, path: Path) -> Path:
        """A path as it is after dashes have been taken away: it ends with the last dash that is left of it."""
        starts, ends, owners = self.all()
        last = int(np.flatnonzero(owners == path.owner)[-1])
        return Path(path.tail, complex(ends[last]), float(np.angle(ends[last] - starts[last])), path.owner)

    def begin(self, tail: complex, turn: float) -> Path | None:
        """A new path with one dash; None if there is no room for it."""
        tip = tail + self.look.dash * complex(math.cos(turn), math.sin(turn))
        if not self.free(np.array([tail]), np.array([tip]))[0]:
            return None
        owner = int(self._owners[self.count - 1]) + 1 if self.count else 0
        self._add(tail, tip, owner)
        return Path(tail, tip, turn, owner)

    def extend(self, path: Path, chance: float, ahead: int = 0) -> bool:
        """Lengthen a path by a dash in a direction that ``chance``, in [0,1), chooses; False if there is no room.
        Directions are left out from which ``ahead`` more dashes could not turn back from the border."""
        look, reach = self.look, look_reach(self.look)
        pivot = path.tip + self.gap * complex(math.cos(path.turn), math.sin(path.turn))
        count = 2 * math.ceil(reach * (look.dash + self.gap)) + 1  # directions about a pixel apart
        bends = np.linspace(-reach, reach, count + 2)[1:-1]
        heading = np.exp(1j * (path.turn + bends))
        tails, tips = pivot + self.gap * heading, pivot + (self.gap + look.dash) * heading
        weights = np.cos(look.continuity * bends) ** 2 * self._turns_back(tips, heading, ahead)
        weights[weights > 0] *= self.free(tails[weights > 0], tips[weights > 0], path)
        sums = np.cumsum(weights)
        if sums[-1] <= 0:
            return False
        chosen = min(int(np.searchsorted(sums, chance * sums[-1], side="right")), int(np.flatnonzero(weights)[-1]))
        path.tip, path.turn = complex(tips[chosen]), path.turn + float(bends[chosen])
        self._add(complex(tails[chosen]), path.tip, path.owner)
        return True

    def free(self, tails: Complex128[np.ndarray, " n"], tips: Complex128[np.ndarray, " n"],
             path: Path | None = None) -> Bool[np.ndarray, " n"]:
        """Whether each dash lies within the border and keeps its distance, but for that from the last of ``path``."""
        inside = np.asarray(self._inside(np.stack([tails, tips])).all(0))
        starts, ends, _ = self.all()
        if path is not None:
            other = ends != path.tip
            starts, ends = starts[other], ends[other]
        if not len(starts) or not inside.any():
            return inside
        inside[inside] = distances(tails[inside], tips[inside], starts, ends).min(1) > self._least
        return inside

    def _inside(self, points: np.ndarray) -> Bool[np.ndarray, "..."]:
        """Whether points lie within the border."""
        middle = (self.size - 1) / 2
        away = np.maximum(np.abs(points.real - middle), np.abs(points.imag - middle))
        return np.asarray(away <= middle - self.look.border)

    def _turns_back(self, tips: np.ndarray, heading: np.ndarray, ahead: int) -> np.ndarray:
        """Whether a path with these tips and headings could turn round, to one side, within the border."""
        bend = 0.95 * look_reach(self.look)
        steps = min(ahead, math.ceil(math.pi / bend))
        if not steps:
            return np.ones(len(tips), dtype=bool)
        turned = np.exp(1j * bend * np.arange(steps + 1))
        places = np.cumsum(self.gap * turned[:-1] + (self.gap + self.look.dash) * turned[1:])
        reached = self._inside(tips[:, None, None] + heading[:, None, None] * np.stack([places, places.conj()]))
        return np.asarray(np.asarray(reached.all(-1)).any(-1))

    @property
    def _least(self) -> float:
        return 2 * self.gap + self.look.thickness

    def _add(self, tail: complex, tip: complex, owner: int) -> None:
        if self.count == len(self._starts):
            self._starts, self._ends, self._owners = (
                np.concatenate([each, np.zeros_like(each)]) for each in (self._starts, self._ends, self._owners))
        self._starts[self.count], self._ends[self.count], self._owners[self.count] = tail, tip, owner
        self.count += 1


def look_reach(look: Pixels) -> float:
    """The greatest angle between two dashes that follow one another, in radians."""
    return math.pi / (2 * look.continuity)


def distances(tails: Complex128[np.ndarray, " n"], tips: Complex128[np.ndarray, " n"],
              starts: Complex128[np.ndarray, " m"], ends: Complex128[np.ndarray, " m"]) -> Float64[np.ndarray, "n m"]:
    """The shortest distance of each line from ``tails`` to ``tips`` to each from ``starts`` to ``ends``."""
    one, other = (tips - tails)[:, None], (ends - starts)[None]
    from_one = [point[None] - tails[:, None] for point in (starts, ends)]
    from_other = [point[:, None] - starts[None] for point in (tails, tips)]
    found = np.minimum.reduce([*(_to_line(point, one) for point in from_one),
                               *(_to_line(point, other) for point in from_other)])
    sides = [np.sign((np.conj(line) * points[0]).imag) * np.sign((np.conj(line) * points[1]).imag)
             for line, points in ((one, from_one), (other, from_other))]
    crossing = (sides[0] < 0) & (sides[1] < 0)
    apart: np.ndarray = np.where(crossing, 0.0, found)
    return apart


def _to_line(points: np.ndarray, line: np.ndarray) -> np.ndarray:
    """The distance of points from a line that begins at 0."""
    along = np.clip((points * np.conj(line)).real / (line * np.conj(line)).real, 0, 1)
    found: np.ndarray = np.abs(points - along * line)
    return found


def drawn(picture: Picture, size: int, look: Pixels) -> UInt8[np.ndarray, "H W"]:
    """A picture in white on black. A pixel's brightness falls from 1 to 0 within a pixel across the edge of a stroke or
    dot: half the thickness, and a half, less the distance of the pixel's centre, clipped."""
    image = np.zeros((size, size))
    for start, end in zip(picture.starts.tolist(), picture.ends.tolist(), strict=True):
        _stroke(image, start, end, look.thickness / 2)
    for centre in picture.dots:
        _stroke(image, centre, centre + 1e-9, look.dot)
    return np.rint(255 * image).astype(np.uint8)


def _stroke(image: np.ndarray, start: complex, end: complex, radius: float) -> None:
    """Draw a line with round ends."""
    reach = radius + 1
    rows, columns = (slice(max(0, math.floor(min(a, b) - reach)), math.ceil(max(a, b) + reach) + 1)
                     for a, b in ((start.real, end.real), (start.imag, end.imag)))
    part = image[rows, columns]
    at = np.arange(rows.start, rows.start + part.shape[0])[:, None] + 1j * np.arange(columns.start, columns.start
                                                                                     + part.shape[1])
    np.maximum(part, np.clip(radius + 0.5 - _to_line(at - start, np.array(end - start)), 0, 1), out=part)
