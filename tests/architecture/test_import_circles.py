"""No module needs itself: imports make no circle, those for types alone and those inside functions included."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from architecture.sources import parsed, walked

SOURCE = Path(__file__).parents[2] / "src"


def name_of(path: Path, source: Path) -> str:
    """The module of a file."""
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """The modules among ``known`` that a file imports; of ``from package import name`` the submodule if it is one."""
    for node in walked(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)


def graph(source: Path) -> dict[str, set[str]]:
    """Every module with the modules that it imports."""
    files = {name_of(path, source): path for path in sorted(source.rglob("*.py"))}
    return {name: set(imported(parsed(path), set(files))) - {name}
            for name, path in files.items()}


def circle(modules: Mapping[str, set[str]]) -> list[str]:
    """The modules of a circle, each importing the next; none where there is none."""
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def test_imports_make_no_circle() -> None:
    modules = graph(SOURCE)
    assert len(modules) > 300
    assert circle(modules) == []


@pytest.mark.parametrize("late", [
    "from weft.a import A\n", "import weft.a\n", "def f():\n    from weft.a import A\n",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from weft.a import A\n", "from weft import a\n"])
def test_a_circle_would_be_found(tmp_path: Path, late: str) -> None:
    package = tmp_path / "weft"
    package.mkdir()
    for name, text in (("__init__", ""), ("a", "from weft.b import B\n"), ("b", "from weft.c import C\n"), ("c", late)):
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    assert set(circle(graph(tmp_path))) == {"weft.a", "weft.b", "weft.c"}


def test_a_line_of_imports_is_no_circle(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\nimport c\n", encoding="utf-8")
    (tmp_path / "b.py").write_text("import c\n", encoding="utf-8")
    (tmp_path / "c.py").write_text("import os\n", encoding="utf-8")
    assert circle(graph(tmp_path)) == []
