"""The recipes that pre-train, fine-tune and compare optimisers: what is recorded is of the settings that stand there,
and a page says of a result what its figures say."""

from __future__ import annotations

import copy
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from weft.training import parse_run

RECIPES = Path(__file__).parents[2] / "recipes"
MAKE: dict[str, dict[str, Any]] = {name: runpy.run_path(str(RECIPES / name / "run.py"))
                                   for name in ("chat_model", "pretraining", "optimizers", "width_transfer")}


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECIPES / name / "result.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize("name", ["chat_model", "pretraining", "optimizers"])
def test_a_record_is_of_the_settings_that_stand_there(name: str) -> None:
    """And without a record the page shows no figures."""
    made = "study_sha256" if name == "optimizers" else "settings_sha256"
    if (RECIPES / name / "result.json").exists():
        assert recorded(name)[made] == MAKE[name][made]()
    else:
        assert "\n| " not in (RECIPES / name / "README.md").read_text("utf-8"), "a table without its record"


def test_every_way_of_fine_tuning_trains_what_it_says(tmp_path: Path) -> None:
    """The head alone, adapters and the head, or everything; the sizes are those of the recorded runs."""
    module = MAKE["pretraining"]
    learned = {way: each["trained"] for way, each in recorded("pretraining")["tasks"]["sst2"].items()}
    model = {**module["read_plain"](RECIPES / "pretraining" / "pretrain.yaml")["model"], "vocab_size": 2048,
             "head": {"kind": "pooled", "pool": "last", "n_classes": 2}}
    built = parse_run({"model": model, "task": "classify", "data": {"path": str(tmp_path)},
                       "training": {"steps": 1}}).model.build()
    whole = sum(each.numel() for each in built.parameters())
    head = sum(each.numel() for each in built.head.parameters())
    assert learned["none"] == learned["all"] == whole
    assert learned["head"] == learned["frozen"] == head < learned["lora"] < whole / 5


@pytest.mark.parametrize(("shift", "said"), [(0.3, "more often"), (-0.7, "the worse answer"), (None, "not told apart")])
def test_the_page_of_the_chat_model_says_what_the_accuracy_says(shift: float | None, said: str) -> None:
    seeds = copy.deepcopy(recorded("chat_model")["seeds"])
    for place, seed in enumerate(seeds):
        seed["dpo"]["measures"]["accuracy"] = (0.3, 0.5, 0.7)[place] if shift is None else 0.5 + shift + 0.01 * place
    assert said in MAKE["chat_model"]["verdict"](seeds)
    assert MAKE["chat_model"]["verdict"](seeds[:1]) == "One seed has no interval."


@pytest.mark.parametrize(("wide", "said"), [
    (0.004, "stays where it is"), (0.001, "falls to 1/4"), (0.016, "rises 4-fold")])
def test_the_page_of_widths_says_where_the_best_rate_went(wide: float, said: str) -> None:
    def losses(best: float) -> dict[str, list[float]]:
        return {f"{rate:g}": [abs(rate - best), abs(rate - best)] for rate in (0.001, 0.004, 0.016)}
    module = MAKE["width_transfer"]
    assert module["moved"]({"8": losses(0.004), "32": losses(wide)}) == said
    assert module["dearer"](losses(0.004), 0.004) == "0" and module["dearer"](losses(0.004), 0.001).startswith("0.003")


def test_the_page_of_optimisers_names_the_better_one_of_a_pair() -> None:
    verdict = MAKE["optimizers"]["verdict"]
    pair = {"first": "muon", "second": "adamw", "tied": False, "p": 0.01, "mean": -0.1, "low": -0.15, "high": -0.05}
    assert verdict(pair) == "muon is better than adamw by 0.1000 (0.0500 to 0.1500), p = 0.01"
    assert verdict({**pair, "mean": 0.1, "low": 0.05, "high": 0.15}).startswith("adamw is better than muon by 0.1000")
    assert verdict({**pair, "tied": True}) == "muon and adamw are not told apart (difference 0.1000)"


def test_differences_of_ways_are_within_seeds() -> None:
    """Seeds that differ by far more than the ways do not hide that one is better in each of them."""
    ways = {"all": {"scores": [0.5, 0.7, 0.9]}, "none": {"scores": [0.39, 0.6, 0.81]}}
    assert MAKE["pretraining"]["verdict"](ways, "SST-2", "all", "none").startswith(
        "SST-2: all weights +10.0 against no pre-training (± 2.5, told apart)")


def test_ways_that_give_every_sentence_one_class_are_named() -> None:
    """Where all correlations are 0; a task whose ways all score is not mentioned."""
    ways = {"all": {"scores": [0.0, 0.0]}, "lora": {"scores": [0.0, 0.1]}, "none": {"scores": [0.0, 0.0]}}
    line, _ = MAKE["pretraining"]["silent"]({"sst2": {"all": {"scores": [0.6, 0.7]}}, "cola": ways})
    assert line.startswith("On CoLA every seed gives all sentences one class in: all weights, no pre-training. ")
