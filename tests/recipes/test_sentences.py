"""What pages of recipes say in words is what their records hold: tables, verdicts, and who is better than whom."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
TABLES = ("penn_treebank", "nanogpt_cpu", "multi30k")
MAKE: dict[str, dict[str, Any]] = {name: runpy.run_path(str(RECIPES / name / "run.py"))
                                   for name in (*TABLES, "encoder_positions", "pretraining")}


def record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECIPES / name / "result.json").read_text("utf-8"))
    return found


def readme(name: str) -> str:
    return (RECIPES / name / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_that_of_the_record(name: str) -> None:
    assert MAKE[name]["table"](record(name)) in readme(name), f"write the table of recipes/{name} anew"


def test_the_other_pages_are_those_of_their_records() -> None:
    assert MAKE["encoder_positions"]["page"](record("encoder_positions")) in readme("encoder_positions")
    assert MAKE["pretraining"]["page"](record("pretraining")) == readme("pretraining")


def test_a_text_that_was_read_several_times_is_not_called_as_many_tokens() -> None:
    """929,590 words of training text, as the page counts them."""
    found = {name: each["training_tokens"] for name, each in record("penn_treebank").items()}
    assert "929,590 words to train on" in readme("penn_treebank")
    for name in ("lstm", "transformer"):
        assert f"13,000,000, the text {found[name] / 929_590:.0f} times |" in readme("penn_treebank")
    tuned = [name for name, each in record("penn_treebank").items() if each.get("trials")]
    assert tuned == ["transformer"] and "The Transformer's learning rate alone was tuned" in readme("penn_treebank")


def test_a_speed_is_a_ratio_only_where_no_rounds_overlap() -> None:
    """The median of three rounds was 1.03 times as fast, and their mean is slower."""
    rows = {"weft": {"rounds": [0.095, 0.083, 0.085]}, "loop": {"rounds": [0.087, 0.081, 0.090]}}
    found = {"rows": rows, "rival": "loop", "ratio": 1.03}
    assert MAKE["nanogpt_cpu"]["verdict"](found) == (
        "Not told apart from loop in speed: rounds of 83.0 to 95.0 ms, 81.0 to 90.0 ms.")
    rows["weft"]["rounds"] = [0.07, 0.08, 0.075]
    assert MAKE["nanogpt_cpu"]["verdict"](found) == "1.03 times the speed of loop."


def test_runs_that_agree_in_every_digit_have_no_interval() -> None:
    """Each gives all sentences one class, which tells nothing of another seed."""
    assert MAKE["encoder_positions"]["interval"]([0.0, 0.0, 0.0]) == "0.0000 in every run"
    assert MAKE["pretraining"]["written"]([0.0, 0.0, 0.0]) == "0.0 in every run"
    assert " ± " in MAKE["encoder_positions"]["interval"]([0.1, 0.0, 0.0])
    ways = {"all": {"scores": [0.0, 0.0]}, "none": {"scores": [0.0, 0.0]}, "lora": {"scores": [0.1, 0.0]}}
    assert MAKE["pretraining"]["verdict"](ways, "CoLA", "all", "none") == (
        "CoLA: all weights +0.0 against no pre-training in every run")
    assert "not told apart" in MAKE["pretraining"]["verdict"](ways, "CoLA", "lora", "none")


def better(study: str) -> dict[str, set[str]]:
    """By model those than which it is better, as the tests have it."""
    found: dict[str, set[str]] = {}
    for pair in record(study)["differences"]:
        first, second = pair["first"], pair["second"]
        if not pair["tied"]:
            low, high = (first, second) if pair["over_seeds"]["mean"] < 0 else (second, first)
            found.setdefault(low, set()).add(high)
    return found


def test_the_page_of_mixers_ranks_those_alone_that_are_told_apart() -> None:
    page = " ".join(readme("mixers").split())
    rest = {"rwkv7", "gated_delta_net", "hybrid"}
    assert better("mixers/equal_parameters") == {"mamba": rest - {"gated_delta_net"}}
    assert better("mixers/equal_flops") == {"mamba": rest, "rwkv7": {"hybrid"}}
    assert ("At equal tokens mamba is better than rwkv7 and hybrid, and at equal FLOPs than rwkv7, gated_delta_net and "
            "hybrid, where rwkv7 is better than hybrid too; no other pair is told apart, attention from none.") in page
    runs = {entry["name"]: entry["runs"] for entry in record("mixers/equal_parameters")["entries"]}
    faster, *others = sorted(runs["gated_delta_net"], key=lambda run: -run["lr"])
    lost = sorted(round(run["bits_per_byte"] - faster["bits_per_byte"], 2) for run in others)
    assert (faster["lr"], [run["lr"] for run in others], lost) == (0.0333333, [0.01, 0.01], [0.13, 0.17])
    assert "chose 0.0333 is 0.13 and 0.17 bits per byte better than the two that chose 0.01" in page
    assert better("mixers/equal_seconds") == {"attention": {"mamba", *rest}, "mamba": rest}
    assert ("At equal seconds attention is better than mamba, rwkv7, gated_delta_net and hybrid, and mamba is better "
            "than rwkv7, gated_delta_net and hybrid; no other pair is told apart.") in page


def test_the_page_of_hippo_says_what_its_study_found() -> None:
    """What is told apart, the rates of S4D, the trials of dense matrices beyond the edge, and windows four times as
    long."""
    page, entries = " ".join(readme("hippo").split()), record("hippo/unstructured")["entries"]
    runs = {entry["name"]: entry["runs"] for entry in entries}
    assert better("hippo/unstructured") == {"s4": {"legs", "random"}}
    assert ("S4 is better than both dense matrices; it is not told apart from S4D, one of whose runs chose a lower "
            "rate than the other two.") in page
    assert sorted(run["lr"] for run in runs["s4d"]) == [0.01, 0.0333333, 0.0333333]
    assert all(low["bits_per_byte"] < high["bits_per_byte"]
               for low, high in zip(runs["legs"], runs["random"], strict=True))
    tried = [{trial["lr"]: trial["bits_per_byte"] for trial in run["trials"]} for run in runs["legs"] + runs["random"]]
    beyond = [(each[0.0333333], each[0.01]) for each in tried]
    assert sum(bits is None for bits, _ in beyond) == 3
    assert all(bits > best for bits, best in beyond if bits is not None)
    assert "three of the six trials of dense matrices diverged and the others are worse than at 0.01" in page
    for name, each in runs.items():
        lost = [run["by_length"][2]["bits_per_byte"] - run["by_length"][1]["bits_per_byte"] for run in each]
        assert all(1 < more < 3 for more in lost) if name == "random" else max(lost) < 0.003


def test_the_page_of_performer_says_what_trials_at_other_rates_came_to() -> None:
    tried = json.loads((RECIPES / "performer" / "trials.json").read_text("utf-8"))["bits_per_byte"]
    page = " ".join(readme("performer").split())
    first, rotated = (tried[name] for name in ("performer", "performer_rope"))
    assert min(first, key=first.get) == "0.00333333" and rotated["0.0333333"] is None
    assert rotated["0.01"] < rotated["0.00333333"] and tried.keys() == {"performer", "performer_rope"}
    assert (f"`performer` has {first['0.01']:.3f} at 0.01, {first['0.00333333']:.3f} at 0.00333 and "
            f"{first['0.0333333']:.3f} at 0.0333") in page
    assert (f"`performer_rope` has {rotated['0.01']:.3f} at 0.01, {rotated['0.00333333']:.3f} at 0.00333, and diverges "
            "at 0.0333") in page
