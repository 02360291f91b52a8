"""What all oracles promise: they depend on nothing that they are to judge."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ORACLES = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.name.startswith("test_"))
ALLOWED = {"__future__", "cmath", "collections", "collections.abc", "fractions", "math", "numpy", "numpy.typing",
           "typing"}


def imported(source: str) -> set[str]:
    """Absolute modules that the source imports, and relative imports that leave the package as '..'."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or ""} if node.level == 0 else ({".."} if node.level > 1 else set())
    return names


@pytest.mark.parametrize("path", ORACLES, ids=lambda path: path.stem)
def test_oracles_import_numpy_and_each_other_only(path: Path) -> None:
    assert imported(path.read_text(encoding="utf-8")) <= ALLOWED


@pytest.mark.parametrize("path", ORACLES, ids=lambda path: path.stem)
def test_every_public_function_says_what_it_computes(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = [n for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    assert [n.name for n in public if not ast.get_docstring(n)] == []


def test_a_foreign_import_would_be_seen() -> None:
    assert imported("import torch\nfrom weft.ops import x\nfrom .. import y\nfrom . import z") == {
        "torch",
        "weft.ops",
        "..",
    }
