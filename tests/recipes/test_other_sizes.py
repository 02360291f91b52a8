"""Recipes at another size than the recorded one: refused where the result would take the recorded one's place unasked,
and written elsewhere."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
SMALL = {
    "cheating": "--steps 2 --seeds 1 --tokens 8 --d-model 8 --rows 2",
    "norms_and_residuals": "--scale 0.001 --seeds 1 --tokens 8 --d-model 8 --depths 1 2",
    "positions_pictured": "--tokens 16 --draws 3 --models 1",
    "windows": "--lengths 64 128 --window 16 --heads 1 --size 8 --rounds 1"}
"""The smallest size of each."""


def run(name: str, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *options.split()])
    monkeypatch.syspath_prepend(RECIPES / name)
    made: dict[str, Any] = runpy.run_path(str(RECIPES / name / "run.py"))
    sys.modules.pop("windows", None)  # the neighbour of one of them
    made["main"]()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("name", SMALL)
def test_another_size_needs_a_folder_or_to_be_told(name: str, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(RECIPES / name)
    with pytest.raises(SystemExit) as caught:
        run(name, SMALL[name], monkeypatch)
    assert caught.value.code == 2 and "give --out FOLDER, or --record to replace the record" in capsys.readouterr().err
    assert contents(RECIPES / name) == before


@pytest.mark.parametrize("name", ["cheating", "positions_pictured"])
def test_it_is_written_to_its_folder(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(RECIPES / name)
    run(name, f"{SMALL[name]} --out {tmp_path / 'out'}", monkeypatch)
    assert contents(RECIPES / name) == before
    assert set(contents(tmp_path / "out")) == {each for each in before if not each.endswith(".py")}
    assert json.loads((tmp_path / "out" / "result.json").read_text())["size"]["tokens"] in (8, 16)
