"""Pathfinder: do two dots lie on one dashed path?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from weft.core.errors import DataError
from weft.data.generated.dashes import Canvas, Path, Picture, Pixels, drawn
from weft.data.generated.generator import AnsweredRows, Draws, Generator

LEVELS = 256
"""Shades of grey, which are ids."""
LOOKS = {32: Pixels(dash=2, thickness=0.5, gaps=(1,), border=1, apart=7, dot=1.5, continuity=1.0, distracting=20),
         64: Pixels(dash=5, thickness=1.0, gaps=(1,), border=1, apart=12, dot=2.5, continuity=1.8, distracting=22),
         128: Pixels(dash=5, thickness=1.5, gaps=(2, 3), border=1, apart=20, dot=3.0, continuity=1.8, distracting=35),
         256: Pixels(dash=5, thickness=2.0, gaps=(3,), border=22, apart=27, dot=5.0, continuity=1.8, distracting=30)}
"""Lengths in pixels at the four sizes of the Long Range Arena."""
ATTEMPTS, RETRIES, PLACES_TRIED = 5_000, 4, 48
"""Steps of the two long paths, trials of a distractor, places tried for its first dash."""


def look_of(size: int) -> Pixels:
    """The lengths of the largest published size that is not above ``size``; below 32 pixels those of 32."""
    return LOOKS[max((each for each in LOOKS if each <= size), default=min(LOOKS))]


@dataclass(frozen=True)
class Pathfinder(Generator):
    """A picture of two long dashed paths among short ones, with a dot at one end of a long path; a second dot stands at
    the other end of that path, or of the other one. Does one path join the dots? (Linsley et al. 2018, section 4.1;
    Houtkamp and Roelfsema 2010; at the sizes of the Long Range Arena, Tay et al. 2021, section 2.2.5: 32 x 32, and
    128 x 128 as Path-X.) The picture is read pixel by pixel, row by row.

    A path is a chain of dashes. From the end of a dash one goes on by the gap in its direction, and from there by the
    gap and a dash in a direction that differs by an angle d, drawn with a probability in proportion to cos^2(min(c |d|,
    pi/2)), c the continuity. Two dashes that do not follow one another in a path are nowhere closer than two gaps and
    the thickness of a stroke, centre line to centre line, while neighbours in a path are at most two gaps apart: so the
    answer is a function of the picture. (The released code keeps the first dashes of the two paths apart from
    those that follow alone, and draws by another filter.) Both paths begin near the middle, ``apart`` pixels from one
    another. Both answers are equally likely.

    Ids: 0 .. 255 are shades, 256 stands for "apart" and 257 for "joined".

    Attributes:
        contour: dashes of a long path; distractors have a third of them, rounded down, and at least one.
        distractors: short paths; those for which no place is found are left out.
        look: lengths in pixels.
    """

    size: int
    contour: int
    distractors: int
    look: Pixels

    @property
    def vocab_size(self) -> int:
        return LEVELS + len(self.classes)

    @property
    def longest(self) -> int:
        return self.size * self.size

    @property
    def answers(self) -> int:
        return 1

    @property
    def chance(self) -> float:
        return 0.5

    @property
    def classes(self) -> tuple[str, ...]:
        return ("apart", "joined")

    @property
    def first_class(self) -> int:
        return LEVELS

    def describe(self) -> str:
        return f"Pathfinder of {self.size} x {self.size}, {self.contour} dashes, {self.distractors} distractors"

    def rows(self, seed: int, index: Int64[np.ndarray, " B"]) -> AnsweredRows:
        pictures = [self.picture(seed, int(each)) for each in index]
        ids = np.stack([drawn(each, self.size, self.look).reshape(-1) for each in pictures]).astype(np.int64)
        answers = np.array([[LEVELS + each.joined] for each in pictures], dtype=np.int64)
        return AnsweredRows(ids, None, np.full((len(pictures), 1), self.longest - 1), answers)

    def picture(self, seed: int, index: int) -> Picture:
        """The paths and dots of a picture. Raises `DataError`: no two paths of that many dashes fit."""
        draws = Draws(seed, np.array([index]))
        gap = self.look.gaps[int(draws.below(len(self.look.gaps), 1)[0, 0])]
        canvas, paths = self._long_paths(draws, gap)
        for _ in range(self.distractors):
            self._distract(canvas, draws, gap)
        one, joined = (int(each) for each in draws.below(2, 2)[0])
        dots = (paths[one].tail, paths[one if joined else 1 - one].tip)
        starts, ends, owners = canvas.all()
        return Picture(starts, ends, owners, dots, gap, joined)

    def _long_paths(self, draws: Draws, gap: int) -> tuple[Canvas, tuple[Path, Path]]:
        """Both long paths, dash by dash in turn. Where one cannot go on, the last dashes of both are drawn again: one
        more with every failure, until the paths are longer than ever before."""
        canvas, paths, best, failures = Canvas(self.size, self.look, gap), list[Path](), 0, 0
        for _ in range(ATTEMPTS):
            paths = paths or self._beginnings(canvas, draws)
            length = canvas.count // 2
            if length == self.contour:
                return canvas, (paths[0], paths[1])
            if paths and all(canvas.extend(path, float(draws.uniform(1)[0, 0]), self.contour - length - 1)
                              for path in paths):
                best, failures = (length + 1, 0) if length >= best else (best, failures)
                continue
            failures += 1
            canvas.forget_after(2 * max(0, length - failures))
            paths = [canvas.resumed(path) for path in paths] if canvas.count else []
            best, failures = (best, failures) if paths else (0, 0)
        raise DataError(f"no two paths of {self.contour} dashes were found in {ATTEMPTS:,} trials.",
                        where=self.describe(), remedy="Lower task.contour, task.dash or task.gap, or raise task.size.")

    def _beginnings(self, canvas: Canvas, draws: Draws) -> list[Path]:
        """The first dashes of both paths; none if the second finds no room."""
        first = self._first(canvas, draws)
        second = None if first is None else self._second(canvas, draws, first)
        if first is not None and second is not None:
            return [first, second]
        canvas.forget_after(0)
        return []

    def _first(self, canvas: Canvas, draws: Draws) -> Path | None:
        """The first dash of the first path, near the middle."""
        room = max(self.size / 2 - 2 * self.look.apart, 2.0)
        y, x, turn = draws.uniform(3)[0]
        middle = (self.size - 1) / 2 * (1 + 1j)
        return canvas.begin(middle + room * complex(2 * y - 1, 2 * x - 1), 2 * math.pi * turn)

    def _second(self, canvas: Canvas, draws: Draws, first: Path) -> Path | None:
        away, turn = 2 * math.pi * draws.uniform(2)[0]
        return canvas.begin(first.tail + self.look.apart * np.exp(1j * away), turn)

    def _distract(self, canvas: Canvas, draws: Draws, gap: int) -> None:
        """Add a short path, if there is room for it."""
        for _ in range(RETRIES):
            y, x, turn = draws.uniform(3 * PLACES_TRIED).reshape(3, -1)
            tails, turns = (self.size - 1) * (y + 1j * x), 2 * math.pi * turn
            free: Bool[np.ndarray, " n"] = canvas.free(tails, tails + self.look.dash * np.exp(1j * turns))
            if not free.any():
                return
            chosen, before = int(np.argmax(free)), canvas.count
            path = canvas.begin(complex(tails[chosen]), float(turns[chosen]))
            assert path is not None, "the place is free"
            if all(canvas.extend(path, float(draws.uniform(1)[0, 0])) for _ in range(self.contour // 3 - 1)):
                return
            canvas.forget_after(before)
