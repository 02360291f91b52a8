"""`MaskField`: the annotation of a configuration field that holds a mask."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from weft.core.errors import ConfigError
from weft.masks.base import Mask
from weft.masks.expression import parse_mask
from weft.masks.registry import known_masks, usage


class MaskField:
    """``mask: Annotated[Mask, MaskField()] = Causal()``: an expression, a mapping or a mask; serialised as an
    expression."""

    def resolve(self, value: Any) -> Mask:
        """The mask, or an error that pydantic reports with the field's path."""
        try:
            return parse_mask(value)
        except ConfigError as error:
            problems = [((), problem) for problem in error.problems]
            raise PydanticCustomError("weft_rule", "{what}", {"what": "; ".join(error.problems),
                                                              "problems": problems}) from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.resolve, serialization=core_schema.plain_serializer_function_ser_schema(repr))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        names = ", ".join(usage(mask) for mask in known_masks())
        return {"type": "string", "description": f"Masks joined by & | ~: {names}.",
                "examples": ["causal", "causal & window(128)", "causal | prefix", "causal & (window(4) | global(0))"]}
