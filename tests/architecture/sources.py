"""The syntax trees of files, each parsed and walked once by all the tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file, which nobody changes."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def walked(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Every node of a tree."""
    return tuple(ast.walk(tree))
