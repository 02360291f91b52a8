"""``key.path=value``: changes to a configuration's plain data before it is parsed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from weft.core.errors import ConfigError
from weft.disk.documents import Unreadable
from weft.disk.yaml_documents import parse_yaml
from weft.training.config import BUDGETS

SHOWN = 80
"""Characters of a wrong value that an error repeats."""


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

    A limit (``data.max_bytes``) of the configuration applies to the configuration's text alone. A text that an override
    names is read whole unless an override limits it too. A budget that an override gives, such as ``training.steps``,
    takes the place of the configuration's.

    Raises:
        ConfigError: as `apply_overrides`.
    """
    given = list(overrides)
    result = apply_overrides(data, given)
    if "data" in result:
        result["data"] = without_old_limit(data.get("data"), result["data"], limited=limits_text(given))
    training, named = result.get("training"), {each.partition("=")[0].strip() for each in given}
    ours = [name for name in BUDGETS if f"training.{name}" in named]
    if isinstance(training, dict) and any(training.get(name) is not None for name in ours):
        result["training"] = {key: value for key, value in training.items() if key not in BUDGETS or key in ours}
    return result


def limits_text(overrides: Iterable[str]) -> bool:
    """Whether an override sets the limit of the text."""
    return any(each.partition("=")[0].strip() in ("data", "data.max_bytes") for each in overrides)


def without_old_limit(before: Any, after: Any, *, limited: bool) -> Any:
    """The settings ``data`` without a limit that was set for another text.

    Args:
        before: the settings of the file, or None.
        after: the settings with all changes.
        limited: whether the changes set the limit, or remove it.
    """
    if limited or not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return after
    if after.get("path") in (None, before.get("path")):
        return after
    return {key: value for key, value in after.items() if key != "max_bytes"}


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
    _set(place, steps[-1], value, ".".join(steps[:-1]), override)


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


def _set(place: Any, step: str, value: Any, path: str, override: str) -> None:
    place[_key(place, step, path, override)] = value


def _key(place: Any, step: str, path: str, override: str) -> str | int:
    if isinstance(place, dict):
        return step
    if not isinstance(place, list):
        raise ConfigError([f"{override!r}: {path} is {place!r}, which has no fields. Set {path} itself."])
    if not step.isdecimal() or int(step) >= len(place):
        raise ConfigError([f"{override!r}: {path} is a list of {len(place)}, and {step!r} is no index of it. "
                           f"Give 0 to {len(place) - 1}."])
    return int(step)
