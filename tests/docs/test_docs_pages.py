"""The generated pages, and the build of the documentation."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from fresh import fresh
from weft.cli.main import COMMANDS
from weft.core.registry import REGISTRY
from weft.masks import known_masks

ROOT = Path(__file__).parents[2]


def build(*arguments: str) -> None:
    """``sphinx-build ARGUMENTS``."""
    from sphinx.cmd.build import main  # takes a second, and only the process that builds needs it

    sys.exit(main(list(arguments)))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documentation, built as `make docs` does, warnings being errors; the pages and their HTML."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("docs", "examples"):
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


def test_the_command_line_page_has_every_command_and_its_options(built: Path) -> None:
    page = (built / "docs/_generated/cli.md").read_text("utf-8")
    for name in (*COMMANDS, "config show", "config schema", "data prepare", "data inspect", "data sample"):
        assert f"\n## weft {name}\n" in page, name
    for option in ("--max-new-tokens", "--no-measure", "--resume", "--logits", "--stride", "--plugin", "--budget",
                   "--part", "--verify", "--n-kv-heads"):
        assert option in page, option


@pytest.mark.parametrize("page", ["index", "quickstart", "compare", "law", "data", "tasks", "images", "tokenizers",
                                  "families", "arpa", "chat", "files", "add_a_part", "architecture", "python",
                                  "_generated/catalogue", "_generated/cli"])
def test_every_page_is_built(built: Path, page: str) -> None:
    assert "<h1>" in (built / f"html/{page}.html").read_text("utf-8")


def test_the_python_page_documents_the_functions(built: Path) -> None:
    page = (built / "html/python.html").read_text("utf-8")
    for name in ("train", "compare", "load", "generate", "score", "evaluate", "convert", "families", "check", "plan",
                 "data_prepare", "doctor", "catalogue"):
        assert f'id="weft.api.{name}"' in page, name
