"""The open registry: every part by group and kind.

Weft's own parts are registered when their module is imported; `Registry.discover` imports them all. A user's file adds
parts through `load_plugin` (``--plugin my_mixer.py``) or the entry-point group ``weft.parts`` of an installed package.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TypeVar

from weft.core.errors import ConfigError, WeftError, nearest_meaning
from weft.core.part_config import PartConfig

P = TypeVar("P", bound=PartConfig)

PACKAGES = ("linear", "masks", "positions", "norms", "mixers", "feedforward", "blocks", "heads", "models", "tokenizers",
            "tasks", "training", "benchmarks")
ENTRY_POINTS = "weft.parts"
PLUGIN = "weft_plugin_"
"""The prefix of the module names that `load_plugin` gives to files."""


class Registry:
    """Part configurations by group (``mixer``, ``position``, ...) and kind (``attention``, ``rope``, ...)."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, type[PartConfig]]] = {}
        self.plugins: dict[str, str] = {}
        """SHA-256 of each file that `load_plugin` has run, as read at that time, by the name of its module."""
        self._discovered = False

    def add(self, part: type[PartConfig]) -> None:
        """Register a part's configuration class under its group and kind."""
        kinds = self._parts.setdefault(part.group, {})
        other = kinds.get(part.kind)
        if other is not None and (other.__module__, other.__qualname__) != (part.__module__, part.__qualname__):
            raise ConfigError([f"the {part.group} {part.kind!r} is defined by {other.__module__} and by "
                               f"{part.__module__}. Give one of them another kind."])
        kinds[part.kind] = part

    def get(self, groups: tuple[str, ...], kind: str) -> type[PartConfig]:
        """The part of that kind in any of the groups. Raises `KeyError`: with a hint that names the nearest kind."""
        self.discover()
        for group in groups:
            if kind in self._parts.get(group, {}):
                return self._parts[group][kind]
        known = {part.kind: part.about.also_called for group in groups for part in self._parts.get(group, {}).values()}
        raise KeyError(f"no {' or '.join(groups)} of kind {kind!r}. {nearest_meaning(kind, known)}")

    def kinds(self, groups: tuple[str, ...]) -> list[str]:
        """Known kinds in the groups, sorted."""
        self.discover()
        return sorted(kind for group in groups for kind in self._parts.get(group, {}))

    def parts(self, group: str | None = None) -> Iterator[type[PartConfig]]:
        """Every registered part, by group and kind."""
        self.discover()
        for name in sorted(self._parts):
            if group is None or name == group:
                yield from (self._parts[name][kind] for kind in sorted(self._parts[name]))

    def groups(self) -> list[str]:
        """Known groups, sorted."""
        self.discover()
        return sorted(self._parts)

    def discover(self) -> None:
        """Import Weft's own parts and installed plugins, once."""
        if self._discovered:
            return
        self._discovered = True  # first, since modules look up other parts while they are imported
        try:
            for package in PACKAGES:
                _import_all(f"weft.{package}")
            for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
                _load_entry(entry)
        except BaseException:
            self._discovered = False
            raise


REGISTRY = Registry()


def register(part: type[P]) -> type[P]:
    """Class decorator: make a part known to configurations, ``list``, ``check``, ``train`` and ``compare``."""
    REGISTRY.add(part)
    return part


def is_loaded(path: str | Path) -> bool:
    """Whether this process has loaded a file as a plugin."""
    module = sys.modules.get(f"{PLUGIN}{Path(path).stem}")
    return module is not None and Path(str(module.__file__)).resolve() == Path(path).resolve()


def load_plugin(path: str | Path) -> None:
    """Import a user's Python file, whose ``@register`` decorators add parts. Raises `ConfigError`: the file is missing
    or cannot be imported; the file's own error is the cause."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError([f"the plugin {str(file)!r} is not a file. Give the path of a Python file."])
    name = f"{PLUGIN}{file.stem}"
    if file.suffix != ".py":
        raise ConfigError([f"the plugin {str(file)!r} is not a Python file. Give the path of a .py file."])
    content = file.read_bytes()
    loader = _Loader(name, str(file), content)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None, "a given loader always yields a specification"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if isinstance(error, WeftError):
            raise
        raise ConfigError([f"the plugin {str(file)!r} does not import: {type(error).__name__}: "
                           f"{str(error).rstrip('.')}. Correct the file and try again."]) from error
    REGISTRY.plugins[name] = hashlib.sha256(content).hexdigest()


class _Loader(SourceFileLoader):
    """Compiles the text that was read and hashed. Python's own loader would reuse the compiled code of an earlier
    version if the file's size and its time of modification, in seconds, are the same."""

    def __init__(self, name: str, path: str, content: bytes) -> None:
        super().__init__(name, path)
        self._content = content

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._content, self.path)


def _load_entry(entry: importlib.metadata.EntryPoint) -> None:
    try:
        entry.load()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError([f"the installed plugin {entry.value!r} does not import: {type(error).__name__}: "
                           f"{str(error).rstrip('.')}. Correct the package or uninstall it."]) from error


def _import_all(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        return
    module = importlib.import_module(package)
    for info in pkgutil.iter_modules(module.__path__, prefix=f"{package}."):
        importlib.import_module(info.name)


def plugin_place(error: BaseException) -> str | None:
    """File and line of the innermost call of a plugin during which an error was raised, ``my.py, line 3``; None: of no
    plugin."""
    places = [f"{frame.f_code.co_filename}, line {line}" for frame, line in traceback.walk_tb(error.__traceback__)
              if str(frame.f_globals.get("__name__")).startswith(PLUGIN)]
    return places[-1] if places else None
