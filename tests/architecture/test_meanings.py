"""Every field of a configuration says what it means, where it is declared."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest
from pydantic import BaseModel

import weft
from weft.api.listing import SECTIONS
from weft.core.meanings import documented, meanings, without_meanings
from weft.core.part_config import Settings
from weft.core.registry import REGISTRY
from weft.masks import known_masks


def configurations() -> list[type]:
    """Every class of settings and parts, masks, and the options of decoding."""
    for info in pkgutil.walk_packages(weft.__path__, "weft."):
        importlib.import_module(info.name)
    own = [each for each in inherited(Settings) if each.__module__.startswith("weft.")]
    return list(dict.fromkeys([*own, *REGISTRY.parts(), *known_masks(), *SECTIONS.values()]))


def inherited(base: type) -> Iterator[type]:
    for each in base.__subclasses__():
        yield each
        yield from inherited(each)


def fields_of(config: type) -> list[str]:
    if issubclass(config, BaseModel):
        return list(config.model_fields)
    return list(inspect.signature(config).parameters)


def test_every_field_of_every_configuration_has_a_meaning() -> None:
    without = {f"{config.__module__}.{config.__name__}": names for config in configurations()
               if (names := [name for name, text in meanings(config, fields_of(config)).items() if not text])}
    assert without == {}, "say it in the section `Attributes:` of the class that declares the field"


def test_no_meaning_is_of_a_field_that_is_not_there() -> None:
    for config in configurations():
        if issubclass(config, Settings) and config.model_fields:
            named = documented(vars(config).get("__doc__") or "")
            assert set(named) <= set(config.model_fields), f"{config.__module__}.{config.__name__}"


class _Base:
    """A base.

    Attributes:
        width: of a row,
            in tokens.
        left, right: ends.

    Raises:
        Nothing: at all.
    """


class _Own(_Base):
    """Another.

    Text before.

    Attributes:
        width: its own.
    """


class _Silent(_Base):
    """Says nothing."""


def test_a_field_without_a_meaning_would_be_found() -> None:
    assert meanings(_Silent, ["width", "depth"]) == {"width": "of a row, in tokens.", "depth": ""}


@pytest.mark.parametrize(("config", "expected"), [
    (_Base, {"width": "of a row, in tokens.", "left": "ends.", "right": "ends.", "Nothing": ""}),
    (_Own, {"width": "its own.", "left": "ends.", "right": "ends.", "Nothing": ""})])
def test_a_class_s_own_words_come_before_those_of_its_bases(config: type, expected: dict[str, str]) -> None:
    assert meanings(config, expected) == expected


def test_a_docstring_without_its_meanings() -> None:
    assert without_meanings(_Base.__doc__ or "") == "A base.\n\nRaises:\n    Nothing: at all."
    assert without_meanings(_Own.__doc__ or "") == "Another.\n\nText before."
    assert without_meanings("Plain.") == "Plain."
