"""Keep what `make run` found as what the README quotes: ``python recipes/six_ages/record.py runs/six_ages``.

``result.json`` is the study's own; ``inputs.json`` has a hash of the study's file and of each of its models, so that a
test can tell when the figures are of something else than what stands there now. The tables of the README, each row
with its learning rates and with the flag of one at the edge, the learning curves above them and, where there is a
Chromium, the picture of the report are made from the result. Nothing is written of a result whose intervals do not
follow from its own runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from weft.comparison.folder import read_result, rerender
from weft.comparison.results import StudyModel
from weft.comparison.study_result import StudyResult
from weft.comparison.verdict import disagreement
from weft.disk.atomic import write_file
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure

ROOT = Path(__file__).parents[2]
CURVES = ROOT / "docs/curves.svg"
HERE, STUDY, PICTURE = ROOT / "recipes/six_ages", ROOT / "examples/six_ages.yaml", ROOT / "docs/report.png"
SIZE, SCALE = (1240, 2280), 0.7
"""Of the page that is in the picture, down to the table of results, in its own pixels, and of the picture."""


def inputs() -> dict[str, str]:
    """A hash of the study without its models, and of each of these as the study runs it: its preset with the study's
    changes, whichever of both says a value. ``recipes/defaults.json`` has what these leave to defaults."""
    study = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    models = runpy.run_path(str(ROOT / "recipes/defaults.py"))["of_models"](study)
    plain = {key: value for key, value in study.items() if key != "models"}
    return {STUDY.name: _digest(plain), **{name: _digest(each) for name, each in models.items()}}


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def curves(result: StudyResult) -> Figure:
    """Bits per byte of the test text against tokens read, the mean over runs; a dot for a model that counts. Curves end
    at the figures of the README's table."""
    drawn = [Curve(entry.name, _course(entry), style, dots=not entry.trainable)
             for style, entry in enumerate(result.entries)]
    told = (f"{result.seeds} runs of each model, their mean on the test text by the tokens that they have read: at the "
            "end that of the whole, before it by as much more as on a sample of it. Lower is better.")
    return chart("curves", "Learning curves of six ages of language models", told, drawn, "tokens read",
                 "bits per byte of held-out text", width=720, height=330)


def _course(entry: StudyModel) -> list[tuple[float, float]]:
    """The mean of an entry's runs at each number of tokens at which all of them were measured: during training on a
    sample, of which documents are easier or harder than the whole text, so that only its differences from the end are
    taken."""
    found: dict[int, list[float]] = defaultdict(list)
    for run in entry.finished:
        assert run.bits_per_byte is not None, "a finished run has a figure"
        end = run.bits_per_byte - run.curve[-1].bits_per_byte
        for tokens, value in {point.tokens: point.bits_per_byte for point in run.curve}.items():
            found[tokens].append(value + end)
    return [(tokens, fmean(values)) for tokens, values in sorted(found.items()) if len(values) == len(entry.finished)]


def draw(page: Path, picture: Path, browser: str) -> None:
    """The top of a page as a PNG, in its light theme."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                        "--disable-background-networking", "--disable-component-update", "--disable-sync",
                        f"--force-device-scale-factor={SCALE}", f"--user-data-dir={profile}", "--hide-scrollbars",
                        f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={picture}", page.resolve().as_uri()],
                       check=True, capture_output=True)


def main() -> int:
    """Copy, hash, draw, and write the README's tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, nargs="?", default=ROOT / "runs/six_ages", help="the study's folder")
    folder = options.parse_args().folder
    result = read_result(folder)
    unfinished = [run.status for entry in result.entries for run in entry.runs if run.status != "finished"]
    if unfinished:
        print(f"{len(unfinished)} runs of {folder} are not finished; run it to its end first", file=sys.stderr)
        return 1
    if wrong := disagreement(result):
        print(f"{wrong}; run the study again", file=sys.stderr)
        return 1
    write_file(HERE / "result.json", json.dumps(result.to_json()) + "\n")
    write_file(HERE / "inputs.json", json.dumps(inputs(), indent=1) + "\n")
    write_file(CURVES, curves(result).alone())
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium here, so the picture stays as it is", file=sys.stderr)
    else:
        draw(rerender(folder), PICTURE, browser)
    subprocess.run([sys.executable, str(ROOT / "docs/generate.py")], check=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
