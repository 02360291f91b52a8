"""The overnight loop: its edits, both ways of keeping them, and the record."""

from __future__ import annotations

import hashlib
import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "overnight"
RECORD = RECIPE / "result.json"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))


def by_chance(settings: Mapping[str, Any], seed: int) -> tuple[float, float]:
    """A loss to which every setting but one owes nothing: a seed's chance, and 0.5 less with two layers."""
    drawn = hashlib.sha256(f"{seed} {sorted(settings.items())}".encode()).digest()
    chance = int.from_bytes(drawn[:4], "big") / 2**33
    return chance - 0.5 * (settings["layers"] == 2), -0.5 * (settings["layers"] == 2)


def test_an_edit_changes_one_setting_and_the_same_edits_are_drawn_again() -> None:
    edits = MAKE["edits"]()
    assert len(edits) == 100 and edits == MAKE["edits"]()
    for name, step in edits:
        after = MAKE["edited"](MAKE["START"], name, step)
        assert [key for key in after if after[key] != MAKE["START"][key]] == [name]
        assert after[name] in MAKE["CHOICES"][name]


def test_greed_keeps_chance_and_the_referee_what_is_there() -> None:
    greedily = MAKE["greedy"](by_chance)
    kept, refused = MAKE["refereed"](by_chance, lambda settings: True)
    assert refused == 0
    for kept_by, most in ((greedily, 100), (kept, 4)):  # a level of 0.01 after three looks
        again = MAKE["repeated"](kept_by, by_chance)
        assert [each["gain"] for each in again if each["edit"] == "layers"] == [0.5]
        assert all(each["gain"] == 0 for each in again if each["edit"] != "layers") and len(again) <= most
    assert any(each["edit"] != "layers" for each in greedily), "the chance of the loop's seed"


def test_an_edit_that_is_not_lawful_is_refused_and_counted() -> None:
    kept, refused = MAKE["refereed"](by_chance, lambda settings: settings["layers"] == 1)
    assert "layers" not in [each["edit"] for each in kept] and refused >= 1


def test_another_seed_alone_is_no_gain(tmp_path: Path) -> None:
    start = MAKE["START"]
    again = MAKE["repeated"]([{"edit": "seed", "before": start, "after": {**start, "seed": 5}, "told": 0.1}], by_chance)
    assert again[0]["gain"] == 0 and again[0]["p"] == 1


def test_the_test_is_students_one_sided_of_pairs() -> None:
    assert MAKE["better"]([1.0, 2.0, 3.0]) == pytest.approx(0.0370901, abs=1e-6)  # t = 3.4641 with two degrees
    assert MAKE["better"]([-1.0, -2.0, -3.0]) == pytest.approx(1 - 0.0370901, abs=1e-6)
    assert MAKE["better"]([0.0, 0.0, 0.0]) == 1


def test_a_run_is_made_once_and_a_design_s_file_does_not_name_how_it_is_trained(tmp_path: Path) -> None:
    made: list[int] = []

    def run(settings: Mapping[str, Any], seed: int) -> tuple[float, float]:
        made.append(seed)
        return float(seed), 0.0

    for _ in range(2):
        kept = MAKE["kept_in"](tmp_path / "runs.jsonl", run)
        assert kept(MAKE["START"], 3) == kept({**MAKE["START"], "seed": 9}, 3) == (3.0, 0.0)
    assert made == [3]
    start = MAKE["START"]
    assert MAKE["source"](start) == MAKE["source"]({**start, "lr": 0.02, "seed": 4})
    assert MAKE["source"](start) != MAKE["source"]({**start, "layers": 2})


def test_the_record_is_of_the_protocol_that_stands_here_and_the_page_is_made_of_it() -> None:
    result = json.loads(RECORD.read_text(encoding="utf-8"))
    assert result["protocol_sha256"] == MAKE["protocol_sha256"](), "run recipes/overnight/run.py again"
    page = (RECIPE / "README.md").read_text(encoding="utf-8")
    assert page.split(MAKE["BEGIN"])[1].split(MAKE["END"])[0] == MAKE["tables"](result)


def test_the_record_s_edits_follow_one_another_and_none_of_the_referee_s_reads_ahead() -> None:
    result = json.loads(RECORD.read_text(encoding="utf-8"))
    for loop in result["loops"].values():
        design = dict(MAKE["START"])
        for each in loop["kept"]:
            design[each["edit"]] = each["value"]
            assert each["told"] > 0
        assert design == loop["design"]
    referee = result["loops"]["by the referee"]["design"]
    assert (referee["ahead"], referee["norm"] == "time") == (0, False)
