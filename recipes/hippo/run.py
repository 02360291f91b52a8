"""What HiPPO's state remembers of its input, beside the state of a random unstructured matrix.

    python recipes/hippo/run.py

It takes some seconds. ``result.json`` holds the numbers, the README what they say, with pictures; a test computes them
again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from memory import lost, reconstructed, relative_error, remembered, signal, systems

from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure

FOLDER = Path(__file__).parent
STEPS, SIZES = 1000, (4, 8, 16, 32, 64)
SHOWN = (8, 16, 32)
HORIZON, CORRELATION, SIZE, DRAWS = 200, 20.0, 32, 5
LENGTHS = [float(f"{10 ** (-3 + each / 5):.3g}") for each in range(11)]
"""Lengths of a step that are tried; each system is shown with its best."""
DIGITS = 6


def rounded(values: Any) -> list[float]:
    """With as many digits as are kept."""
    return [float(f"{value:.{DIGITS}g}") for value in values]


def measure() -> dict[str, Any]:
    """Every number of the page."""
    u = signal(STEPS)
    curves = {size: reconstructed(remembered(u, size), STEPS) for size in SIZES}
    ages: dict[str, Any] = {}
    for kind, seeds in (("legs", [0]), ("random", range(DRAWS))):
        found = np.mean([lost(systems(kind, SIZE, LENGTHS, seed), HORIZON, CORRELATION).numpy() for seed in seeds], 0)
        best = int(found.mean(1).argmin())
        ages[kind] = {"dt": LENGTHS[best], "lost": rounded(found[best]), "mean": float(f"{found[best].mean():.6g}")}
    return {"signal": rounded(u), "errors": {str(size): rounded([relative_error(curves[size], u)])[0]
                                             for size in SIZES},
            "curves": {str(size): rounded(curves[size]) for size in SHOWN}, "ages": ages}


def pictures(found: dict[str, Any]) -> list[Figure]:
    """The input beside what states say of it, and what is lost by age."""
    at = [(step + 0.5) / STEPS for step in range(STEPS)]
    lines = {"input": found["signal"], **{f"N = {size}": curve for size, curve in found["curves"].items()}}
    names = {"legs": "HiPPO-LegS", "random": "random"}
    return [
        chart("reconstruction", "A signal of 1,000 steps from the last state", "The input over time, and the sums of "
              "Legendre polynomials that the last states of N numbers stand for.",
              [Curve(name, list(zip(at[::4], curve[::4], strict=True)), index)
               for index, (name, curve) in enumerate(lines.items())],
              "time, as a share of the whole", "input", width=560, height=280, letters=9),
        chart("ages", "What a state has lost of its input", "The share of the input's variance that the best linear "
              "map from the state does not say, against the age of the input.",
              [Curve(names[kind], list(enumerate(each["lost"])), index)
               for index, (kind, each) in enumerate(found["ages"].items())],
              "age in steps", "share of the variance lost", width=560, height=280, letters=12, include=(0.0, 1.0))]


def table(found: dict[str, Any]) -> str:
    """The errors of README.md."""
    sizes = " | ".join(f"N = {size}" for size in found["errors"])
    errors = " | ".join(f"{100 * error:.2g} %" for error in found["errors"].values())
    ages = found["ages"]
    return "\n".join([
        f"| | {sizes} |", f"| --- |{' ---: |' * len(found['errors'])}", f"| relative error | {errors} |", "",
        f"Of the last {HORIZON} inputs a state of {SIZE} numbers loses {100 * ages['legs']['mean']:.1f} % of the "
        f"variance with HiPPO-LegS (dt = {ages['legs']['dt']:g})",
        f"and {100 * ages['random']['mean']:.1f} % with random matrices (mean of {DRAWS}, "
        f"dt = {ages['random']['dt']:g})."])


def main(folder: Path = FOLDER) -> None:
    """Measure, and write the result, the pictures, and the table of the page."""
    found = measure()
    (folder / "result.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
    for figure in pictures(found):
        (folder / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(?s)<!-- table -->.*<!-- /table -->", lambda _: f"<!-- table -->\n{table(found)}\n<!-- /table -->",
                  text)
    (folder / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
