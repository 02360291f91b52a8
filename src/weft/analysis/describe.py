"""`describe`: the documentation and the fields of one part of the catalogue."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from weft.analysis.known_parts import MASK
from weft.core.meanings import meanings, without_meanings
from weft.core.part_config import ModuleConfig, PartConfig
from weft.core.registry import REGISTRY
from weft.core.schema import definition_name, own_definitions
from weft.index.records import Description, Entry, FieldDescription, PartDifference
from weft.masks import Mask, known_masks

REQUIRED, BELOW = "required", "see below"
LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def describe(entry: Entry) -> Description:
    """The documentation and the fields of a part that `catalogue` lists."""
    if entry.group == MASK:
        mask = next(mask for mask in known_masks() if mask.kind == entry.kind)
        return _described(entry, mask, [mask.__doc__ or ""], _arguments(mask))
    part = REGISTRY.get((entry.group,), entry.kind)
    return _described(entry, part, [part.__doc__ or "", *_built(part)], fields_of(part))


def fields_of(config: type[BaseModel]) -> Iterator[FieldDescription]:
    """The fields of a configuration, those of mappings inside it with both keys, parts inside it by their group."""
    name = definition_name(config)
    return _fields(config, name, own_definitions(config), name, "")


def _described(entry: Entry, declared: type[PartConfig] | type[Mask], texts: list[str],
               fields: Iterator[FieldDescription]) -> Description:
    words = "\n\n".join(filter(None, map(without_meanings, texts)))
    return Description(entry, words, tuple(fields), declared.about.equation,
                       tuple(PartDifference(*each) for each in declared.about.differs))


def _built(part: type[PartConfig]) -> Iterator[str]:
    """The documentation of the class that a configuration builds, if both are in one file: it has the equation."""
    if not issubclass(part, ModuleConfig):
        return
    built = getattr(sys.modules[part.__module__], str(part.build.__annotations__.get("return")), None)
    if isinstance(built, type) and built.__module__ == part.__module__ and built.__doc__:
        yield inspect.cleandoc(built.__doc__)


def _fields(config: type[BaseModel], name: str, definitions: Mapping[str, Any], root: str,
            before: str) -> Iterator[FieldDescription]:
    own = definitions[name]
    words = meanings(config, config.model_fields)
    for key, field in own.get("properties", {}).items():
        if key == "kind" and key not in config.model_fields:
            continue
        inner = _inner(config.model_fields[key].annotation)
        empty: Any = [] if field.get("type") == "array" else {}
        default = REQUIRED if key in own.get("required", []) else json.dumps(field.get("default", empty))
        shown = BELOW if inner and default.startswith("{") and default != "{}" else default
        yield FieldDescription(before + key, _type(field), shown, words[key])
        for inside, model in inner:
            yield from _fields(model, f"{root}.{model.__name__}", definitions, root, f"{before}{key}.{inside}")


def _inner(annotation: Any) -> list[tuple[str, type[BaseModel]]]:
    """The mappings with keys of their own in an annotation, each with what stands before these keys."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [] if issubclass(annotation, PartConfig) else [("", annotation)]
    origin = get_origin(annotation)
    prefix = "NAME." if origin is dict else "N." if origin in (list, tuple) else ""
    return [(prefix + rest, model) for each in get_args(annotation) for rest, model in _inner(each)]


def _arguments(mask: type[Mask]) -> Iterator[FieldDescription]:
    given = inspect.signature(mask).parameters
    words = meanings(mask, given)
    for argument in given.values():
        default = REQUIRED if argument.default is argument.empty else repr(argument.default)
        if argument.kind is argument.VAR_POSITIONAL:
            default = "any number"
        yield FieldDescription(argument.name, str(argument.annotation), default, words[argument.name])


def _type(schema: dict[str, Any] | bool) -> str:
    """A JSON Schema in words; one that is a truth value allows all values or none."""
    if isinstance(schema, bool):
        return "anything" if schema else "nothing"
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return name.removeprefix("any.").removesuffix(".repeated") if name.startswith("any.") else "mapping"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object":
        return f"names of {_type(schema.get('additionalProperties', {}))}"
    limits = [f"{sign} {schema[key]:{',' if isinstance(schema[key], int) else 'g'}}"
              for key, sign in LIMITS.items() if key in schema]
    return " ".join([schema.get("type", "anything"), *limits])
