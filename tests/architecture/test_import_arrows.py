"""Imports point one way: who may use whom, read from the syntax trees, those under TYPE_CHECKING included."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from architecture.sources import parsed, walked

ROOT = Path(__file__).parents[2] / "src" / "weft"

LEVELS: tuple[frozenset[str], ...] = tuple(map(frozenset, (
    {"core"}, {"masks"}, {"ops", "ngram"}, {"linear"}, {"positions", "norms"}, {"mixers", "feedforward", "heads"},
    {"blocks"}, {"models"}, {"laws", "checkpoints"}, {"families"}, {"interop"}, {"parallel"}, {"gpu"},
    {"training", "tasks", "finetuning", "decoding", "analysis", "evaluation"},
    {"benchmarks", "chat", "comparison", "extending", "pictures"}, {"judge"}, {"serving"}, {"api"}, {"server"},
    {"cli"}, {"__main__"})))
"""Each may import those before it. ``api`` is the library's own front; the command only renders it."""

TEXT: dict[str, frozenset[str]] = {"disk": frozenset({"core"}), "tokenizers": frozenset({"core", "disk"}),
                                   "data": frozenset({"core", "disk", "tokenizers"}), "drawing": frozenset(),
                                   "preset_files": frozenset(), "index": frozenset({"core", "disk"}),
                                   "confinement": frozenset()}
"""What knows nothing of models, with all that it may import; it is used from `checkpoints` and `laws` on."""

SIDEWAYS: dict[tuple[str, str], str] = {
    ("comparison", "pictures"): "the report of a comparison draws its models",
    ("comparison", "benchmarks"): "models that answered the same requests of a benchmark are compared by its results",
    ("training", "tasks"): "a run trains and measures a model on its task",
    ("tasks", "chat"): "which tokens of a conversation are an answer's is said by its chat template",
    ("tasks", "evaluation"): "what is measured of the next token is the evaluation of the text held out",
    ("training", "analysis"): "budgets, utilisation and the matmul route measure and count as analysis does",
    ("gpu", "analysis"): "the memory of training is that of a step as analysis runs it, without numbers",
    ("evaluation", "decoding"): "scoring reads rows and prompts and sets evaluation mode as decoding does",
}
"""Imports between neighbours of one level that are wanted, with the reason."""


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and package (or module directly in weft) of every import of Weft's own."""
    fronts = {alias.asname or alias.name for node in walked(tree) if isinstance(node, ast.Import)
              for alias in node.names if alias.name == "weft"}
    for node in walked(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[1]) for alias in node.names
                        if alias.name.startswith("weft."))
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "a relative import"
        elif isinstance(node, ast.ImportFrom) and node.module == "weft":
            yield from ((node.lineno, _front(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("weft."):
            yield node.lineno, str(node.module).split(".")[1]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in fronts:
            yield node.lineno, _front(node.attr)


def _front(name: str) -> str:
    """The package that ``weft.name`` is, or the api, whose names ``weft`` exports; `__version__` counts as one of them:
    packages below read `weft.core.version`."""
    known = {package for level in LEVELS for package in level} | set(TEXT)
    return name if name in known else "api"


def level_of(package: str) -> int | None:
    return next((index for index, level in enumerate(LEVELS) if package in level), None)


def wrong(importer: str, target: str) -> str | None:
    """Why ``importer`` may not import ``target``; None when it may."""
    if importer == target or (importer, target) in SIDEWAYS:
        return None
    own, other = level_of(importer), level_of(target)
    if importer in TEXT:
        return None if target in TEXT[importer] else f"{importer} may import only {sorted(TEXT[importer])}"
    if own is None:
        return f"{importer} stands in no level"
    if target in TEXT:
        return None if own >= 8 else f"{importer} comes before anything that reads text"
    if other is None:
        return f"{target} stands in no level"
    return None if other < own else f"{target} does not come before {importer}"


def violations(importer: str, imports: Iterable[tuple[int, str]]) -> list[str]:
    found = ((line, target, wrong(importer, target)) for line, target in imports)
    return [f"line {line}: {importer} imports {target}: {reason}" for line, target, reason in found if reason]


@cache
def imported_by(path: Path) -> tuple[tuple[int, str], ...]:
    return tuple(imported(parsed(path)))


def files() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def package_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


BUNDLED = ROOT / "interop" / "huggingface" / "bundled"
"""Files that lie beside a model's weights and import one another there, as `transformers` wants it."""


def test_every_import_follows_the_arrows() -> None:
    found = {path: violations(package_of(path), imported_by(path)) for path in files()}
    assert len(found) > 500
    assert [f"{path.relative_to(ROOT)}, {each}" for path, wrongs in found.items() for each in wrongs
            if BUNDLED not in path.parents or "a relative import" not in each] == []


def test_wanted_exceptions_are_used_and_go_one_way() -> None:
    used = {(package_of(path), target) for path in files() for _, target in imported_by(path)}
    assert set(SIDEWAYS) <= used
    assert not {(target, importer) for importer, target in SIDEWAYS} & used


def test_families_are_data() -> None:
    """They describe: nothing there reads or writes a file, and nothing is a module of a model."""
    for path in sorted((ROOT / "families").rglob("*.py")):
        tree = parsed(path)
        modules = {alias.name for node in walked(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules |= {str(node.module) for node in walked(tree) if isinstance(node, ast.ImportFrom)}
        assert not modules & {"pathlib", "os", "io", "shutil", "json", "safetensors", "torch.nn"}, path
        assert not {node.func.id for node in walked(tree) if isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)} & {"open"}, path


def test_weft_itself_exports_only_the_api_and_its_version() -> None:
    tree = parsed(ROOT / "__init__.py")
    assert {target for _, target in imported(tree)} <= {"api", "core"}


@pytest.mark.parametrize(("importer", "source"), [
    ("core", "from weft.masks import Causal"),
    ("core", "import weft.models.decoder"),
    ("ops", "from weft.positions.base import PositionScheme"),
    ("norms", "from weft.positions.base import PositionScheme"),
    ("models", "def late():\n    from weft.training.config import RunConfig"),
    ("models", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from weft.tokenizers import Tokenizer"),
    ("mixers", "from weft.data import Corpus"),
    ("tokenizers", "from weft.core.model import LanguageModel\nfrom weft.data import Corpus"),
    ("data", "from weft.models.decoder import Decoder"),
    ("blocks", "from . import base"),
    ("blocks", "from weft import train"),
    ("blocks", "import weft\nweft.train('x')"),
    ("blocks", "from weft import models"),
    ("checkpoints", "import weft\nprint(weft.__version__)"),
    ("data", "from weft import __version__"),
    ("training", "from weft.serving import app"),
    ("newcomer", "from weft.core import state"),
    ("models", "from weft.newcomer import thing"),
])
def test_a_made_up_violation_is_found(importer: str, source: str) -> None:
    assert len(violations(importer, imported(ast.parse(source)))) == 1


@pytest.mark.parametrize(("importer", "source"), [
    ("masks", "from weft.core.clock import Keys"),
    ("models", "from weft.blocks.base import Block\nimport weft.ops.attention"),
    ("checkpoints", "from weft.core.version import VERSION\nfrom weft.tokenizers import Tokenizer"),
    ("data", "from weft.tokenizers import Tokenizer"),
    ("cli", "import weft\nfrom weft.training.config import RunConfig\nweft.train('x')"),
    ("training", "from weft.data import Corpus\nimport torch"),
])
def test_what_follows_the_arrows_is_not_called_a_violation(importer: str, source: str) -> None:
    assert violations(importer, imported(ast.parse(source))) == []
