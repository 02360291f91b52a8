"""The recipes on generated rows: every contestant can be run, a tiny study writes its page, and a recorded one is of
the study that stands there."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

RECIPES = Path(__file__).parents[2] / "recipes"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPES / "rows" / "run.py"))
STUDIES = ("recall", "selective", "pathfinder")
TINY: dict[str, Any] = {
    "tasks": {"mqar": {"kind": "mqar", "length": 8, "pairs": 2, "symbols": 8, "held_out": 20, "rows": 50}},
    "lengths": {"mqar": [8, 16]}, "model": {"kind": "decoder", "context": 8}, "blocks": 1, "sizes": [4, 8],
    "contestants": {"LSTM": ["lstm"], "trigram": {"kind": "ngram", "order": 3}},
    "rates": [0.001, 0.01], "seeds": [0, 1], "steps": 2, "batch_size": 4, "eval_rows": 10}


@pytest.mark.parametrize("name", STUDIES)
def test_every_contestant_can_be_trained_on_its_task(name: str) -> None:
    study = MAKE["study_of"](RECIPES / name)
    for task in study["tasks"]:
        for contestant in study["contestants"]:
            size = max(MAKE["sizes_of"](study, contestant))
            run = MAKE["run_of"](study, task, contestant, size, 0.001, 0)
            assert run.made_task().problems(run.model.build()) == []


def test_a_tiny_study_writes_its_page_and_pictures(tmp_path: Path) -> None:
    rows = [MAKE["outcome"](TINY, "mqar", name, size, "cpu") for name in TINY["contestants"]
            for size in MAKE["sizes_of"](TINY, name)]
    assert [(each["contestant"], each["size"]) for each in rows] == [
        ("LSTM", 4), ("LSTM", 8), ("trigram", 0)]
    assert all(len(each["tried"]) == (0 if each["contestant"] == "trigram" else 2) for each in rows)
    assert all(len(values) == 2 and min(values) >= 0 for each in rows for values in each["accuracy"].values())
    assert rows[0]["state_bytes"]["8"] < rows[1]["state_bytes"]["8"] == rows[1]["state_bytes"]["16"]
    result = {"study": TINY, "rows": rows, "torch": "2", "processor": "one"}
    (tmp_path / "README.md").write_text(f"# A page\n{MAKE['BEGIN']}old\n{MAKE['END']}\nand after\n", encoding="utf-8")
    MAKE["write"](result, tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    values = 100 * np.array(rows[1]["accuracy"]["16"])
    half = stats.t.ppf(0.975, 1) * values.std(ddof=1) / np.sqrt(2)
    assert f"| {values.mean():.1f} ± {half:.1f} |" in page and "old" not in page and page.endswith("and after\n")
    assert (tmp_path / "mqar-state.svg").is_file() and (tmp_path / "mqar-length.svg").is_file()


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_says_what_the_record_says(name: str) -> None:
    page, record = (RECIPES / name / "README.md").read_text(encoding="utf-8"), RECIPES / name / "result.json"
    if record.exists():
        kept = json.loads(record.read_text(encoding="utf-8"))
        assert kept["study_sha256"] == MAKE["study_sha256"](MAKE["study_of"](RECIPES / name)), "run it again"
        assert MAKE["tables"](kept, [figure.name for figure in MAKE["pictures"](kept)]) in page
    else:
        assert "| contestant |" not in page, "a table without its record"
