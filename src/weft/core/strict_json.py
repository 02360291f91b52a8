"""Records as plain data and back, and JSON that every parser accepts: infinities and NaN, for which JSON has no
numbers, are strings."""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path, PurePath
from typing import Any, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
PLAIN = (str, int, bool, type(None))
"""Types that JSON has as they are; records hold hundreds of such values."""


@dataclass(frozen=True, eq=False)  # each subclass chooses how it compares
class Record:
    """Base of dataclasses that are printed as JSON or kept in files. Fields are numbers, strings, paths, and tuples,
    mappings and records of these. A class whose JSON differs from its fields overrides both methods."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data, which `from_json` reads."""
        return _by_name(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """A record from data that `to_json` wrote; missing fields have their defaults.

        Raises:
            ValueError: the data have fields that the class does not have.
            TypeError: a field without a default is missing.
        """
        return build(cls, data)


def plain(data: Any) -> Any:
    """``data`` in the types of JSON: dataclasses and mappings as objects, tuples as lists, paths as strings, and
    numbers that are not finite as ``"Infinity"``, ``"-Infinity"`` and ``"NaN"``, as in the JSON of Protocol Buffers."""
    if isinstance(data, Record):
        return data.to_json()
    if is_dataclass(data) and not isinstance(data, type):
        return _by_name(data)
    if isinstance(data, Mapping):
        return {str(key): value if type(value) in PLAIN or (type(value) is float and math.isfinite(value))
                else plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [value if type(value) in PLAIN or (type(value) is float and math.isfinite(value)) else plain(value)
                for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    return str(data) if isinstance(data, PurePath) else data


def without_none(data: Mapping[str, Any]) -> dict[str, Any]:
    """The items of ``data`` whose value is not None."""
    return {name: value for name, value in data.items() if value is not None}


def dumps(data: Any, *, indent: int | None = None) -> str:
    """``data`` as JSON text, see `plain`. `number` and `build` read it back."""
    return json.dumps(plain(data), indent=indent, allow_nan=False)


def digest(data: Any) -> str:
    """SHA-256, hexadecimal, of plain data as JSON with sorted keys. Files hold such digests, so the text that is hashed
    never changes."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def number(value: float | str) -> float:
    """The number that `plain` may have written as a string; older files hold infinities and NaN as numbers."""
    return float(value)


def build(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass, whose fields may be dataclasses, from data that `plain` returned. Raises `ValueError`: the data have
    fields that the class does not have."""
    hints = get_type_hints(kind)
    names = {field.name for field in fields(cast(Any, kind))}
    if unknown := sorted(set(data) - names):
        raise ValueError(f"unknown fields of {kind.__name__}: {', '.join(unknown)}")
    return kind(**{name: _value(hints[name], value) for name, value in data.items()})


def _by_name(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = plain({field.name: getattr(record, field.name) for field in fields(record)})
    return found


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(next(each for each in arguments if each is not type(None)), value)
    if origin is tuple:
        return tuple(value) if arguments[0] in PLAIN else tuple(_value(arguments[0], each) for each in value)
    if origin is Mapping:
        return dict(value) if arguments[1] in PLAIN else {name: _value(arguments[1], each)
                                                          for name, each in value.items()}
    if isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_json(value)
    if isinstance(hint, type) and is_dataclass(hint):
        return build(hint, value)
    if hint is float and isinstance(value, str):
        return number(value)
    return Path(value) if hint is Path else value
