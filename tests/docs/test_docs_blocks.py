"""Every ```bash and ```python block of README.md and docs/*.md runs, in the order of its page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from docs.run_page import blocks, run_blocks, run_blocks_near
from fresh import fresh

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


TOGETHER = [("README.md", "benchmarks_of_models.md", "quickstart.md"), ("chat.md", "decoding.md"), ("add_a_part.md",),
            ("law.md",), ("data.md",), ("tasks.md", "rows.md"), ("arpa.md",), ("python.md",), ("forms.md",),
            ("judge.md",), ("rewrites.md",),
            ("lora.md",), ("attention.md",), ("images.md",), ("optimizers.md", "ratings.md"),
            ("state_space.md", "recurrent.md"), ("how_to_my_data.md", "how_to_my_model.md", "how_to_my_loop.md",
                                                 "how_to_from_another_library.md")]
"""Pages that begin with the same commands follow one another in one folder; the others have one of their own."""


@pytest.mark.parametrize("names", TOGETHER, ids=" ".join)
def test_every_block_of_the_pages_runs(names: tuple[str, ...], tmp_path: Path) -> None:
    """Checks of a run and of a plugin are those of a user, one with attention and one with a bounded state; the others
    read shorter rows."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "docs").mkdir()
    for program in (ROOT / "docs").glob("*.py"):
        shutil.copy(program, tmp_path / "docs")
    found = [block for page in PAGES if page.name in names for block in blocks(page)]
    work = run_blocks if {"README.md", "add_a_part.md"} & set(names) else run_blocks_near
    done = fresh(work, found, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pages_that_have_blocks_are_those_expected() -> None:
    """So that a change of the markup cannot quietly leave a page out."""
    assert sorted(page.name for page in PAGES if blocks(page)) == sorted(name for names in TOGETHER for name in names)


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs/lessons").glob("*.md"))], ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text("utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), target
