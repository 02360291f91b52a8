"""The pages of the studies are made of what stands in the recipes, all of it, and nothing that is out of date."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MAKE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "studies.py"))
RECIPES = MAKE["recipes_in"](ROOT)
PAGES = [recipe for recipe in RECIPES if (ROOT / "recipes" / recipe / "result.json").is_file()]


def made(root: Path, folder: Path) -> dict[str, str]:
    """Every page, by its name."""
    MAKE["write_studies"](root, folder)
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.md")}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("pages")
    return folder, made(ROOT, folder)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_page_has_the_question_the_table_the_pictures_and_the_command(recipe: str,
                                                                        pages: tuple[Path, dict[str, str]]) -> None:
    folder, found = pages
    page, readme = found[f"studies/{recipe}.md"], (ROOT / "recipes" / recipe / "README.md").read_text("utf-8")
    study = MAKE["study_of"](ROOT, recipe)
    assert study.title in page and study.command in page
    assert f"studies/{recipe}.md" in found["studies.md"] and study.command in found["studies.md"]
    rows, wanted = ([line for line in text.splitlines() if line.startswith("|")] for text in (page, readme))
    assert len(rows) == len(wanted)
    assert all(row == own for row, own in zip(rows, wanted, strict=True) if "](" not in own)  # links lead elsewhere
    shown = re.findall(r"!\[[^\]]*\]\(\.\./pictures/(\S+?)\)", page)
    assert len(shown) == len(re.findall(r"!\[", readme))
    for name in shown:
        own = ROOT / "recipes" / recipe / name.removeprefix(f"study-{recipe}-")
        assert (folder / "pictures" / name).read_bytes() == own.read_bytes()
    assert ("No result is recorded yet." in page) == (not study.recorded) or "No result is recorded" in readme


def test_pictures_of_a_recipe_are_all_on_its_page(pages: tuple[Path, dict[str, str]]) -> None:
    _, found = pages
    for picture in (ROOT / "recipes").glob("*/*.svg"):
        assert f"study-{picture.parent.name}-{picture.name}" in found[f"studies/{picture.parent.name}.md"], picture


def test_no_link_leads_out_of_the_pages(pages: tuple[Path, dict[str, str]]) -> None:
    for name, page in pages[1].items():
        for target in re.findall(r"(?<!`)\]\(([^)\s]+)\)", page):
            assert target.startswith(("http", "../pictures/study-", "studies/")), (name, target)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def test_a_page_follows_its_recipe(copied: Path) -> None:
    readme = copied / "recipes" / "cheating" / "README.md"
    readme.write_text(readme.read_text("utf-8").replace("The model that cheats", "Another title"), encoding="utf-8")
    found = made(copied, copied / "out")
    assert found["studies/cheating.md"].startswith("# Another title") and "Another title" in found["studies.md"]


@pytest.mark.parametrize(("change", "said"), [
    (lambda recipes: shutil.copytree(recipes / "cheating", recipes / "another"), "ORDER and the folder of recipes "
     "differ in ['another']. Give each recipe a place."),
    (lambda recipes: (recipes / "cheating" / "training.svg").unlink(), "recipes/cheating/README.md: there is no "
     "training.svg. Run the recipe, or correct the name."),
    (lambda recipes: (recipes / "cheating" / "README.md").write_text("No title."), "it has no title. Begin it with "
     "`# Title`, and give the command that repeats the study."),
    (lambda recipes: (recipes / "six_ages" / "README.md").write_text("# Six ages\n\nHow?\n"), "it has no command.")])
def test_a_recipe_that_makes_no_page_is_refused(copied: Path, change: Any, said: str) -> None:
    change(copied / "recipes")
    with pytest.raises(ValueError) as found:
        made(copied, copied / "out")
    assert said in str(found.value)


@pytest.mark.parametrize("recipe", PAGES)
def test_a_page_is_of_the_recorded_result(recipe: str) -> None:
    """A recipe whose script makes its page makes the one that stands there; others have tests of their own."""
    folder = ROOT / "recipes" / recipe
    for script in (folder / "page.py", folder / "run.py"):
        page = runpy.run_path(str(script)).get("page") if script.is_file() and "def page(found" in script.read_text(
            "utf-8") else None
        if page is not None:
            result = json.loads((folder / "result.json").read_text("utf-8"))
            assert page(result) == (folder / "README.md").read_text("utf-8"), f"run recipes/{recipe}/run.py"
