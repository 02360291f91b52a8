"""What the two dots of a Pathfinder picture say without the paths: the share of right answers of the best threshold on
their distance.

    python recipes/pathfinder/distance.py

The threshold, and the side of it that means "joined", are chosen on pictures to train on and judged on others. A model
that is right no more often than this need not have followed a path.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from jaxtyping import Bool, Float64

from weft.data.generated.pathfinder import Pathfinder
from weft.tasks.class_rows import PathfinderConfig

PICTURES = 2000


def dots(generator: Pathfinder, part: str, count: int) -> tuple[Float64[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """The distance of the dots in pixels, and whether one path joins them, for each of ``count`` pictures."""
    pictures = [generator.picture(generator.seed_of(0, part), index) for index in range(count)]
    return (np.array([abs(each.dots[0] - each.dots[1]) for each in pictures]),
            np.array([each.joined for each in pictures], dtype=bool))


def threshold(distance: Float64[np.ndarray, " N"], joined: Bool[np.ndarray, " N"]) -> tuple[float, bool]:
    """The distance that separates joined dots from others in the most pictures, and whether joined ones are nearer."""
    return max(((float(cut), nearer) for cut in np.unique(distance) for nearer in (True, False)),
               key=lambda found: share_right(distance, joined, *found))


def share_right(distance: Float64[np.ndarray, " N"], joined: Bool[np.ndarray, " N"], cut: float, nearer: bool) -> float:
    """The share of pictures in which the side of ``cut`` says whether the dots are joined."""
    return float(np.mean(((distance < cut) == nearer) == joined))


def best_share(generator: Pathfinder, count: int) -> float:
    """The share of right answers on ``count`` test pictures, with the threshold of as many pictures to train on."""
    return share_right(*dots(generator, "test", count), *threshold(*dots(generator, "train", count)))


def main() -> None:
    """Print the share for the pictures of study.yaml."""
    task = yaml.safe_load((Path(__file__).parent / "study.yaml").read_text(encoding="utf-8"))["tasks"]["pathfinder"]
    generator = PathfinderConfig(**{key: value for key, value in task.items() if key != "kind"}).generator
    print(f"{best_share(generator, PICTURES):.1%} of {PICTURES:,} pictures")


if __name__ == "__main__":
    main()
