"""Dataclasses from the plain data that they were written as."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from weft.core.strict_json import number

T = TypeVar("T")


def build(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass, whose fields may be dataclasses, from the plain data that `dataclasses.asdict` and JSON make of it.

    Raises:
        ValueError: fields that it does not have.
    """
    hints = get_type_hints(kind)
    names = {field.name for field in fields(cast(Any, kind))}
    if unknown := sorted(set(data) - names):
        raise ValueError(f"unknown fields of {kind.__name__}: {', '.join(unknown)}")
    return kind(**{name: _value(hints[name], value) for name, value in data.items()})


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if value is None else _value(next(each for each in arguments if each is not type(None)), value)
    if origin is tuple:
        return tuple(_value(arguments[0], each) for each in value)
    if is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value)
    return number(value) if hint is float else value
