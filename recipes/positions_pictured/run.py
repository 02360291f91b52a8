"""Measure what position schemes tell a model before it is trained: proximity, rotation, decay, equivariance.

    python recipes/positions_pictured/run.py
    python recipes/positions_pictured/run.py --tokens 512 --draws 20000 --models 50 --out larger

The first takes some seconds. ``result.json`` holds every number, the README what they say, with pictures; a test
computes them again. A study of another size goes into the folder of `--out`; with `--record` it takes the place of the
recorded one. `docs/generate.py` makes the same page for the documentation.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from position_page import page, study_figures
from position_study import RECORDED, PositionStudy, StudySize, study

from weft.core.strict_json import plain

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


def write(folder: Path, size: StudySize = RECORDED) -> None:
    """Measure, and write the result, the page and its pictures."""
    numbers = rounded(plain(study(size)))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    found = PositionStudy.from_json(json.loads((folder / "result.json").read_bytes()))
    (folder / "README.md").write_text(page(found, ""), encoding="utf-8")
    for figure in study_figures(found):
        (folder / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def main() -> None:
    """Measure at the size that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=RECORDED.tokens, help="positions of proximities")
    parser.add_argument("--draws", type=int, default=RECORDED.draws, help="random queries and keys of the bound")
    parser.add_argument("--models", type=int, default=RECORDED.models, help="random models of the probe")
    parser.add_argument("--out", type=Path, help="write to this folder")
    parser.add_argument("--record", action="store_true", help="replace the recorded result")
    given = parser.parse_args()
    size = StudySize(given.tokens, given.draws, given.models)
    if given.out is None and size != RECORDED and not given.record:
        parser.error("another size than the recorded one: give --out FOLDER, or --record to replace the record")
    if size.tokens < 4 or min(size.draws, size.models) < 1:
        parser.error("--tokens is at least 4, --draws and --models are at least 1")
    write(FOLDER if given.out is None else given.out, size)


if __name__ == "__main__":
    main()
