"""The recorded bytes of keys and values: of this study, as counted now, and as its README says."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

RECIPE = Path(__file__).parents[2] / "recipes" / "key_value_bytes"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))
CLOCK = 32


def test_the_record_is_of_the_study_that_stands_here() -> None:
    assert RECORD["study_sha256"] == MAKE["study_sha256"](), "the study has changed; run recipes/key_value_bytes/run.py"
    assert list(RECORD["bytes"]) == list(MAKE["study"]()["mixers"])


def test_the_bytes_are_those_of_the_states() -> None:
    """By hand, four layers of float32; and of two states, without storage."""
    numbers = {"multi-head": 2 * 8 * 64, "grouped-query": 2 * 2 * 64, "multi-query": 2 * 64, "latent": 128 + 32}
    for name, each in numbers.items():
        assert RECORD["bytes"][name] == {str(context): 4 * 4 * each * context + CLOCK
                                         for context in MAKE["study"]()["contexts"]}
    assert set(RECORD["bytes"]["window"].values()) == {4 * 4 * 2 * 8 * 64 * 512 + CLOCK}
    with torch.device("meta"):
        for name in ("window", "latent"):
            model = MAKE["build"](MAKE["study"]()["mixers"][name])
            assert MAKE["state_bytes"](model, 1024) == RECORD["bytes"][name]["1024"]


def test_the_readme_says_them() -> None:
    text = (RECIPE / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.partition("**The time")[0].splitlines() if line.startswith("| ")][2:]
    found = [float(row[3]) for row in rows]
    assert found == [round(each["8192"] / 2**20, 1) for each in RECORD["bytes"].values()]


def test_the_pictures_and_the_times_are_those_of_the_record() -> None:
    """Word for word; a curve for each kind of attention, through all contexts."""
    figures = MAKE["pictures"](RECORD)
    assert [figure.name for figure in figures] == ["bytes", "milliseconds-with", "milliseconds-without"]
    for figure in figures:
        written = (RECIPE / f"{figure.name}.svg").read_text(encoding="utf-8")
        assert written == figure.alone(), "run it with --draw"
        root = ElementTree.fromstring(written)
        groups = [each for each in root.iter("{http://www.w3.org/2000/svg}g") if "data-curve" in each.attrib]
        assert [each.attrib["data-curve"] for each in groups] == list(RECORD["bytes"])
        assert all(len(each[0].attrib["d"].split("L")) == len(MAKE["study"]()["contexts"]) for each in groups)
    assert MAKE["table"](RECORD) in (RECIPE / "README.md").read_text(encoding="utf-8"), "run it with --draw"
