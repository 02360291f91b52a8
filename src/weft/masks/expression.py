"""Masks written in configuration files: ``causal & (window(4) | global(0))``.

Names are mask kinds; ``&`` (and), ``|`` (or) and ``~`` (not) bind as in Python; arguments are integers or, for
``per_head``, masks. Nothing is evaluated: the text is parsed to a syntax tree and only these forms are read.

Masks that differ from head to head.

Known masks by kind. A plugin's masks join with ``@register_mask``, as its parts do with ``@register``.
"""

from __future__ import annotations

import ast
import inspect
import keyword
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from torch import Tensor

from weft.core.errors import ConfigError, nearest
from weft.core.part_config import About, PartConfig, parts_in
from weft.core.registry import REGISTRY
from weft.masks.base import Mask
from weft.masks.terms import AMOUNTS, Band, Key, Lookahead, Pattern, Query

M = TypeVar("M", bound=Mask)


MASKS: dict[str, type[Mask]] = {}
"""Registered masks by their kind."""


def register_mask(mask: type[M]) -> type[M]:
    """Class decorator: make a mask known to configurations and ``list``. Raises `ConfigError`: when another class has
    that kind, or the kind is not a name."""
    if not mask.kind.isidentifier():
        raise ConfigError([f"the mask class {mask.__qualname__} has the kind {mask.kind!r}, which is not a name. "
                           "Set `kind` to letters, digits and underscores."])
    other = MASKS.get(mask.kind)
    if other is not None and (other.__module__, other.__qualname__) != (mask.__module__, mask.__qualname__):
        raise ConfigError([f"the mask {mask.kind!r} is defined by {other.__module__} and by {mask.__module__}. "
                           "Give one of them another kind."])
    MASKS[mask.kind] = mask
    return mask


def mask_of_kind(kind: str) -> type[Mask]:
    """The mask of that kind. Raises `KeyError`: with a hint that names the nearest kind."""
    if kind not in MASKS:
        REGISTRY.discover()
    if kind not in MASKS:
        raise KeyError(f"no mask is called {kind!r}. {nearest(kind, MASKS)}")
    return MASKS[kind]


def known_masks() -> list[type[Mask]]:
    """Every mask class, by kind."""
    REGISTRY.discover()
    return [MASKS[kind] for kind in sorted(MASKS)]


def usage(mask: type[Mask]) -> str:
    """How the mask is written: its kind and the names of its arguments."""
    arguments = [f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name if p.default is p.empty
                 else f"{p.name}={p.default!r}" for p in inspect.signature(mask).parameters.values()]
    return f"{mask.kind}({', '.join(arguments)})" if arguments else mask.kind


def parts_and_masks(config: Any) -> Iterator[PartConfig | Mask]:
    """Every part in a configuration, every mask in a field of one, and the masks that a mask combines."""
    for part in parts_in(config):
        yield part
        waiting = [value for _, value in part if isinstance(value, Mask)]
        while waiting:
            mask = waiting.pop()
            yield mask
            waiting += mask.parts()


HELP = "Write mask names joined by & | ~, such as 'causal & window(128)'."


def parse_mask(value: object) -> Mask:
    """The mask of an expression or of a mapping with a kind (``{kind: window, size: 4}``); a mask is returned as it is.
    Raises `ConfigError`: for unknown names (the nearest is named), wrong arguments, and anything that is not an
    expression."""
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
    listed = [fields[name] if isinstance(fields[name], list | tuple) else [fields[name]] for name in spread]
    values = [item if isinstance(item, int) else parse_mask(item) for each in listed for item in each]
    return _make(kind, values, {name: item for name, item in fields.items() if name not in spread})


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


@register_mask
@dataclass(frozen=True, repr=False, init=False)
class PerHead(Mask):
    """Head h follows mask h mod n of the n ``masks``.

    Attributes:
        masks: the masks, in the order of heads.
    """

    kind: ClassVar[str] = "per_head"
    about = About(
        source="Child et al. 2019, section 4.2; Beltagy et al. 2020, section 3.1 (dilation by head)",
        equation=r"A_h(i) = A^{(h \bmod n)}(i)",
        differs=(("strided", "gives different heads different masks, where any other mask is the same for all."),))

    masks: tuple[Mask, ...]

    def __init__(self, *masks: Mask) -> None:
        for mask in masks:
            if not isinstance(mask, Mask):
                raise ConfigError([f"per_head: {mask!r} is not a mask. Give one mask for each head, such as "
                                   "per_head(window(4), strided(4))."])
        if len(masks) < 2:
            raise ConfigError([f"per_head: {len(masks)} masks, and heads differ only with two or more. Give one for "
                               "each head, such as per_head(window(4), strided(4))."])
        object.__setattr__(self, "masks", tuple(masks))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        turn = head % len(self.masks)
        found = self.masks[0].rule(query, key, head)
        for index, mask in enumerate(self.masks[1:], start=1):
            found = torch.where(turn == index, mask.rule(query, key, head), found)
        return found

    def lookahead(self) -> Lookahead:
        return max((mask.lookahead() for mask in self.masks), key=AMOUNTS.index)

    def reach(self) -> int | None:
        bounds = [mask.reach() for mask in self.masks]
        known = [bound for bound in bounds if bound is not None]
        return max(known) if len(known) == len(bounds) else None

    def band(self) -> Band:
        return reduce(Band.join, (mask.band() for mask in self.masks))

    def heads(self) -> int:
        return math.lcm(len(self.masks), *(mask.heads() for mask in self.masks))

    def pattern(self) -> Pattern | None:
        first = self.masks[0].pattern()
        return first if all(mask.pattern() == first for mask in self.masks) else None

    def parts(self) -> tuple[Mask, ...]:
        return self.masks
