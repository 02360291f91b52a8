"""The generated pages, and the build of the documentation."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from part_pictures import part_pictures

import weft.api
from fresh import fresh
from weft.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PARTS = [("mixer", "lstm"), ("mask", "window"), ("position", "alibi"), ("optimizer", "adamw"), ("task", "masked"),
         ("tokenizer", "bytes"), ("benchmark", "lambada")]
ONLY = [*(kind for _, kind in PARTS), "gpt2"]
"""The pages of the gallery that are built here: some of every kind, for all of them take minutes."""


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
    done = fresh(build, "-W", "-q", "-D", f"gallery_only={' '.join(ONLY)}", "-b", "html", "docs", "html", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


def structure(svg: str) -> list[tuple[str, dict[str, str], str]]:
    """The elements of a drawing with their attributes and words, whatever its fonts and colours."""
    return [(each.tag, dict(each.attrib), each.text or "") for each in ElementTree.fromstring(svg).iter()
            if not each.tag.endswith("style")]


@pytest.mark.parametrize(("group", "kind"), PARTS)
def test_a_part_s_page_has_every_piece(built: Path, group: str, kind: str) -> None:
    """What the pieces say is tested in tests/pictures/test_part_page.py; here, that they are on the page."""
    page = (built / f"html/_generated/parts/{group}-{kind}.html").read_text("utf-8")
    for heading in ("Equation", "State", "A configuration that works", "Differs from", "Laws and traits", "Fields",
                    "Source"):
        assert f"<h2>{heading}<" in page, heading
    assert "<math " in page and not re.search(r"<script[^>]*mathjax", page, re.IGNORECASE)
    for figure in part_pictures(group, kind):
        file = built / f"html/_images/{figure.name}.svg"
        assert f"_images/{figure.name}.svg" in page
        assert structure(file.read_text("utf-8")) == structure(figure.alone()), figure.name


def test_a_family_s_page_has_every_piece(built: Path) -> None:
    page = (built / "html/_generated/families/gpt2.html").read_text("utf-8")
    for heading in ("Equations", "State", "A configuration that works", "Differs from", "Published models"):
        assert f"<h2>{heading}<" in page, heading
    assert "124,439,808" in page and "<math " in page and "_images/family-gpt2.svg" in page


def test_the_index_shows_every_page_by_a_picture(built: Path) -> None:
    page = (built / "html/_generated/gallery.html").read_text("utf-8")
    shown = re.findall(r'<a class="card" href="([^"]+)"><img loading="lazy" alt="" src="\.\./_images/([^"]+)">', page)
    assert len(shown) == len(PARTS) + 1
    for link, image in shown:
        assert (built / "html/_generated" / link).is_file() and (built / "html/_images" / image).is_file()


def test_the_side_bar_does_not_list_the_gallery_s_pages(built: Path) -> None:
    for page, back in (("index", None), ("_generated/parts/mixer-lstm", "../gallery.html"),
                       ("_generated/families/gpt2", "../gallery.html")):
        text = (built / f"html/{page}.html").read_text("utf-8")
        bar = text.split('class="sidebar-tree"')[1].split("</aside>")[0]
        assert "gallery.html" in bar and not re.search(r'href="[^"]*(?:parts|families)/|href="mixer-', bar), page
        assert back is None or f'href="{back}"' in text.split("</aside>")[-2] + text.split("</aside>")[-1], page


def test_equations_set_an_index_beside_its_accented_letter_and_room_after_a_function() -> None:
    mathml = runpy.run_path(str(ROOT / "docs/mathml.py"))["_mathml"]
    accented = re.sub(r"\s+", "", mathml(r"\hat{y}_{i}=\bar{A}^l"))
    assert '<msub><moveraccent="true"><mi>y</mi><mostretchy="false">\u02c6</mo></mover><mi>i</mi></msub>' in accented
    assert "munderover" not in accented and "munderover" in mathml(r"\sum_{i=1}^{n} i", as_block=True)
    assert "mspace" in mathml(r"\cos m") and "mspace" in mathml(r"\sin\frac{p}{2}")
    assert "mspace" in mathml(r"W \operatorname{concat}")
    assert "mspace" not in mathml(r"\log(x) + \log\left(x\right)")


def test_the_reference_has_every_field_of_a_part_and_of_the_settings(built: Path) -> None:
    page = (built / "docs/_generated/fields.md").read_text("utf-8")
    assert "| `forget_bias` | number | `0.0` |" in page
    for key in ("batch_size", "beta2", "order_seed", "eval_every", "trials.ratio", "temperature",
                "sources.NAME.weight"):
        assert f"| `{key}` |" in page, key
    assert not re.search(r"\| +\|$", page, re.MULTILINE), "a field without a meaning"


def test_no_page_asks_another_host_for_anything(built: Path) -> None:
    asked = re.compile(r"<(?:link|script|img|iframe|source|object|embed)\b[^>]*?(?:href|src|data)=\"(?:https?:)?//",
                       re.IGNORECASE)
    for page in (built / "html").rglob("*.html"):
        assert asked.findall(page.read_text("utf-8")) == [], page.name
    for style in (built / "html").rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", style.read_text("utf-8")), style.name


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


def test_what_is_printed_in_columns_keeps_its_lines_and_commands_may_break(built: Path) -> None:
    page = (built / "html/lessons/gpt3.html").read_text("utf-8")
    kept = re.findall(r'<div class="columns highlight-text notranslate">(.*?)</pre>', page, re.DOTALL)
    assert len(kept) == 1 and "125M     125,226,240  projections" in kept[0]
    in_columns = runpy.run_path(str(ROOT / "docs/columns.py"))["in_columns"]
    assert in_columns("model  bits\nlstm    2.1\n")
    assert not in_columns("weft train a  # first\nweft eval a   # second\n")
    assert not in_columns("a line  of prose\nand another\n")


@pytest.mark.parametrize("page", ["index", "quickstart", "compare", "law", "data", "tasks", "images", "tokenizers",
                                  "families", "arpa", "chat", "drawing", "files", "add_a_part", "architecture",
                                  "python", "_generated/gallery", "_generated/fields", "_generated/cli",
                                  "_generated/positions_pictured",
                                  "_generated/studies", "_generated/studies/cheating"])
def test_every_page_is_built(built: Path, page: str) -> None:
    assert "<h1>" in (built / f"html/{page}.html").read_text("utf-8")


def test_every_function_that_the_python_page_names_is_where_it_says() -> None:
    page = (ROOT / "docs/python.md").read_text("utf-8")
    named, of_the_api = re.findall(r"`weft\.(\w+)`", page), re.findall(r"`weft\.api\.(\w+)`", page)
    assert set(named) <= set(weft.__all__) and set(of_the_api) <= set(weft.api.__all__)
    documented = re.findall(r"auto(?:function|class):: (\w+)", page)
    assert set(documented) - {"families"} <= set(weft.__all__) <= set(weft.api.__all__)


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
