"""Python's values as JSON, between a program's process and the one that judges it: nothing that is read runs code.

Numbers, texts and containers are written by what they are, of whatever subclass; what cannot be written is held where
it is, under a number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

MOST = 16 << 20
"""Bytes of one message."""
HEXADECIMAL = 1 << 64
"""Whole numbers from here on are written so: reading many decimal digits takes more than linear time."""
CONTAINERS: Mapping[str, Any] = MappingProxyType({"tuple": tuple, "set": set, "frozenset": frozenset})
MADE: Mapping[str, Callable[[Any], tuple[Any, ...]]] = MappingProxyType({
    "builtins.range": lambda value: (value.start, value.stop, value.step),
    "builtins.bytearray": lambda value: (bytes(value),),
    "array.array": lambda value: (value.typecode, value.tolist()),
    "collections.deque": lambda value: (list(value), value.maxlen),
    "decimal.Decimal": lambda value: (str(value),),
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds)})
"""Arguments of the constructors of further types, by the name of the type."""


def packed(value: Any, hold: Callable[[Any], int]) -> Any:
    """A value as JSON has it.

    Args:
        hold: gives a number to what is not data.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -HEXADECIMAL < value < HEXADECIMAL else {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list):
        return [packed(item, hold) for item in value]
    if isinstance(value, dict):
        return {"dict": [[packed(key, hold), packed(item, hold)] for key, item in value.items()]}
    for name, kind in CONTAINERS.items():
        if isinstance(value, kind):
            return {name: [packed(item, hold) for item in value]}
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if name in MADE:
        return {"made": [name, *(packed(item, hold) for item in MADE[name](value))]}
    return {"held": hold(value)}


def unpacked(value: Any, held: Callable[[int], Any]) -> Any:
    """The value of JSON that `packed` gives.

    Args:
        held: the object of a number.

    Raises:
        ValueError: it is nothing that `packed` gives.
    """
    if isinstance(value, list):
        return [unpacked(item, held) for item in value]
    if not isinstance(value, dict):
        return value
    (name, content), *more = value.items()
    if more:
        raise ValueError("two kinds at once")
    match name:
        case "int":
            return int(content, 16)
        case "complex":
            return complex(*content)
        case "bytes":
            return bytes.fromhex(content)
        case "dict":
            return {unpacked(key, held): unpacked(item, held) for key, item in content}
        case "made":
            module, _, kind = content[0].rpartition(".")
            if content[0] not in MADE:
                raise ValueError("of no known type")
            return getattr(import_module(module), kind)(*(unpacked(item, held) for item in content[1:]))
        case "held":
            return held(content)
    return CONTAINERS[name](unpacked(item, held) for item in content)


def line_of(message: Any) -> bytes:
    """A message as a line of JSON. Raises `ValueError`: it has more than `MOST` bytes."""
    line = json.dumps(message).encode("ascii") + b"\n"
    if len(line) > MOST:
        raise ValueError("a message of too many bytes")
    return line
