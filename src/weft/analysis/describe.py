"""`describe`: the documentation and the fields of one part of the catalogue."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.analysis.catalogue import MASK, Entry
from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY
from weft.core.schema import json_schema
from weft.core.strict_json import Record
from weft.masks import Mask, known_masks

REQUIRED = "required"
LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


@dataclass(frozen=True)
class FieldDescription(Record):
    """A field of a part's configuration.

    Attributes:
        type: the allowed values, in words.
        default: the default as a file writes it; "required" if there is none.
    """

    name: str
    type: str
    default: str


@dataclass(frozen=True)
class Description(Record):
    """The description of one part.

    Attributes:
        text: the documentation of the part and of the class that it builds.
        fields: the fields of its configuration, or a mask's arguments.
    """

    entry: Entry
    text: str
    fields: tuple[FieldDescription, ...]


def describe(entry: Entry) -> Description:
    """The documentation and the fields of a part that `catalogue` lists."""
    if entry.group == MASK:
        mask = next(mask for mask in known_masks() if mask.kind == entry.kind)
        return Description(entry, inspect.getdoc(mask) or "", tuple(_arguments(mask)))
    part = REGISTRY.get((entry.group,), entry.kind)
    texts = [inspect.getdoc(part), *_built(part)]
    return Description(entry, "\n\n".join(text for text in texts if text), tuple(_fields(part)))


def _built(part: type[PartConfig]) -> Iterator[str]:
    """The documentation of the class that a configuration builds, if both are in one file: it has the equation."""
    built = getattr(sys.modules[part.__module__], str(part.build.__annotations__.get("return")), None)
    if isinstance(built, type) and built.__module__ == part.__module__ and built.__doc__:
        yield inspect.cleandoc(built.__doc__)


def _fields(part: type[PartConfig]) -> Iterator[FieldDescription]:
    definitions = json_schema(part)["$defs"]
    own = definitions[f"{part.group}.{part.kind}"]
    for name, field in own["properties"].items():
        if name == "kind":
            continue
        default = json.dumps(field["default"]) if "default" in field else "{}"
        yield FieldDescription(name, _type(field), REQUIRED if name in own["required"] else default)


def _arguments(mask: type[Mask]) -> Iterator[FieldDescription]:
    for argument in inspect.signature(mask).parameters.values():
        default = REQUIRED if argument.default is argument.empty else repr(argument.default)
        if argument.kind is argument.VAR_POSITIONAL:
            default = "any number"
        yield FieldDescription(argument.name, str(argument.annotation), default)


def _type(schema: dict[str, Any] | bool) -> str:
    """A JSON Schema in words; one that is a truth value allows all values or none."""
    if isinstance(schema, bool):
        return "anything" if schema else "nothing"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return name.removeprefix("any.").removesuffix(".repeated") if name.startswith("any.") else "mapping"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object":
        return f"names of {_type(schema.get('additionalProperties', {}))}"
    limits = [f"{sign} {schema[key]:g}" for key, sign in LIMITS.items() if key in schema]
    return " ".join([schema.get("type", "anything"), *limits])
