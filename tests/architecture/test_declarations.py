"""What counts, plans, checks and trains asks parts what they declare (`weft.core.declarations`), not of which class
they are: a plugin's part of a new kind is then treated like Weft's own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from architecture.sources import parsed, walked

ROOT = Path(__file__).parents[2] / "src" / "weft"
FOLDERS = ("laws", "analysis", "training", "tasks", "evaluation", "decoding")
KINDS = frozenset({"norms", "mixers", "feedforward", "blocks", "models", "heads"})
"""Packages of parts, of which these folders import nothing."""
OTHERS = frozenset({"masks", "ops", "positions", "linear"})
"""Packages that they may use, but against whose classes they test nothing."""


def source_of(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The package of Weft's that is imported, and the name it gets."""
    names = [(f"{node.module}.{alias.name}", alias) for alias in node.names] if isinstance(node, ast.ImportFrom) else [
        (alias.name, alias) for alias in node.names]
    for full, alias in names:
        parts = full.split(".")
        if parts[0] == "weft" and len(parts) > 1:
            yield parts[1], alias.asname or alias.name


def classes_in(node: ast.AST) -> Iterator[ast.AST]:
    """What a test of classes names as the class."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        yield from node.args[1:2]
    elif isinstance(node, ast.MatchClass):
        yield node.cls
    elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Call) and ast.unparse(node.left.func) == "type":
        yield from node.comparators


def violations(tree: ast.Module) -> Iterator[str]:
    """Imports of parts, and tests against classes of others."""
    imports = [node for node in walked(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    known = {name: package for node in imports for package, name in source_of(node)}
    yield from (f"line {node.lineno}: imports {package}" for node in imports for package, _ in source_of(node)
                if package in KINDS)
    for node in walked(tree):
        for place in classes_in(node):
            yield from (f"line {node.lineno}: tests for {name.id}" for name in ast.walk(place)  # type: ignore[attr-defined]
                        if isinstance(name, ast.Name) and known.get(name.id) in OTHERS)


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for folder in FOLDERS
                                  for path in sorted((ROOT / folder).rglob("*.py"))])
def test_parts_are_asked_what_they_declare(path: Path) -> None:
    assert list(violations(parsed(path))) == []


@pytest.mark.parametrize("source", [
    "from weft.mixers.attention import Attention",
    "import weft.models.stack",
    "from weft import blocks",
    "from weft.positions.base import PositionScheme\nisinstance(x, PositionScheme)",
    "from weft.positions.base import PositionScheme\nisinstance(x, int | PositionScheme)",
    "from weft.ops.dropout import Dropout\nissubclass(x, (int, Dropout))",
    "from weft.ops.dropout import Dropout\ntype(x) is Dropout",
    "from weft.masks import Causal\nmatch x:\n    case Causal(): pass",
])
def test_what_asks_for_a_class_would_be_found(source: str) -> None:
    assert len(list(violations(ast.parse(source)))) == 1


def test_what_asks_for_the_core_s_contracts_is_not_forbidden() -> None:
    source = "from weft.core.layer import Part\nfrom weft.masks import parse_mask\nisinstance(x, Part)\nparse_mask('a')"
    assert list(violations(ast.parse(source))) == []
