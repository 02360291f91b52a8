"""Masks written in configuration files: ``causal & (window(4) | global(0))``.

Names are mask kinds; ``&`` (and), ``|`` (or) and ``~`` (not) bind as in Python; arguments are integers or, for
``per_head``, masks. Nothing is evaluated: the text is parsed to a syntax tree and only these forms are read.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import re
from collections.abc import Mapping
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from weft.core.errors import ConfigError, nearest
from weft.masks.base import Mask
from weft.masks.registry import known_masks, mask_of_kind, usage

HELP = "Write mask names joined by & | ~, such as 'causal & window(128)'."


def parse_mask(value: object) -> Mask:
    """The mask of an expression or of a mapping with a kind (``{kind: window, size: 4}``); a mask is returned as it is.

    Raises:
        ConfigError: for unknown names (the nearest is named), wrong arguments, and anything that is not an expression.
    """
    if isinstance(value, Mask):
        return value
    if isinstance(value, Mapping):
        return _of_mapping(value)
    if not isinstance(value, str):
        raise ConfigError([f"{value!r} is not a mask. {HELP}"])
    # Names that are keywords of Python, such as ``global``, are followed by an underscore, so that the text parses.
    text = re.sub(r"\b[a-z]+\b", lambda name: f"{name[0]}_" if keyword.iskeyword(name[0]) else name[0], value.strip())
    try:
        return _of_node(ast.parse(text, mode="eval").body, value)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError([f"{value!r} is not a mask expression. {HELP}"]) from error


def _of_node(node: ast.expr, text: str) -> Mask:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _of_node(left, text) & _of_node(right, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _of_node(left, text) | _of_node(right, text)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_of_node(operand, text)
        case ast.Name(id=name):
            return _make(_kind(name), [], {})
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=named) if all(item.arg for item in named):
            return _make(_kind(name), [_argument(item, text) for item in arguments],
                         {str(item.arg): _argument(item.value, text) for item in named})
    raise ConfigError([f"{ast.unparse(node)!r} in {text!r} is not a mask. {HELP}"])


def _argument(node: ast.expr, text: str) -> Any:
    """A literal, which the mask itself checks, or a mask."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _of_node(node, text)


def _kind(name: str) -> str:
    return name.removesuffix("_") if keyword.iskeyword(name.removesuffix("_")) else name


def _make(kind: str, values: list[Any], named: dict[str, Any]) -> Mask:
    try:
        mask = mask_of_kind(kind)
    except KeyError as error:
        raise ConfigError([str(error.args[0])]) from None
    try:
        bound = inspect.signature(mask).bind(*values, **named)
    except TypeError as error:
        raise ConfigError([f"{kind}: {error}. Write {usage(mask)}."]) from None
    return mask(*bound.args, **bound.kwargs)


def _of_mapping(value: Mapping[Any, Any]) -> Mask:
    fields = {str(name): item for name, item in value.items()}
    kind = fields.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError([f"{dict(value)!r} does not name a mask. Give its kind, as in {{kind: window, size: 128}}, "
                           "or write an expression."])
    try:
        parameters = inspect.signature(mask_of_kind(kind)).parameters
    except KeyError as error:
        raise ConfigError([str(error.args[0])]) from None
    for name in fields:
        if name not in parameters:
            raise ConfigError([f"{kind}: unknown key {name!r}. {nearest(name, parameters)}"])
    spread = [name for name in fields if parameters[name].kind is inspect.Parameter.VAR_POSITIONAL]
    values = [item if isinstance(item, int) else parse_mask(item) for name in spread for item in _listed(fields[name])]
    return _make(kind, values, {name: item for name, item in fields.items() if name not in spread})


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


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
