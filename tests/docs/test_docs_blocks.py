"""Every ```bash and ```python block of README.md and docs/*.md runs, in the order of its page."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> Iterator[list[str]]:
    """The commands of a page, in order."""
    for language, code in BLOCK.findall(page.read_text("utf-8")):
        yield ["bash", "-euc", code] if language == "bash" else [sys.executable, "-c", code]


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page))], ids=lambda page: page.name)
def test_every_block_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    for command in blocks(page):
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        assert done.stdout or command[0] != "bash", "a command that tells nothing"


def test_the_pages_that_have_blocks_are_those_expected() -> None:
    """So that a change of the markup cannot quietly leave a page out."""
    assert {page.name for page in PAGES if any(blocks(page))} == {
        "README.md", "quickstart.md", "add_a_part.md", "law.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text("utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target
