"""JSON Schema of configurations: complete in itself, true of good files, false of misspelt ones."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from pydantic import BaseModel

from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY
from weft.core.schema import json_schema
from weft.models.decoder import DecoderConfig

TYPES: dict[str, tuple[type, ...]] = {"object": (dict,), "array": (list, tuple), "string": (str,), "integer": (int,),
                                      "number": (int, float), "boolean": (bool,), "null": (type(None),)}
TOLD = {"title", "description", "default", "examples", "$defs", "$schema", "format"}
"""Keywords that say nothing of whether a value is right."""


def fits(value: Any, schema: Any, root: dict[str, Any]) -> bool:
    """Whether ``value`` is right by the part of draft 2020-12 that Weft's schemas use; other keywords raise."""
    return schema is True or all(_fits(value, keyword, schema, root) for keyword in schema if keyword not in TOLD)


def _fits(value: Any, keyword: str, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    wanted = schema[keyword]
    mapping = value if isinstance(value, dict) else {}
    items = value if isinstance(value, list) else []
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    match keyword:
        case "$ref":
            return fits(value, root["$defs"][wanted.removeprefix("#/$defs/")], root)
        case "anyOf":
            return any(fits(value, each, root) for each in wanted)
        case "type":
            return isinstance(value, TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
        case "const" | "enum":
            return value in (wanted if keyword == "enum" else [wanted])
        case "properties":
            return all(fits(mapping[name], each, root) for name, each in wanted.items() if name in mapping)
        case "required":
            return set(wanted) <= set(mapping) or value is not mapping
        case "additionalProperties":
            others = [item for name, item in mapping.items() if name not in schema.get("properties", {})]
            return not others if wanted is False else all(fits(item, wanted, root) for item in others)
        case "items":
            return all(fits(item, wanted, root) for item in items)
        case "minLength":
            return not isinstance(value, str) or len(value) >= wanted
        case "minItems" | "maxItems":
            return len(items) >= wanted if keyword == "minItems" else len(items) <= wanted
        case "prefixItems":
            return all(fits(item, each, root) for item, each in zip(items, wanted, strict=False))
        case "minimum":
            return number is None or number >= wanted
        case "exclusiveMinimum":
            return number is None or number > wanted
        case "maximum":
            return number is None or number <= wanted
        case "exclusiveMaximum":
            return number is None or number < wanted
    raise AssertionError(f"this test does not know the keyword {keyword!r}")


def right(value: Any, model: type[BaseModel]) -> bool:
    schema = json_schema(model)
    return fits(value, schema, schema)


BASE = {"kind": "decoder", "vocab_size": 11, "d_model": 8, "position": "learned", "norm": {"kind": "rmsnorm"},
        "shared": {"ff": {"kind": "mlp", "d_ff": 3}}, "blocks": [
            {"repeat": 2, "of": [{"kind": "pre", "layers": [
                {"kind": "attention", "n_heads": 2, "scores": {"softcap": 1.5}, "qk_norm": "rmsnorm",
                 "position": {"kind": "rope", "scaling": "none"}}, {"shared": "ff"}]}]}]}


def changed(*path: Any, value: Any) -> dict[str, Any]:
    data = copy.deepcopy(BASE)
    place: Any = data
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize("part", [pytest.param(part, id=f"{part.group}.{part.kind}") for part in REGISTRY.parts()])
def test_every_example_fits_the_schema_of_its_part(part: type[PartConfig]) -> None:
    schema = json_schema(part)
    for config in part.examples():
        data = json.loads(json.dumps(config.dump()))
        assert fits(data, schema, schema), data
        assert not fits({**data, "misspelt": 1}, schema, schema)
        assert not fits({**data, "kind": "other"}, schema, schema)


def test_every_reference_has_its_definition_and_nothing_of_weft_s_own_is_left() -> None:
    for part in REGISTRY.parts():
        text = json.dumps(json_schema(part))
        wanted = set(re.findall(r'"\$ref": "#/\$defs/([^"]+)"', text))
        assert wanted == set(json_schema(part)["$defs"])
        assert "x-weft" not in text


def test_a_good_file_fits() -> None:
    assert right(BASE, DecoderConfig)
    assert right(changed("blocks", 0, "of", 0, value={"repeat": 2, "of": [{"kind": "plain", "layers": ["gru"]}]}),
                 DecoderConfig)


ATTENTION = ("blocks", 0, "of", 0, "layers", 0)


@pytest.mark.parametrize(("path", "value"), [
    (("d_modle",), 8),
    (("d_model",), 0),
    (("d_model",), "eight"),
    (("position",), "rop"),
    (("position",), {"kind": "rmsnorm"}),
    (("readout",), {"shared": "x"}),
    (("embedding",), {"scal": 2.0}),
    (("shared", "ff", "d_f"), 3),
    ((*ATTENTION, "n_head"), 2),
    ((*ATTENTION, "scores", "softcp"), 2.0),
    ((*ATTENTION, "position", "bas"), 2.0),
    ((*ATTENTION, "bias"), "some"),
    (("blocks",), ["pre"]),
    (("blocks", 0, "repeat"), 0),
    (("blocks", 0, "off"), []),
    (("blocks", 0, "of", 0), "nothing"),
])
def test_a_misspelt_or_wrong_value_does_not_fit(path: tuple[Any, ...], value: Any) -> None:
    assert not right(changed(*path, value=value), DecoderConfig)


def test_defaults_are_what_a_file_would_hold() -> None:
    fields = json_schema(DecoderConfig)["$defs"]["mixer.attention"]["properties"]
    assert fields["mask"]["default"] == "causal"
    assert fields["position"] == {"$ref": "#/$defs/any.position", "default": {"kind": "none"}, "title": "Position"}
    assert fields["kind"] == {"const": "attention"}


def test_plain_settings_have_a_schema_without_a_kind() -> None:
    class Wrapper(BaseModel):
        """A file that holds a model and a number."""

        model: DecoderConfig
        seed: int = 0

    schema = json_schema(Wrapper)
    assert schema["$ref"] == "#/$defs/Wrapper"
    assert fits({"model": {key: value for key, value in BASE.items() if key != "kind"}}, schema, schema)
