"""The published models: names, numbers of parameters with their sources, and configurations, as data.

``published/FAMILY.json`` has the models of a family. Reading it needs neither torch nor the families themselves, so
that names can be listed at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, final

Keys: TypeAlias = Literal["copy", "memory", "shape"]


@final
@dataclass(frozen=True)
class PublishedCopy:
    """A copy of a published config.json in a public repository of code.

    Attributes:
        repository: of GitHub, as OWNER/NAME.
        path: of the file in it, and the name within a file of many configurations.
        differs: keys that the copy has otherwise than `Size.values`, or besides, with its values for them; without
            ``_name_or_path`` where that is a path on somebody's machine.
        lacks: keys of `Size.values` that the copy does not have.
    """

    repository: str
    path: str
    differs: Mapping[str, Any] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()

    def content(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The copy, which differs from ``values`` as is said here."""
        return {**{key: value for key, value in values.items() if key not in self.lacks}, **self.differs}


@final
@dataclass(frozen=True)
class Size:
    """A published model of a family.

    Attributes:
        name: the published name, in small letters.
        values: keys of its configuration (the family's own defaults fill in the rest), or facts, for a family that no
            foreign format writes.
        parameters: the published number; None: none is known exactly, or only of files of another form.
        source: the source of that number.
        keys: where ``values`` come from. "copy": all keys of its config.json, retyped from a copy of the file;
            "memory": the same, retyped without a copy at hand; "shape": only the keys on which the shapes depend, from
            the paper or the file.
        rounded: significant digits of ``parameters``; None: exact.
        counted: parameters of the model as Weft builds it, shared ones once; None: the published number, which is
            exact.
        hub: its name on the Hub; empty: none.
        quoted: shares of its operations, by part, that lectures quote.
        found: a copy of its config.json, with which ``values`` were compared; None: none was found.
    """

    name: str
    family: str
    values: Mapping[str, Any]
    parameters: int | None
    source: str
    keys: Keys
    rounded: int | None = None
    counted: int | None = None
    hub: str = ""
    also: tuple[str, ...] = ()
    quoted: Mapping[str, float] = field(default_factory=dict)
    found: PublishedCopy | None = None

    @property
    def count(self) -> int:
        """Parameters of the model as Weft builds it."""
        count = self.parameters if self.counted is None else self.counted
        assert count is not None, "one of the two is declared"
        return count


@cache
def published() -> Mapping[str, Size]:
    """Every published model by its name, families in alphabetical order."""
    found: dict[str, Size] = {}
    folder = resources.files("weft.preset_files") / "published"
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        for name, record in json.loads(file.read_text(encoding="utf-8")).items():
            assert name not in found, f"two published models are called {name}"
            found[name] = _size(name, file.name.removesuffix(".json"), record)
    return MappingProxyType(found)


def sizes_of(family: str) -> tuple[Size, ...]:
    """The published models of a family."""
    return tuple(size for size in published().values() if size.family == family)


def size_named(name: str) -> Size | None:
    """The published model of that name, or of that further name; None: there is none."""
    further = {other: size for size in published().values() for other in size.also}
    return published().get(name) or further.get(name)


def _size(name: str, family: str, record: Mapping[str, Any]) -> Size:
    found = record.get("found")
    copy = None if found is None else PublishedCopy(found["repository"], found["path"], found.get("differs", {}),
                                                    tuple(found.get("lacks", ())))
    return Size(name, family, record["config"], record["parameters"], record["source"], record["keys"],
                record.get("rounded"), record.get("counted"), record.get("hub", ""), tuple(record.get("also", ())),
                record.get("quoted", {}), copy)
