"""Wherever a committed study chose a learning rate at the edge of those that it tried, its page says so."""

from __future__ import annotations

import copy
import json
import re
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
RECORDS = {path.relative_to(RECIPES).as_posix(): json.loads(path.read_text("utf-8"))
           for path in sorted(RECIPES.rglob("*.json"))}
PAGES = {"six_ages/result.json": RECIPES.parent / "README.md"}
"""Pages that stand elsewhere than in the README of the record's folder or of the one above."""
ONE_RATE = {"chat_model", "cheating", "defaults.json", "digits", "encoder_positions", "error_rates",
            "ladder_error_rates", "grouped_queries", "hippo/result.json", "key_value_bytes", "lengths",
            "million_tokens", "mixture", "multi30k", "nanogpt_cpu", "norms_and_residuals", "overnight",
            "performer/rope", "positions_pictured", "repeatability", "resume", "scan_costs", "seen_text",
            "six_ages/inputs.json", "windows"}
"""Records of studies in which nothing was chosen among rates that the record holds."""
SAYS = re.compile(r"\bedge\b|(lowest|highest) or (the )?(lowest|highest)|are the highest|lie\s+beyond"
                  r"|at\s+a\s+lower\s+rate")


@final
class Search(NamedTuple):
    """One choice among learning rates.

    Attributes:
        names: what the page calls the model, its task and its size.
        chosen: the rate that was taken.
        tried: all rates, the chosen one among them.
    """

    names: tuple[str, ...]
    chosen: float
    tried: tuple[float, ...]

    @property
    def at_edge(self) -> bool:
        return self.chosen in (min(self.tried), max(self.tried))


def of_runs(record: Mapping[str, Any]) -> Iterator[Search]:
    """Of a study that `weft compare` ran."""
    for entry in record["entries"]:
        for run in entry["runs"]:
            if run["trials"]:
                yield Search((entry["name"],), run["lr"], tuple(trial["lr"] for trial in run["trials"]))


def of_rows(record: Mapping[str, Any]) -> Iterator[Search]:
    """Of a study on generated rows."""
    study = record["study"]
    for row in record["rows"]:
        if row["tried"]:
            several = [row["task"]] * (len(study["tasks"]) > 1) + [str(row["size"])] * (len(study["sizes"]) > 1)
            yield Search((row["contestant"], *several), row["rate"], tuple(map(float, row["tried"])))


def of_optimizers(record: Mapping[str, Any]) -> Iterator[Search]:
    for name, each in record["models"].items():
        for chosen, tried in zip(each["lr"], each["trials"], strict=True):
            yield Search((name,), chosen, tuple(map(float, tried)))


def of_pretraining(record: Mapping[str, Any]) -> Iterator[Search]:
    ways = runpy.run_path(str(RECIPES / "pretraining" / "run.py"))["WAYS"]
    titles = {"sst2": "SST-2", "cola": "CoLA"}
    for task, found in record["tasks"].items():
        for way, each in found.items():
            yield Search((titles[task], ways[way][0]), each["rate"], tuple(map(float, each["tried"])))


def of_presets(record: Mapping[str, Any]) -> Iterator[Search]:
    """The rates beside the chosen values of all else."""
    make = runpy.run_path(str(RECIPES / "presets" / "run.py"))
    rate = "training.optimizer.lr"
    for preset, each in record["presets"].items():
        best = make["chosen"](preset, each["runs"])
        yield Search((preset,), best[rate], tuple(one[rate] for one in make["candidates"](preset)
                                                  if {**one, rate: best[rate]} == best))


def of_tuning(record: Mapping[str, Any]) -> Iterator[Search]:
    """The rate with the best mean over seeds, after all steps."""
    for name, each in record["models"].items():
        best = each["rates"][int(np.argmin(np.mean(each["test"], axis=1)))]
        yield Search((name,), best, tuple(each["rates"]))


def of_widths(record: Mapping[str, Any]) -> Iterator[Search]:
    for kind, widths in record["losses"].items():
        for width, losses in widths.items():
            best = min(losses, key=lambda rate: np.mean(losses[rate]))
            yield Search((kind, width), float(best), tuple(map(float, losses)))


def of_trials(record: Mapping[str, Any]) -> Iterator[Search]:
    """Of Penn Treebank's Transformer, whose run had the best of its trials."""
    for name, each in record.items():
        if each.get("trials"):
            best = min(each["trials"], key=each["trials"].get)
            yield Search((name,), float(best), tuple(map(float, each["trials"])))


def of_performer(record: Mapping[str, Any]) -> Iterator[Search]:
    """Trials that came after the study, whose runs have the rate 0.01."""
    for name, tried in record["bits_per_byte"].items():
        yield Search((name,), float(min(tried, key=lambda rate: tried[rate] or np.inf)), tuple(map(float, tried)))


READERS: dict[str, Callable[[Mapping[str, Any]], Iterator[Search]]] = {
    "optimizers": of_optimizers, "pretraining": of_pretraining, "presets": of_presets, "tuning": of_tuning,
    "width_transfer": of_widths, "penn_treebank": of_trials, "performer/trials.json": of_performer}


def searches(name: str, record: Any) -> list[Search]:
    """Every choice of a record, in the form that it has."""
    if "entries" in record:
        return list(of_runs(record))
    if "rows" in record and "study" in record:
        return list(of_rows(record))
    reader = READERS.get(name) or READERS.get(name.partition("/")[0])
    return [] if reader is None else list(reader(record))


def page_of(name: str) -> str:
    """The page on which a record's figures stand."""
    folder = (RECIPES / name).parent
    near = [each / "README.md" for each in (folder, folder.parent) if (each / "README.md").is_file()]
    return PAGES.get(name, near[0]).read_text("utf-8")


def told(page: str, search: Search) -> bool:
    """Whether a page says of a choice that it lies at the edge: by a mark in its line of a table that the page
    explains, or in a sentence that names the model (or all of them) and the edge."""
    marked = any(all(part in line for part in search.names) and f"| {search.chosen:g}! |" in line
                 for line in page.splitlines())
    if marked and re.search(rf"`!`: .*({SAYS.pattern})", page):
        return True
    return any(SAYS.search(sentence) and (sentence.endswith("may lie beyond: all.") or all(
        re.search(rf"(?<!\w){re.escape(part)}(?!\w)", sentence, re.IGNORECASE) for part in search.names))
        for sentence in sentences(page))


def sentences(page: str) -> Iterator[str]:
    """Of every paragraph, line of a list and line of a table."""
    for block in re.split(r"\n\s*\n|\n(?=[|*!#-])", page):
        yield from re.split(r"(?<=[.;])\s+", " ".join(block.split()))


def untold(searched: Sequence[Search], page: str) -> list[Search]:
    """The choices at an edge of which a page says nothing."""
    return [each for each in searched if each.at_edge and not told(page, each)]


def is_listed(name: str, names: set[str] | Mapping[str, Any]) -> bool:
    return any(name == each or name.startswith(f"{each}/") for each in names)


@pytest.mark.parametrize("name", RECORDS)
def test_a_rate_at_the_edge_of_those_tried_is_told(name: str) -> None:
    found = searches(name, RECORDS[name])
    assert bool(found) is not is_listed(name, ONE_RATE), "read its searches here, or list it among those of one rate"
    if found:
        assert untold(found, page_of(name)) == [], "the page does not say that a better rate may lie beyond"


@pytest.mark.parametrize("name", [name for name in RECORDS if "entries" in RECORDS[name] and "performer" not in name])
def test_a_changed_record_of_a_study_is_seen(name: str) -> None:
    """With the rates above a chosen one gone, it is the highest, and no page of these says so."""
    record = copy.deepcopy(RECORDS[name])
    entry = next(entry for entry in record["entries"] if entry["runs"][0]["trials"])
    run = entry["runs"][0]
    run["trials"] = [trial for trial in run["trials"] if trial["lr"] <= run["lr"]]
    (found,) = untold(searches(name, record), page_of(name))
    assert found.names == (entry["name"],) and found.chosen == run["lr"]


def test_changed_records_of_the_other_forms_are_seen() -> None:
    """Each of another form, its best rate moved to an edge of which its page says nothing."""
    optimizers = copy.deepcopy(RECORDS["optimizers/result.json"])
    optimizers["models"]["adamw"]["lr"][1] = 0.03
    assert [each.names for each in untold(searches("optimizers/result.json", optimizers), page_of(
        "optimizers/result.json"))] == [("adamw",)]
    widths = copy.deepcopy(RECORDS["width_transfer/result.json"])
    widths["losses"]["mup"]["64"]["0.125"] = [0.1, 0.1, 0.1]
    assert [each.names for each in untold(searches("width_transfer/result.json", widths), page_of(
        "width_transfer/result.json"))] == [("mup", "64")]
    pretraining = copy.deepcopy(RECORDS["pretraining/result.json"])
    pretraining["tasks"]["cola"]["all"]["rate"] = 0.0003
    assert [each.chosen for each in untold(searches("pretraining/result.json", pretraining), page_of(
        "pretraining/result.json"))] == [0.0003]
    tuning = copy.deepcopy(RECORDS["tuning/result.json"])
    tuning["models"]["transformer"]["test"][0] = [0.1] * 10
    assert [each.names for each in untold(searches("tuning/result.json", tuning), page_of(
        "tuning/result.json"))] == [("transformer",)]
    assert untold([Search(("RWKV-7", "16"), 0.01, (0.003, 0.01))], "No best rate lies at the edge of those tried.")
    assert untold([Search(("RWKV-7", "16"), 0.01, (0.003, 0.01))], "Others lie at the edge: RWKV-7 8 (0.01).")
    assert not untold([Search(("RWKV-7", "16"), 0.01, (0.003, 0.01))], "Others lie at the edge: RWKV-7 16 (0.01).")


@pytest.mark.parametrize("name", ["penn_treebank/result.json", "presets/result.json", "performer/trials.json"])
def test_a_page_without_its_sentence_is_seen(name: str) -> None:
    assert untold(searches(name, RECORDS[name]), SAYS.sub("", page_of(name)))
