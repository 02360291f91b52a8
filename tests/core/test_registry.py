"""The open registry: duplicates, plugins by file, plugins by entry point."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from taken_back import taken_back
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY, Registry, load_plugin

PART = '''
from typing import ClassVar
from weft.core.config import Dims, PartConfig, PartField, Settings  # the one module that a user's file needs for these
from weft.core.registry import register
from weft.feedforward.mlp import MLPConfig

@register
class {name}(MLPConfig):
    """A part of a user's own."""
    kind: ClassVar[str] = "{kind}"
'''


class First(PartConfig):
    """A part."""

    group: ClassVar[str] = "sort"
    kind: ClassVar[str] = "one"


class Second(PartConfig):
    """Another part of the same kind."""

    group: ClassVar[str] = "sort"
    kind: ClassVar[str] = "one"


@pytest.fixture
def own() -> Iterator[None]:
    """Takes back what a test registers and imports."""
    modules, path = set(sys.modules), list(sys.path)
    with taken_back():
        yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if "plugin" in name:
            del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_kind_has_one_definition() -> None:
    registry = Registry()
    registry.add(First)
    registry.add(First)
    with pytest.raises(ConfigError, match=r"the sort 'one' is defined by .*test_registry and by .*test_registry. Give"):
        registry.add(Second)
    assert registry.get(("sort",), "one") is First


def test_an_unknown_kind_names_the_nearest_in_its_groups() -> None:
    with pytest.raises(KeyError, match=r"no mixer or feedforward of kind 'ml'. Did you mean 'mlp'\?"):
        REGISTRY.get(("mixer", "feedforward"), "ml")
    with pytest.raises(KeyError, match=r"no nothing of kind 'x'. There are none."):
        REGISTRY.get(("nothing",), "x")


def test_discovery_finds_every_group_in_order() -> None:
    groups = {"mixer", "feedforward", "position", "norm", "block", "model", "encoder", "readout"}
    assert groups <= set(REGISTRY.groups())
    assert REGISTRY.groups() == sorted(REGISTRY.groups())
    names = [(part.group, part.kind) for part in REGISTRY.parts()]
    assert names == sorted(names)
    assert REGISTRY.kinds(("block",)) == [part.kind for part in REGISTRY.parts("block")]


def test_a_user_s_file_adds_a_part(own: None, tmp_path: Path) -> None:
    load_plugin(write(tmp_path / "plugin_mine.py", PART.format(name="Mine", kind="mine")))
    part = parse_part(("feedforward",), {"kind": "mine", "d_ff": 5})
    assert type(part).__name__ == "Mine"
    load_plugin(tmp_path / "plugin_mine.py")  # the same file again replaces its own parts
    assert "mine" in REGISTRY.kinds(("feedforward",))


def test_what_runs_of_a_file_is_what_stands_in_it(own: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes a file of the same size and second for the one that it has compiled."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "plugin_twice.py"
    for number in (1, 2):
        file.write_text(f"NUMBER = {number}\n", encoding="utf-8")
        os.utime(file, (1, 1))
        load_plugin(file)
        assert number == sys.modules["weft_plugin_plugin_twice"].NUMBER
        assert REGISTRY.plugins["weft_plugin_plugin_twice"] == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(("name", "text", "message"), [
    ("plugin_a.py", None, r"the plugin '.*plugin_a.py' is not a file. Give the path of a Python file."),
    ("plugin_b.txt", "", r"the plugin '.*plugin_b.txt' is not a Python file. Give the path of a .py file."),
    ("plugin_c.py", "def", r"the plugin '.*plugin_c.py' does not import: SyntaxError: .*Correct the file and try agai"),
    ("plugin_d.py", "1 / 0", r"the plugin '.*plugin_d.py' does not import: ZeroDivisionError: division by zero. Corr"),
    ("plugin_e.py", "import weft_no_such", r"does not import: ModuleNotFoundError: No module named 'weft_no_such'. Co"),
    ("plugin_f.py", PART.format(name="Other", kind="mlp"),
     r"the feedforward 'mlp' is defined by weft.feedforward.mlp and by weft_plugin_plugin_f. Give one"),
])
def test_a_file_that_cannot_be_a_plugin(own: None, tmp_path: Path, name: str, text: str | None, message: str) -> None:
    file = tmp_path / name if text is None else write(tmp_path / name, text)
    with pytest.raises(ConfigError, match=message):
        load_plugin(file)
    assert f"weft_plugin_{file.stem}" not in sys.modules


def test_the_file_s_own_error_is_the_cause(own: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plugin(write(tmp_path / "plugin_g.py", "1 / 0"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def distribution(folder: Path, module: str, text: str) -> None:
    """A package that is installed as far as importlib.metadata can see."""
    write(folder / f"{module}.py", text)
    info = folder / f"{module}-1.0.dist-info"
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    write(info / "entry_points.txt", f"[weft.parts]\nparts = {module}\n")
    sys.path.insert(0, str(folder))


def test_an_installed_package_adds_parts(own: None, tmp_path: Path) -> None:
    distribution(tmp_path, "weft_test_plugin_h", PART.format(name="Theirs", kind="theirs"))
    Registry().discover()
    assert "theirs" in REGISTRY.kinds(("feedforward",))


def test_an_installed_package_that_does_not_import_is_named(own: None, tmp_path: Path) -> None:
    distribution(tmp_path, "weft_test_plugin_i", "1 / 0")
    registry = Registry()
    with pytest.raises(ConfigError, match=r"the installed plugin 'weft_test_plugin_i' does not import: ZeroDivisionEr"):
        registry.discover()
    sys.path.remove(str(tmp_path))
    registry.discover()  # what failed is tried again
