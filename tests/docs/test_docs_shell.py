"""What the pages tell to type is found by a fresh shell that stands in a clone where `make install` has been."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from docs.run_page import ACTIVATE, blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/lessons").glob("*.md"))]
SHELL_BLOCK = re.compile(r"^```(?:bash|text|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


def typed(page: Path) -> list[str]:
    """The lines of a page's blocks that are typed in a shell, in order."""
    lines = "\n".join(SHELL_BLOCK.findall(page.read_text("utf-8"))).splitlines()
    return [line for line in lines if line.startswith(("weft ", "make ", ". "))]


def commands(page: Path) -> list[str]:
    return [line for line in typed(page) if line.startswith("weft ")]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an active environment."""
    return environment(tmp_path_factory.mktemp("clone"))


def environment(folder: Path) -> Path:
    """The environment that `make install` makes in a folder: the interpreter's packages, and the command."""
    venv.create(folder / ".venv", with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = [str(ROOT / "src"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (folder / f".venv/lib/{version}/site-packages/these.pth").write_text("\n".join(packages) + "\n")
    command = folder / ".venv/bin/weft"
    command.write_text(f"#!{folder}/.venv/bin/python\nfrom weft.cli.main import run\nrun()\n")
    command.chmod(0o755)
    return folder


def shell(clone: Path, lines: list[str]) -> subprocess.CompletedProcess[str]:
    """Lines in a shell of their own that knows nothing of this process's environment. Torch takes one thread there:
    several would wait for the cores that other tests hold, and burn what is left of them."""
    return subprocess.run(["sh", "-e"], input="\n".join([*lines, ""]), cwd=clone, text=True, capture_output=True,
                          env={"PATH": SYSTEM_PATH, "HOME": str(clone), "OMP_NUM_THREADS": "1"}, check=False)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_the_first_command_of_a_page_comes_after_the_activation(page: Path) -> None:
    lines = typed(page)
    before = [line.split(" && ")[-1] for line in lines[:lines.index(commands(page)[0])]]
    assert ACTIVATE in before, f"{page.name}: `{commands(page)[0]}` is not found"


def test_a_fresh_shell_finds_the_command_only_when_it_is_active(clone: Path) -> None:
    """What the README's blocks do with it is tested in `test_docs_blocks`, in processes that begin faster."""
    assert "not found" in shell(clone, ["weft --version"]).stderr
    (_, code), *_ = [block for block in blocks(ROOT / "README.md") if block[0] == "bash"]
    activate, train, *_ = code.splitlines()
    assert activate == ACTIVATE and train.startswith("weft train ")
    active = shell(clone, [activate, "command -v weft", "python -c 'import weft; print(weft.__file__)'",
                           "weft --version", "weft config show transformer > own.yaml"])
    assert active.returncode == 0, active.stderr
    where, module, version, *_ = active.stdout.splitlines()
    assert where == str(clone / ".venv/bin/weft") and module == str(ROOT / "src/weft/__init__.py")
    assert version.startswith("weft ") and "d_model:" in (clone / "own.yaml").read_text("utf-8")


def test_every_command_of_every_page_is_one_that_the_shell_can_ask_for_help(clone: Path) -> None:
    """So that no page names a command or a group that does not exist; what each does, `test_docs_blocks` runs."""
    asked = sorted({" ".join(line.split()[1:3 if line.split()[1] in ("data", "config") else 2])
                    for page in PAGES for line in commands(page)})
    assert {"compare", "train", "data prepare"} <= set(asked)
    done = shell(clone, [ACTIVATE, *(f"weft {name} --help" for name in asked)])
    assert done.returncode == 0, done.stderr
    assert [name for name in asked if f"Usage: weft {name} " not in done.stdout] == []


def test_how_long_the_first_command_takes_is_said() -> None:
    for text in ((ROOT / "README.md").read_text("utf-8"), (ROOT / "docs/quickstart.md").read_text("utf-8"),
                 (ROOT / "Makefile").read_text("utf-8")):
        assert "six to eight minutes on two cores" in " ".join(text.split())
