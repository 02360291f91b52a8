"""The record of a million tokens in bounded memory: of this study, with states as counted now, and as its page says."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

RECIPE = Path(__file__).parents[2] / "recipes" / "million_tokens"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))


def test_the_record_is_of_the_study_that_stands_here() -> None:
    assert RECORD["study_sha256"] == MAKE["study_sha256"](), "the study has changed; run recipes/million_tokens/run.py"
    assert list(RECORD["runs"]) == MAKE["study"]()["runs"]
    assert MAKE["table"](RECORD) in (RECIPE / "README.md").read_text(encoding="utf-8"), "run it with --draw"
    assert (RECIPE / "bytes.svg").read_text(encoding="utf-8") == MAKE["picture"](RECORD).alone(), "run it with --draw"


def test_states_are_counted_and_only_that_of_full_attention_grows() -> None:
    for name, line in RECORD["bytes"].items():
        assert MAKE["state_bytes"](name, 2**20) == line[str(2**20)]
        assert len(set(line.values())) == (len(line) if name == "attention" else 1)
        if name in RECORD["runs"]:
            assert RECORD["runs"][name]["state"] == [line[str(2**20)]] * 2


def test_reading_takes_no_memory_that_grows_with_the_text() -> None:
    """A quarter of what full attention would keep is far above the activations of a piece."""
    assert all(run["memory"] < RECORD["bytes"]["attention"][str(2**20)] / 4 for run in RECORD["runs"].values())


def test_the_cut_into_pieces_changes_rounding_alone() -> None:
    for name, run in RECORD["runs"].items():
        assert run["difference"] < 1e-3 * run["largest"], name


def test_a_run_of_a_few_tokens() -> None:
    found = [MAKE["read"]("RWKV-7", 300, piece) for piece in (128, 100)]
    assert max(abs(a - b) for a, b in zip(found[0]["logits"], found[1]["logits"], strict=True)) < 1e-5
    assert found[0]["state"][0] == found[0]["state"][1] == RECORD["bytes"]["RWKV-7"][str(2**20)]
