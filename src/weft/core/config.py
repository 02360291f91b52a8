"""The configuration tree: parts' configurations resolved through the registry, and their problems as sentences.

A field that holds a part is annotated ``Annotated[MixerConfig, PartField("mixer")]``. In a file it is a kind
(``rope``), a mapping with a kind (``{kind: rope, base: 500000}``), or a reference to a part declared under ``shared:``
(``{shared: bias}``). Plain pydantic would lose a part's own fields in a base-typed field; `PartField` keeps the runtime
type both ways.

The classes that a plugin's configurations need (`Dims`, `ModuleConfig`, `PartConfig`, `Settings`) can be imported from
here too, so that a user's file needs one module; Weft's own modules import them from `weft.core.part_config`.

Parts declared under ``shared:``, each built on its first use and then the same module wherever it is named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema
from torch import nn

from weft.core.errors import ConfigError, nearest
from weft.core.part_config import Dims as Dims
from weft.core.part_config import ModuleConfig as ModuleConfig
from weft.core.part_config import PartConfig as PartConfig
from weft.core.part_config import Place, Repeat, Shared, dump
from weft.core.part_config import Settings as Settings
from weft.core.registry import REGISTRY

M = TypeVar("M", bound=BaseModel)

SHAREABLE = ("position", "position_table", "mixer", "feedforward", "norm")
"""Groups of parts that may be declared under ``shared:``."""

PART_KEYWORD = "x-weft-part"
"""The keyword that marks, in the JSON Schema of one model, a field that holds a part."""


class PartField:
    """Annotation of a field that holds a part.

    Args:
        groups: of which one is the part's.
        repeats: whether the field may hold a `Repeat` as well.
        shares: whether it may hold a reference to a shared part, if parts of the groups can be shared at all.
    """

    def __init__(self, *groups: str, repeats: bool = False, shares: bool = True) -> None:
        self.groups, self.repeats = groups, repeats
        self.shares = shares and bool(set(groups) & set(SHAREABLE))

    def resolve(self, value: Any) -> PartConfig:
        """The part's configuration from a kind, a mapping or a configuration."""
        if isinstance(value, PartConfig):
            return self._require_group(value)
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, Mapping):
            raise PydanticCustomError("weft_rule", "{what}", {"what": f"{value!r} is not a {self._name()}. Give a kind "
                                      f"or a mapping with one. Known kinds: {', '.join(self._kinds())}."})
        special = self._special(value)
        return special if special is not None else self._of_kind(dict(value))

    def _special(self, value: Mapping[str, Any]) -> PartConfig | None:
        if "shared" in value and "kind" not in value:
            extra: list[tuple[Place, str]] = [((key,), f"unknown key {key!r}. A reference holds `shared` alone.")
                                              for key in value if key != "shared"]
            if extra:
                raise _part_error(extra)
            return self._require_group(_validate_part(Shared, dict(value)))
        if self.repeats and "repeat" in value and "kind" not in value:
            items = value.get("of")
            if not isinstance(items, list) or not items:
                raise _part_error([(("of",), "a repeat needs a list of blocks. Write {repeat: 6, of: [...]}.")])
            if type(value["repeat"]) is not int or value["repeat"] < 1:
                raise _part_error([(("repeat",), f"{value['repeat']!r} is not a positive number of times.")])
            return _validate_part(Repeat, {**value, "of": _each(self.resolve, items)})
        return None

    def _of_kind(self, value: dict[str, Any]) -> PartConfig:
        kind = value.pop("kind", None)
        if not isinstance(kind, str):
            raise _part_error([(("kind",), f"missing: say which {self._name()} this is. "
                                f"Known kinds: {', '.join(self._kinds())}.")])
        try:
            part = REGISTRY.get(self.groups, kind)
        except KeyError as error:
            raise _part_error([(("kind",), str(error.args[0]))]) from None
        return _validate_part(part, value)

    def _require_group(self, part: PartConfig) -> PartConfig:
        if part.group in self.groups or (self.repeats and isinstance(part, Repeat)):
            return part
        if isinstance(part, Shared):
            if self.shares:
                return part.model_copy(update={"groups": self.groups})
            raise PydanticCustomError("weft_rule", "{what}", {
                "what": f"no {self._name()} can be shared, got a reference to {part.shared!r}. Write it out here."})
        raise PydanticCustomError("weft_rule", "{what}", {"what": f"{part.kind!r} is a {part.group}, not a "
                                  f"{self._name()}. Known kinds: {', '.join(self._kinds())}."})

    def _name(self) -> str:
        return " or ".join(self.groups)

    def _kinds(self) -> list[str]:
        return REGISTRY.kinds(self.groups)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.resolve, serialization=core_schema.plain_serializer_function_ser_schema(dump))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """A marker that `weft.core.schema.json_schema` replaces by all parts of the groups; elsewhere it allows any
        value."""
        return {PART_KEYWORD: {"groups": list(self.groups), "repeats": self.repeats, "shares": self.shares}}


def rule(field_name: str, what: str, remedy: str) -> PydanticCustomError:
    """An error for a validator to raise.

    Args:
        field_name: a field of the validated model or a key of the validated mapping; empty for the value itself.
        what: the rule, with the value received.
        remedy: what the user can do.
    """
    place = (field_name,) if field_name else ()
    return PydanticCustomError("weft_part", "{what}", {"what": what, "problems": [(place, f"{what} {remedy}")]})


def parse(model: type[M], data: Any, *, where: str | None = None) -> M:
    """Validate plain data against a configuration model. Raises `ConfigError`: listing every problem with its field
    path, the value received and the remedy."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        located = _problems(model, error)
        problems = [f"{'.'.join(map(str, place)) or 'configuration'}: {what}" for place, what in located]
        raise ConfigError(problems, where=where) from None


def parse_part(groups: tuple[str, ...], data: Any, *, where: str | None = None) -> PartConfig:
    """Resolve one part from plain data, as `PartField` does."""
    try:
        return PartField(*groups).resolve(data)
    except PydanticCustomError as error:
        located = (error.context or {}).get("problems") or [((), (error.context or {}).get("what", error.message()))]
        raise ConfigError([f"{'.'.join(map(str, place)) or groups[0]}: {what}" for place, what in located],
                          where=where) from None


def _each(resolve: Callable[[Any], PartConfig], items: list[Any]) -> list[PartConfig]:
    """Resolve every item; the problems of all are raised together."""
    parts: list[PartConfig] = []
    problems: list[tuple[Place, str]] = []
    for index, item in enumerate(items):
        try:
            parts.append(resolve(item))
        except PydanticCustomError as error:
            context = error.context or {}
            located = context.get("problems") or [((), context.get("what", error.message()))]
            problems += [(("of", index, *place), what) for place, what in located]
    if problems:
        raise _part_error(problems)
    return parts


def _validate_part(part: type[PartConfig], value: dict[str, Any]) -> PartConfig:
    try:
        return part.model_validate(value)
    except ValidationError as error:
        raise _part_error(list(_problems(part, error))) from None


def _part_error(problems: list[tuple[Place, str]]) -> PydanticCustomError:
    text = "; ".join(f"{'.'.join(map(str, place))}: {what}" for place, what in problems)
    return PydanticCustomError("weft_part", "{what}", {"what": text, "problems": problems})


MOST_SENTENCES = 100
"""Problems of a document that are described in full."""


def _problems(model: type[BaseModel], error: ValidationError) -> Iterator[tuple[Place, str]]:
    """Every problem with its place, nested parts unfolded."""
    for number, item in enumerate(error.errors()):
        place: Place = tuple(item["loc"])
        context = item.get("ctx", {})
        if item["type"] in ("weft_part", "weft_rule") and "problems" in context:
            yield from (((*place, *inner), what) for inner, what in context["problems"])
        else:
            # A message shows fewer than that, and looking for near names takes its time.
            yield place, _sentence(model, place, item) if number < MOST_SENTENCES else item["msg"]


def _sentence(model: type[BaseModel], place: Place, item: ErrorDetails) -> str:
    if item["type"] == "extra_forbidden":
        return f"unknown key {place[-1]!r}. {nearest(str(place[-1]), _known(model, place[:-1]))}"
    if item["type"] == "missing":
        return "missing. Give a value."
    message = item["msg"].removeprefix("Value error, ")
    if item["type"].startswith("weft"):
        return message
    hint = nearest(str(item["input"]), re.findall(r"'([^']*)'", item["ctx"]["expected"])) if (
        item["type"] == "literal_error") else ""
    # The message already lists the allowed values, so only a nearest one is added.
    return f"{message}, got {item['input']!r}.{f' {hint}' if hint.endswith('?') else ''}"


def _known(model: type[BaseModel], place: Place) -> list[str]:
    """Field names of the model at ``place`` inside ``model``."""
    current: type[BaseModel] = model
    for name in place:
        field = current.model_fields.get(str(name))
        # A name that is no field is an index or a key inside one.
        current = current if field is None else _model_in(field.annotation) or current
    return sorted(current.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The configuration model in an annotation such as ``list[Inner]`` or ``Inner | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model_in, get_args(annotation)) if model is not None), None)


class SharedParts(nn.ModuleDict):
    """The shared parts that have been built, by name. The first use fixes the number and size of heads for which a part
    is built, and later uses must agree."""

    def __init__(self, configs: Mapping[str, ModuleConfig]) -> None:
        super().__init__()
        self.configs = dict(configs)
        self._fits: dict[str, Hashable] = {}

    def use(self, name: str, groups: tuple[str, ...], fit: Hashable, build: Callable[[ModuleConfig, Dims], nn.Module],
            dims: Dims) -> nn.Module:
        """The shared part ``name``.

        Args:
            groups: that a part may have where it is used.
            fit: what it is built for besides the model's dimensions, equal in all its uses: heads and their size.
            build: builds it on its first use, for dimensions whose path is that of the declaration.
            dims: of the place where it is used.

        Raises:
            ConfigError: there is no such part, it is of another group, or another use has built it for another fit.
        """
        if name not in self.configs:
            raise dims.problem("shared", f"no shared part is called {name!r}.", nearest(name, self.configs))
        config = self.configs[name]
        if config.group not in groups:
            raise dims.problem("shared", f"{name!r} is a {config.group}, not a {' or '.join(groups)}.",
                               "Share a part that fits here, or write one out.")
        if name not in self:
            self._fits[name] = fit
            self[name] = build(config, replace(dims, path="").at("shared", name))
        if self._fits[name] != fit:
            raise dims.problem("shared", f"{name!r} was built for {self._fits[name]}, here it is used for {fit}.",
                               "Share it only between places of the same sizes.")
        return self[name]

    def require_used(self) -> None:
        """Refuse parts that no part of the model refers to. Raises `ConfigError`: listing them."""
        unused = [name for name in self.configs if name not in self]
        if unused:
            raise ConfigError([f"shared.{name}: nothing uses it. Name it where it belongs, as {{shared: {name}}}, or "
                               "remove it." for name in unused])
