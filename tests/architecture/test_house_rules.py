"""What the source never does, what importing it pulls in, and what no file names."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from architecture.sources import parsed, walked

REPOSITORY = Path(__file__).parents[2]
SOURCES = sorted((REPOSITORY / "src").rglob("*.py"))
CALLS = {"hasattr", "eval", "exec", "compile", "__import__"}
MODULES = {"pickle", "cPickle", "dill", "shelve", "marshal", "joblib", "cloudpickle"}
CORE_FOREIGN = {"torch", "pydantic", "pydantic_core", "jaxtyping"}
FOREIGN_ARROWS: dict[str, set[str]] = {"transformers": {"interop"}, "tokenizers": {"tokenizers", "chat"},
                                       "yaml": {"benchmarks", "disk", "training", "comparison", "cli"},
                                       "typer": {"cli"}, "rich": {"cli"}}
"""Packages that only some folders may import."""
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".json", ".cfg", ".rst", ".sh", ""}


def weights_only(node: ast.AST) -> bool:
    """A call of torch.load that reads tensors and runs nothing."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load" and any(
        keyword.arg == "weights_only" and ast.unparse(keyword.value) == "True" for keyword in node.keywords)


def forbidden(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Calls that look up or run what a reader cannot see, and files that run code when they are read."""
    nodes = walked(tree)
    safe = {id(node.func) for node in nodes if isinstance(node, ast.Call) and weights_only(node)}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield node.lineno, node.func.id
        elif (isinstance(node, ast.Attribute) and node.attr == "load" and id(node) not in safe
              and ast.unparse(node) in ("torch.load", "np.load", "numpy.load")):
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names
                        if str(node.module).split(".")[0] in MODULES or f"{node.module}.{alias.name}" == "torch.load")


def foreign(tree: ast.Module) -> set[str]:
    """Packages that are neither Weft's nor Python's."""
    names = {alias.name for node in walked(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in walked(tree) if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"weft"}


def test_the_source_looks_nothing_up_by_name_and_runs_no_file() -> None:
    found = {str(path.relative_to(REPOSITORY)): list(forbidden(parsed(path))) for path in SOURCES}
    assert len(found) > 500
    assert {path for path, names in found.items() if names} == {f"src/weft/confinement/{name}.py"
                                                                for name in ("judging", "program")}, "confined"


@pytest.mark.parametrize("source", [
    "hasattr(x, 'y')", "eval('1')", "exec('1')", "torch.load(f)",
    "torch.load(f, weights_only=False)", "import pickle", "from pickle import loads",
    "from torch import load", "def f():\n    import dill", "np.load(f, allow_pickle=True)"])
def test_what_is_forbidden_would_be_found(source: str) -> None:
    assert len(list(forbidden(ast.parse(source)))) == 1


def test_the_first_sentence_of_a_docstring_names_what_is_returned_or_done() -> None:
    """A sentence that begins with "What" or "Of" makes a reader look for its noun at the end."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [f"{path.relative_to(REPOSITORY)}, line {node.body[0].lineno}" for path in SOURCES
             for node in walked(parsed(path)) if isinstance(node, documented)
             and (ast.get_docstring(node) or "").startswith(("What ", "Of ", "Whatever "))]
    assert found == []


def test_methods_of_such_names_are_not_forbidden() -> None:
    source = "model.eval()\ntorch.load(f, weights_only=True)\nast.literal_eval('1')\ntorch.compile(f)\nre.compile('x')"
    assert list(forbidden(ast.parse(source))) == []


def test_only_some_folders_import_some_packages() -> None:
    for path in SOURCES:
        folder = path.relative_to(REPOSITORY / "src" / "weft").parts[0]
        names = foreign(parsed(path))
        assert folder != "core" or names <= CORE_FOREIGN, f"{path}: {names - CORE_FOREIGN}"
        for name, folders in FOREIGN_ARROWS.items():
            assert name not in names or folder in folders, f"{path} imports {name}"


def test_models_know_no_optimizer() -> None:
    before = ("core", "masks", "ops", "positions", "norms", "mixers", "feedforward", "blocks", "models", "laws")
    for folder in before:
        for path in (REPOSITORY / "src" / "weft" / folder).rglob("*.py"):
            assert not re.search(r"torch\.optim|from torch import .*\boptim\b", path.read_text(encoding="utf-8")), path


def run(code: str) -> list[str]:
    """What a fresh interpreter prints, as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def optional_modules() -> set[str]:
    """Import names of the packages that only an extra installs."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = {name for extra in project["optional-dependencies"].values() for name in map(package_name, extra)}
    wanted -= {package_name(line) for line in project["dependencies"]}
    return {module for module, owners in importlib.metadata.packages_distributions().items()
            if wanted & {owner.lower().replace("_", "-") for owner in owners}}


def package_name(requirement: str) -> str:
    return re.split(r"[<>=!~\[; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def test_importing_every_module_needs_no_optional_package() -> None:
    optional = optional_modules()
    assert {"pytest", "hypothesis", "sklearn"} <= optional
    # What torch and the other declared packages import for themselves is theirs.
    pulled = run("""
import json, pkgutil, sys
import torch, torch.nn.attention.flex_attention, torch.utils.flop_counter, torch.distributed.checkpoint
import numpy, pydantic, jaxtyping, safetensors.torch, tokenizers, typer, rich
before = {name.split(".")[0] for name in sys.modules}
import weft
for info in pkgutil.walk_packages(weft.__path__, "weft."):
    if not info.name.endswith("__main__"):
        __import__(info.name)
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules} - before)))
""")
    assert "weft" in pulled
    assert set(pulled) & optional == set()


@pytest.mark.parametrize("code", [
    "import weft",
    "from weft.cli.main import app\nfrom typer.testing import CliRunner\n"
    "result = CliRunner().invoke(app, ['--help'])\nassert result.exit_code == 0, result.output"])
def test_weft_alone_and_its_help_do_not_import_torch(code: str) -> None:
    pulled = run(f"import json, sys\n{code}\nprint(json.dumps([name for name in sys.modules if '.' not in name]))")
    assert "weft" in pulled
    assert not {"torch", "numpy", "pydantic", "tokenizers"} & set(pulled)


def test_no_file_names_the_machine_it_was_written_on() -> None:
    machine = re.compile("|".join(rf"(?<![\w.])/{folder}/" for folder in ("work", "home", "root", "Users")))
    named = []
    for top in ("src", "tests", "docs", "examples", "recipes", "benchmarks", ".ci"):
        named += [path for path in (REPOSITORY / top).rglob("*")
                  if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts]
    named += [REPOSITORY / name for name in ("README.md", "pyproject.toml", "constraints.txt", "Makefile")]
    assert len(named) > 100
    found = [f"{path.relative_to(REPOSITORY)}: {match[0]}" for path in named if path.is_file()
             for match in machine.finditer(path.read_text(encoding="utf-8", errors="replace"))]
    assert found == []


def test_what_scripts_import_from_weft_is_there() -> None:
    """Recipes, benchmarks and the documentation's programs, which are not imported by the tests."""
    missing = []
    for folder in ("recipes", "benchmarks", "docs", "examples"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            found = [node for node in walked(parsed(path)) if isinstance(node, ast.ImportFrom) and node.module]
            for module, names in [(str(each.module), each.names) for each in found]:
                if module.partition(".")[0] == "weft":
                    missing += [f"{path.relative_to(REPOSITORY)}: {module}.{each.name}" for each in names
                                if not is_there(module, each.name)]
    assert missing == []


def is_there(module: str, name: str) -> bool:
    if importlib.util.find_spec(module) is None:
        return False
    return hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None
