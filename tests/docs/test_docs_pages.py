"""The generated pages, and the build of the documentation."""

from __future__ import annotations

import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from fresh import fresh
from weft.cli.main import COMMANDS
from weft.core.registry import REGISTRY
from weft.masks import known_masks
from weft.pictures.parts import part_pictures

ROOT = Path(__file__).parents[2]


def build(*arguments: str) -> None:
    """``sphinx-build ARGUMENTS``."""
    from sphinx.cmd.build import main  # takes a second, and only the process that builds needs it

    sys.exit(main(list(arguments)))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as `make docs` does, warnings being errors; the pages and their HTML."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("docs", "examples", "recipes"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("_build", "_generated"))
    done = fresh(build, "-W", "-q", "-b", "html", "docs", "html", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_catalogue_has_every_part(built: Path) -> None:
    page = (built / "docs/_generated/catalogue.md").read_text("utf-8").replace("\\", "")  # Markdown's escapes
    for part in REGISTRY.parts():
        assert f"`{part.kind}`" in page, part.kind
        assert part.source in page, part.kind
    assert all(f"`{mask.kind}" in page for mask in known_masks())
    assert "declared_length" in page and "2 d_hidden float32 numbers" in page


def structure(svg: str) -> list[tuple[str, dict[str, str], str]]:
    """The elements of a drawing with their attributes and words, whatever its fonts and colours."""
    return [(each.tag, dict(each.attrib), each.text or "") for each in ElementTree.fromstring(svg).iter()
            if not each.tag.endswith("style")]


def test_the_catalogue_shows_every_part_that_has_a_picture(built: Path) -> None:
    """What each picture shows is tested in tests/pictures/test_parts.py; here, that it is the one on the page."""
    page = (built / "docs/_generated/catalogue.md").read_text("utf-8")
    shown = html = 0
    for group, kind in [(part.group, part.kind) for part in REGISTRY.parts()] + [
            ("mask", mask.kind) for mask in known_masks()]:
        for figure in part_pictures(group, kind):
            file = built / f"docs/_generated/pictures/{figure.name}.svg"
            assert f"](pictures/{figure.name}.svg)" in page, figure.name
            assert structure(file.read_text("utf-8")) == structure(figure.alone()), figure.name
            shown, html = shown + 1, html + (built / f"html/_images/{figure.name}.svg").is_file()
    assert shown == html > 60


def test_the_study_of_positions_has_its_pictures(built: Path) -> None:
    page = (built / "docs/_generated/positions_pictured.md").read_text("utf-8")
    names = re.findall(r"\]\(pictures/([\w-]+\.svg)\)", page)
    assert len(names) == 4 and all((built / f"html/_images/{name}").is_file() for name in names)
    assert "Under sinusoidal positions it is not monotone" in page


def test_the_command_line_page_has_every_command_and_its_options(built: Path) -> None:
    page = (built / "docs/_generated/cli.md").read_text("utf-8")
    for name in (*COMMANDS, "config show", "config schema", "data prepare", "data inspect", "data sample"):
        assert f"\n## weft {name}\n" in page, name
    for option in ("--max-new-tokens", "--no-measure", "--resume", "--logits", "--stride", "--plugin", "--budget",
                   "--part", "--verify", "--n-kv-heads"):
        assert option in page, option


@pytest.mark.parametrize("page", ["index", "quickstart", "compare", "law", "data", "tasks", "images", "tokenizers",
                                  "families", "arpa", "chat", "drawing", "files", "add_a_part", "architecture",
                                  "python", "_generated/catalogue", "_generated/cli", "_generated/positions_pictured",
                                  "_generated/studies", "_generated/studies/cheating"])
def test_every_page_is_built(built: Path, page: str) -> None:
    assert "<h1>" in (built / f"html/{page}.html").read_text("utf-8")


def test_the_python_page_documents_the_functions(built: Path) -> None:
    page = (built / "html/python.html").read_text("utf-8")
    for name in ("train", "compare", "load", "generate", "score", "evaluate", "convert", "families", "check", "plan",
                 "data_prepare", "doctor", "catalogue", "draw"):
        assert f'id="weft.api.{name}"' in page, name


@pytest.mark.parametrize("page", ["lessons/index", "lessons/dice", "how_to_choose", "how_to_my_loop",
                                  "_generated/results"])
def test_lessons_how_tos_and_results_are_built(built: Path, page: str) -> None:
    text = (built / f"html/{page}.html").read_text("utf-8")
    assert "<h1>" in text and "{include}" not in text and "{doc}" not in text
