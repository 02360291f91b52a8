"""``key.path=value``: changes to a configuration's plain data before it is parsed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from copy import deepcopy
from typing import Any

from weft.core.errors import ConfigError
from weft.disk.documents import Unreadable
from weft.disk.yaml_documents import parse_yaml
from weft.training.config import BUDGETS

SHOWN = 80
"""Characters of a wrong value that an error repeats."""
OF_ONE_TEXT = ("max_bytes", "split_by")
"""Settings of ``data`` that may be made for one text."""


def apply_overrides(data: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of ``data`` with each override applied, in order.

    A path is dotted; an item of a list is named by its index. A part given by its kind alone (``position: rope``)
    becomes a mapping when a field of it is set. A path that does not exist is created, so that parsing reports
    the unknown key.

    Raises:
        ConfigError: listing every override that is no ``path=value``, or whose path leads nowhere.
    """
    result = deepcopy(data)
    problems: list[str] = []
    for override in overrides:
        try:
            _apply(result, override)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems, where="overrides")
    return result


def run_overrides(data: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`apply_overrides` for a run's configuration, in which an override may name another text or another budget.

    A limit (``data.max_bytes``) of the configuration applies to the configuration's text alone, and so does, where that
    is the default text under that limit, its ``data.split_by``. A text that an override names is read whole, and split
    by name, unless an override says otherwise. A budget that an override gives, such as ``training.steps``, takes the
    place of the configuration's.

    Raises:
        ConfigError: as `apply_overrides`.
    """
    given = list(overrides)
    result = apply_overrides(data, given)
    if "data" in result:
        result["data"] = for_its_text(data.get("data"), result["data"], stated=stated_of_text(given))
    training, named = result.get("training"), {each.partition("=")[0].strip() for each in given}
    ours = [name for name in BUDGETS if f"training.{name}" in named]
    if isinstance(training, dict) and any(training.get(name) is not None for name in ours):
        result["training"] = {key: value for key, value in training.items() if key not in BUDGETS or key in ours}
    return result


def stated_of_text(overrides: Iterable[str]) -> set[str]:
    """The settings of the text that overrides set."""
    named = {each.partition("=")[0].strip() for each in overrides}
    return {*OF_ONE_TEXT} if "data" in named else {each for each in OF_ONE_TEXT if f"data.{each}" in named}


def for_its_text(before: Any, after: Any, *, stated: Container[str]) -> Any:
    """The settings ``data`` without those that were made for another text: a limit, and the split of the default one.

    Args:
        before: the settings of the file, or None.
        after: the settings with all changes.
        stated: those that the changes set or remove.
    """
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    named = after.get("path") not in (None, before.get("path"))
    limited = before.get("max_bytes") not in (None, after.get("max_bytes"))  # few documents may hold out too little
    default = before.get("path") is None and not before.get("sources")
    other = {"max_bytes": named, "split_by": default and (named or limited or bool(after.get("sources")))}
    return {key: value for key, value in after.items() if key in stated or not other.get(key)}


def _apply(data: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    steps = path.strip().split(".")
    if not equals or not all(steps):
        raise ConfigError([f"{override!r}: not of the form key.path=value. Write, for example, training.steps=500."])
    try:
        value = parse_yaml(text)
    except Unreadable as error:
        raise ConfigError([f"{path}: the value {text[:SHOWN]!r} is not YAML ({error}). Put text with special "
                           "characters in quotes."]) from None
    place: Any = data
    for depth, step in enumerate(steps[:-1]):
        place = _enter(place, step, ".".join(steps[:depth]), override)
    place[_key(place, steps[-1], ".".join(steps[:-1]), override)] = value


def _enter(place: Any, step: str, path: str, override: str) -> Any:
    """The container at ``step``, created if there is none."""
    key = _key(place, step, path, override)
    inner = place.get(key) if isinstance(place, dict) else place[key]
    if isinstance(inner, str):
        inner = {"kind": inner}
    elif inner is None:
        inner = {}
    place[key] = inner
    return inner


def _key(place: Any, step: str, path: str, override: str) -> str | int:
    if isinstance(place, dict):
        return step
    if not isinstance(place, list):
        raise ConfigError([f"{override!r}: {path} is {place!r}, which has no fields. Set {path} itself."])
    if not step.isdecimal() or int(step) >= len(place):
        raise ConfigError([f"{override!r}: {path} is a list of {len(place)}, and {step!r} is no index of it. "
                           f"Give 0 to {len(place) - 1}."])
    return int(step)
