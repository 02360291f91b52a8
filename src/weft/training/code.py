"""The code that decides what a run computes: Weft's own and that of plugins, file by file, so that a change is seen.

A version number is not enough: the files of a checkout change without it, and so do those of a plugin.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType

from pydantic import BaseModel

from weft.core.part_config import parts_in
from weft.core.registry import ENTRY_POINTS, PLUGIN, REGISTRY
from weft.disk.manifest import sha256_of
from weft.disk.ownership import enumerated

OWN = "weft"
ROOT = Path(__file__).parents[1]
NOT_RUN = frozenset({"__init__.py", "__main__.py", "api", "benchmarks", "cli", "comparison", "drawing", "families",
                     "index", "interop", "judge", "laws", "pictures", "preset_files", "server", "serving"})
"""Folders and files on which no run's weights depend: front ends, studies, foreign formats, the laws, servers."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
DIGITS = 16
"""Hexadecimal digits of a file's SHA-256 that are recorded."""


def code_of(config: BaseModel, *, plugins: Iterable[str | Path] | None = None,
            also: Iterable[str] = ()) -> dict[str, str]:
    """Hashes of the files of code that decide what a run computes, by their names.

    Weft's own are under ``weft/``. Plugins' are the modules that define parts of ``config``, files that were loaded as
    plugins, installed plugins, and what those import that is neither Weft nor installed.

    Args:
        plugins: the files that are plugins to it; None: all that this process has loaded.
        also: further files of Weft, such as ``comparison/work.py``.
    """
    loaded = ({name for name in sys.modules if name.startswith(PLUGIN)} if plugins is None
              else {f"{PLUGIN}{Path(path).stem}" for path in plugins})
    modules = {name for root in (*_roots(config), *loaded) for name in _reached(root)}
    found = {_name(name): _as_loaded(name) or digest(path) for name in sorted(modules)
             if (path := _file(name)) is not None}
    return {**weft_code(), **{f"{OWN}/{name}": digest(ROOT / name) for name in also}, **found}


@cache
def weft_code() -> Mapping[str, str]:
    """Digests of Weft's own files, read once in a process: on the first call."""
    found = [*ROOT.rglob("*.py"), *ROOT.rglob("*.[ch]")]
    files = {path.relative_to(ROOT): path for path in sorted(found)}
    return MappingProxyType({f"{OWN}/{name.as_posix()}": hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]
                             for name, path in files.items() if name.parts[0] not in NOT_RUN})


def digest(path: Path) -> str:
    """The first digits of the SHA-256 of a file's content; empty for a file that cannot be read."""
    try:
        return sha256_of(path)[:DIGITS]
    except OSError:
        return ""


def _as_loaded(module: str) -> str:
    """The digest of a plugin's file as it was when it was loaded; empty for other modules."""
    return REGISTRY.plugins.get(module, "")[:DIGITS]


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The differences of the code: one clause for Weft's own files and one for plugins; empty where there are none."""
    differing = [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]
    own = [name for name in differing if name.startswith(f"{OWN}/")]
    others = [f"{name} ({_how(before.get(name), now.get(name))})" for name in differing if name not in own]
    clauses = (("Weft's own code has changed", own), ("code of plugins has changed", others))
    return [f"{what}: {enumerated(names)}" for what, names in clauses if names]


def _how(before: str | None, now: str | None) -> str:
    if now is None:
        return "not loaded here"
    return "changed" if before is not None else "not loaded then"


def _roots(config: BaseModel) -> set[str]:
    """Modules outside Weft that define parts of ``config``, and installed plugins."""
    parts = {cls.__module__ for part in parts_in(config) for cls in type(part).__mro__}
    return {name for name in parts if _is_users(name)} | _installed()


@cache
def _installed() -> frozenset[str]:
    return frozenset(entry.module for entry in importlib.metadata.entry_points(group=ENTRY_POINTS))


def _reached(root: str) -> set[str]:
    """The module ``root`` and all that it imports, directly or not, from its own package or from outside installed
    packages."""
    top, found, left = root.partition(".")[0], set[str](), [root]
    while left:
        name = left.pop()
        path = _file(name)
        if name in found or path is None:
            continue
        found.add(name)
        left += [other for other in _imported(sys.modules[name], path)
                 if other in sys.modules and (other.partition(".")[0] == top or _is_users(other))]
    return found


def _is_users(name: str) -> bool:
    """Whether a module is the user's: neither Weft's, nor Python's, nor installed."""
    path = _file(name)
    return (path is not None and name.partition(".")[0] not in {OWN, *sys.stdlib_module_names}
            and not INSTALLED & set(path.parts))


def _imported(module: ModuleType, path: Path) -> Iterator[str]:
    """The names of all modules that a file may import."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name(f"{'.' * node.level}{base}", module.__package__ or module.__name__)
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _file(name: str) -> Path | None:
    """The file of a module that is loaded."""
    path = getattr(sys.modules.get(name), "__file__", None)
    return Path(path) if isinstance(path, str) and path.endswith(".py") else None


def _name(module: str) -> str:
    """The name under which a module's file is recorded, which does not depend on its folder."""
    return f"{module.removeprefix(PLUGIN).replace('.', '/')}.py"
