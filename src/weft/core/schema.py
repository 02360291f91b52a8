"""JSON Schema of a configuration, for editors: the keys a file may hold, with the fields of every part it can name.

The schema is self-contained: every part that a field may hold is under ``$defs`` by group and kind, and so are the
groups, so that a part is described once however many fields may hold it. It covers the form of a file. Rules between
fields, mask expressions and everything that depends on dimensions are checked by `parse` and `PartConfig.build`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from weft.core.config import PART_KEYWORD, SHAREABLE
from weft.core.part_config import PartConfig, Repeat, Shared
from weft.core.registry import REGISTRY

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(config: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of files that hold ``config``: a whole run, a model, or any part.

    A part's file carries its kind, as `PartConfig.dump` writes it.
    """
    definitions: dict[str, Any] = {}
    name = definition_name(config)
    waiting = [(name, config)]
    while waiting:
        key, model = waiting.pop()
        if key in definitions:
            continue
        definitions[key] = {}
        described, groups = _describe(key, model, definitions)
        definitions[key] = described
        for group, repeats in groups:
            definitions.setdefault(_group_name(group, repeats), _choices(group, repeats))
            waiting += [(definition_name(part), part) for part in REGISTRY.parts(group)]
    return {"$schema": DIALECT, "$ref": _reference(name), "$defs": dict(sorted(definitions.items()))}


def own_definitions(config: type[BaseModel]) -> dict[str, Any]:
    """The schemas of ``config`` and of the plain models inside it, by name, as `json_schema` has them; its own is under
    `definition_name`."""
    definitions: dict[str, Any] = {}
    name = definition_name(config)
    definitions[name], _ = _describe(name, config, definitions)
    return definitions


def definition_name(config: type[BaseModel]) -> str:
    """The name of a configuration's schema: group and kind of a part, ``mixer.lstm``, and the class of settings."""
    return f"{config.group}.{config.kind}" if issubclass(config, PartConfig) else config.__name__


def _reference(name: str) -> str:
    return f"#/$defs/{name}"


def _group_name(group: str, repeats: bool) -> str:
    return f"any.{group}.repeated" if repeats else f"any.{group}"


def _describe(key: str, config: type[BaseModel],
              definitions: dict[str, Any]) -> tuple[dict[str, Any], set[tuple[str, bool]]]:
    """The schema of one model, and the groups of parts that its fields may hold. The plain models inside it are added
    to ``definitions`` under names with ``key`` in front, because two parts may each have a ``ScoreSettings``."""
    # In this mode defaults have the form that they have in files: parts with their kinds, masks as expressions.
    schema = config.model_json_schema(mode="serialization", ref_template=_reference(f"{key}.{{model}}"))
    inner = schema.pop("$defs", {})
    groups: set[tuple[str, bool]] = set()
    for name, value in inner.items():
        definitions[f"{key}.{name}"] = _resolved(value, groups)
    described: dict[str, Any] = _resolved(schema, groups)
    if issubclass(config, PartConfig):
        described["properties"] = {"kind": {"const": config.kind}, **described.get("properties", {})}
        described["required"] = ["kind", *described.get("required", [])]
    return described, groups


def _resolved(node: Any, groups: set[tuple[str, bool]]) -> Any:
    """``node`` with a reference to the groups in place of the marker of every field that holds a part."""
    if isinstance(node, list):
        return [_resolved(item, groups) for item in node]
    if not isinstance(node, dict):
        return node
    if PART_KEYWORD not in node:
        return {key: value if key in ("default", "examples") else _resolved(value, groups)
                for key, value in node.items()}
    named = [(group, node[PART_KEYWORD]["repeats"]) for group in node[PART_KEYWORD]["groups"]]
    groups.update(named)
    references = [{"$ref": _reference(_group_name(*each))} for each in named]
    rest = {key: value for key, value in node.items() if key != PART_KEYWORD}
    return {**rest, **(references[0] if len(references) == 1 else {"anyOf": references})}


def _choices(group: str, repeats: bool) -> dict[str, Any]:
    """The forms of a part of ``group`` in a file: a kind without required fields, a mapping with a kind, a reference to
    a shared part, or repeated blocks."""
    return {"anyOf": list(_each_choice(group, repeats))}


def _each_choice(group: str, repeats: bool) -> Iterator[dict[str, Any]]:
    parts = list(REGISTRY.parts(group))
    alone = [part.kind for part in parts if not any(field.is_required() for field in part.model_fields.values())]
    if alone:
        yield {"enum": alone}
    yield from ({"$ref": _reference(definition_name(part))} for part in parts)
    if group in SHAREABLE:
        yield _mapping(Shared, {"shared": {"type": "string"}})
    if repeats:
        itself = {"$ref": _reference(_group_name(group, repeats))}
        yield _mapping(Repeat, {"repeat": {"type": "integer", "minimum": 1},
                                "of": {"type": "array", "minItems": 1, "items": itself}})


def _mapping(config: type[PartConfig], properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "description": config.__doc__, "properties": properties,
            "required": list(properties), "additionalProperties": False}
