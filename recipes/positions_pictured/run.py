"""Measure what position schemes tell a model before it is trained: proximity, rotation, decay, equivariance.

    python recipes/positions_pictured/run.py

It takes some seconds. ``result.json`` holds every number, the README what they say, with pictures; a test computes
them again. `docs/generate.py` makes the same page for the documentation.
"""

from __future__ import annotations

import json
from pathlib import Path

from weft.core.strict_json import plain
from weft.pictures.position_page import page, study_figures
from weft.pictures.position_study import PositionStudy, study

FOLDER = Path(__file__).parent
DIGITS = 9
"""Significant digits of the numbers that are kept: the last ones differ between machines."""


def rounded(value: object) -> object:
    """Plain data with numbers of `DIGITS` digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {name: rounded(each) for name, each in value.items()} if isinstance(value, dict) else value


def main(folder: Path = FOLDER) -> None:
    """Measure, and write the result, the page and its pictures."""
    numbers = rounded(plain(study()))
    (folder / "result.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    found = PositionStudy.from_json(json.loads((folder / "result.json").read_bytes()))
    (folder / "README.md").write_text(page(found, ""), encoding="utf-8")
    for figure in study_figures(found):
        (folder / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


if __name__ == "__main__":
    main()
