"""The lessons run, their numbers are those of `docs/figures.json`, and that file's are those of code and recipes."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from docs.run_page import blocks, run_blocks
from fresh import fresh

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LESSONS = sorted(path for path in (DOCS / "lessons").glob("*.md") if path.name != "index.md")
PAGES: dict[str, Any] = json.loads((DOCS / "figures.json").read_text("utf-8"))


def module(name: str) -> Any:
    """A script of the documentation."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


FIGURES = module("figures")


def run_pages(names: list[str]) -> None:
    """Write the problems of every page as JSON, then run its commands and draw its pictures."""
    found, figures, pages = {}, module("figures"), {}
    for name in names:
        pages[name] = (DOCS / name).read_text("utf-8")
        found[name] = figures.problems(name, pages[name], PAGES[name], figures.run(pages[name]), ROOT)
    drawn = {figure.name: figure.alone() for figure in module("lesson_pictures").pictures()}
    Path("found.json").write_text(json.dumps([found, drawn]), encoding="utf-8")
    run_blocks([block for name in names for block in blocks(DOCS / name) if block[0] == "bash"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pages' code and commands run."""
    return tmp_path_factory.mktemp("lessons")


@pytest.fixture(scope="module")
def ran(folder: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The problems of every page that quotes figures, and the pictures, drawn anew."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "LICENSE", folder)
    done = fresh(run_pages, list(PAGES), folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    found, drawn = json.loads((folder / "found.json").read_text("utf-8"))
    return found, drawn


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_of_a_page_is_what_its_code_its_recipe_or_its_source_says(
        name: str, ran: tuple[dict[str, list[str]], dict[str, str]]) -> None:
    assert ran[0][name] == []


@pytest.mark.usefixtures("ran")
def test_the_run_by_the_command_line_ends_as_its_lesson_says(folder: Path) -> None:
    events = [json.loads(line) for line in (folder / "runs/learning/metrics.jsonl").read_text("utf-8").splitlines()]
    progress, validated = (next(each for each in reversed(events) if each["event"] == event)
                           for event in ("progress", "validated"))
    text = (DOCS / "lessons/learning.md").read_text("utf-8")
    said = [float(re.findall(words, text)[0]) for words in (r"loss (\S+) nats/token", r"held out, (\S+)\s+nats")]
    assert [progress["loss"], validated["validation"]["loss"]] == pytest.approx(said, abs=0.1)


def shape(svg: str) -> list[tuple[str, dict[str, str], str]]:
    """The elements of a drawing with their words, and numbers to a tenth, for another processor rounds otherwise."""
    return [(each.tag, {key: re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.1f}", value)
                        for key, value in each.attrib.items() if key != "href"}, each.text or "")
            for each in ElementTree.fromstring(svg).iter() if not each.tag.endswith("style")]


def test_the_pictures_of_the_lessons_are_those_that_the_script_draws(
        ran: tuple[dict[str, list[str]], dict[str, str]]) -> None:
    stored = {path.stem: shape(path.read_text("utf-8")) for path in (DOCS / "lessons/pictures").glob("*.svg")}
    assert stored == {name: shape(svg) for name, svg in ran[1].items()}, "run `python docs/lesson_pictures.py`"


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_all_its_parts(path: Path) -> None:
    text = path.read_text("utf-8")
    page = PAGES[f"lessons/{path.name}"]
    for part in ("\n**Question.** ", "\n![", "$$", "\n```python\n", "\n**Expected.** ", "\n## Break it\n"):
        assert part in text, part
    assert f"{page['seconds']:g} seconds on two cores" in " ".join(text.split())
    assert re.search(r"^(weft |python recipes/)", text, re.MULTILINE), "a lesson has a command"
    assert text.index("## Break it") < text.rindex("```python"), "what is broken runs, too"
    for block in FIGURES.BLOCK.finditer(text):
        assert bool(block["output"]) == ("print(" in block["code"]), "what is printed is shown"
    first = FIGURES.BLOCK.search(text)["code"]
    assert 5 <= len([line for line in first.splitlines() if line.strip() and "import" not in line]) <= 60


def test_every_lesson_and_every_page_with_figures_is_listed() -> None:
    assert {f"lessons/{path.name}" for path in LESSONS} == {name for name in PAGES if name.startswith("lessons/")}
    listed = (DOCS / "lessons/index.md").read_text("utf-8")
    assert all(f"\n{path.stem}\n" in listed for path in LESSONS)


TEXT = ("Counting gives 4/11 = 0.3636, and 81.10.\n\n```python\nx = 4 / 11\nprint(f\"{x:.4f}\")\n```\n\n"
        "```text\n0.3636\n```\n")
PAGE: dict[str, Any] = {"figures": [
    {"shown": "0.3636", "code": "x", "tolerance": 1e-9},
    {"shown": "81.10", "recipe": "penn_treebank", "at": ["transformer", "test_perplexity"]}],
    "given": {"11": "sentences"}}


def told(text: str, page: dict[str, Any]) -> str:
    return "\n".join(FIGURES.problems("page.md", text, page, FIGURES.run(text), ROOT))


def test_a_page_that_is_right_is_not_refused() -> None:
    assert told(TEXT, PAGE) == ""


@pytest.mark.parametrize(("old", "new", "said"), [
    ("4/11 = 0.3636", "4/11 = 0.3637", "0.3637 is quoted, and figures.json does not say what makes it."),
    ("and 81.10", "and 81.20", "81.20 is quoted"),
    ("and 81.10", "and so on", "81.10 is in figures.json, and the page does not quote it."),
    ("```text\n0.3636", "```text\n0.4", "a block prints\n0.3636\n\nand the page shows\n0.4"),
    ("4 / 11\n", "5 / 11\n", "0.3636 is now 0.454545 (x)"),
    ("```text\n0.3636\n```\n", "", "and the page shows\n")])
def test_a_page_that_is_wrong_is_refused(old: str, new: str, said: str) -> None:
    assert old in TEXT and said in told(TEXT.replace(old, new), PAGE)


def test_a_figure_that_its_recipe_does_not_have_is_refused() -> None:
    page = copy.deepcopy(PAGE)
    page["figures"][1]["at"] = ["lstm", "test_perplexity"]
    assert "81.10 is now 96.5539 (penn_treebank); allowed is 0.005." in told(TEXT, page)


def test_the_mean_over_seeds_a_bound_and_slow_code_are_checked() -> None:
    assert FIGURES.recorded({"a": [{"b": 1.0}, {"b": 3.0}], "c": {"0": 2.0, "1": 4.0}}, ["a", "*", "b"]) == 2.0
    assert FIGURES.recorded({"c": {"0": 2.0, "1": 4.0}}, ["c", "*"]) == 3.0
    assert FIGURES.recorded({"a": [{"b": 1.0}, {"b": 3.0}, {"b": 8.0}]}, ["a", [1, 3], "b"]) == 5.5
    page = {"figures": [{"shown": "0.3636", "code": "x"}, {"shown": "81.10", "code": "82.0", "below": True}],
            "given": {"11": "sentences"}, "seconds": 0.1}
    assert "81.10 is now 82" in told(TEXT, page)
    slow = FIGURES.Ran({"x": 4 / 11}, ["0.3636\n"], 4.1)
    assert any("takes 4.1 seconds, and the page says 0.1" in each for each in FIGURES.problems(
        "page.md", TEXT, page, slow, ROOT))


def test_the_outputs_on_a_page_are_written() -> None:
    found = FIGURES.with_outputs(TEXT.replace("\n```text\n0.3636\n```\n", ""), FIGURES.run(TEXT).outputs)
    assert found == TEXT
