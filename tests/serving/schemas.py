"""Random JSON schemas in the manner of those that people give to servers (JSONSchemaBench): nested objects,
enumerations, arrays with bounds, patterns, formats, references, unions, numbers with bounds."""

from __future__ import annotations

from random import Random
from typing import Any

PATTERNS = ("^[A-Z]{2}-[0-9]{3}$", "^(red|green|blue)$", "^[a-z]+@[a-z]+\\.(com|org)$", "^\\d{1,3}(\\.\\d{1,3}){3}$",
            "^x")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")
NAMES = ("id", "name", "tags", "size", "unit price", "größe", 'a"b', "kind", "of", "next")


def schema(draw: Random, depth: int = 3) -> dict[str, Any]:
    """A whole schema: one of a value, with definitions that parts of it refer to."""
    shared = {"shared": value(draw, 1), "chain": {"type": "object", "additionalProperties": False, "properties": {
        "next": {"$ref": "#/$defs/chain"}, "at": {"type": "integer"}}, "required": ["at"]}}
    found = value(draw, depth)
    while draw.random() < 0.3:
        found = {"type": "object", "properties": {"of": found, "kind": {"$ref": f"#/$defs/{draw.choice([*shared])}"}},
                 "required": ["of", "kind"], "additionalProperties": False}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "$defs": shared}


def value(draw: Random, depth: int) -> dict[str, Any]:
    """A schema of a value, of at most so many levels."""
    kinds = [text, text, whole, number, choice, plain] + ([record, record, record, sequence, union] if depth else [])
    return draw.choice(kinds)(draw, depth)


def text(draw: Random, _depth: int) -> dict[str, Any]:
    least = draw.randrange(4)
    more: dict[str, Any] = draw.choice([
        {"minLength": least, "maxLength": least + draw.randrange(12)}, {"pattern": draw.choice(PATTERNS)},
        {"format": draw.choice(FORMATS)}, {"maxLength": 8}])
    return {"type": "string", **more}


def whole(draw: Random, _depth: int) -> dict[str, Any]:
    least = draw.randrange(-50, 50)
    return {"type": "integer", **draw.choice([
        {"minimum": least, "maximum": least + draw.randrange(300)}, {"exclusiveMinimum": least}, {"multipleOf": 5},
        {"minimum": 0, "exclusiveMaximum": 7}])}


def number(draw: Random, _depth: int) -> dict[str, Any]:
    least = round(draw.uniform(-3, 3), 2)
    return {"type": "number", **draw.choice([
        {"minimum": least, "maximum": round(least + 1 + draw.random(), 3)}, {"exclusiveMaximum": least}, {}])}


def choice(draw: Random, _depth: int) -> dict[str, Any]:
    return draw.choice([{"enum": ["a", "b c", 3, None, True, 2.5, "é"]}, {"const": {"x": [1, "y"]}},
                        {"enum": [f"value {place}" for place in range(draw.randrange(1, 40))]}])


def plain(draw: Random, _depth: int) -> dict[str, Any]:
    return {"type": draw.choice(["boolean", "null", ["string", "null"], ["integer", "boolean"]])}


def record(draw: Random, depth: int) -> dict[str, Any]:
    names = draw.sample(NAMES, draw.randrange(1, 4))
    more = draw.choice([False, False, {"type": "integer"}])
    return {"type": "object", "properties": {name: value(draw, depth - 1) for name in names},
            "required": names[: draw.randrange(len(names) + 1)], "additionalProperties": more}


def sequence(draw: Random, depth: int) -> dict[str, Any]:
    least = draw.randrange(3)
    first = {"prefixItems": [value(draw, 0)]} if draw.random() < 0.3 else {}
    return {"type": "array", "items": value(draw, depth - 1), "minItems": least, "maxItems": least + draw.randrange(4),
            **first}


def union(draw: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [value(draw, depth - 1), {"$ref": "#/$defs/shared"}, {"type": "null"}][: draw.randrange(1, 4)]}
