"""The check that masks make of their integer arguments."""

from __future__ import annotations

from weft.core.errors import ConfigError


def require_count(kind: str, name: str, value: object, least: int, why: str) -> None:
    """Raise a `ConfigError` that gives ``why`` unless ``value`` is an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError([f"{kind}: {name} is {value!r}, but must be an integer. Give {least} or more."])
    if value < least:
        raise ConfigError([f"{kind}: {name} is {value}, but {why}. Give {least} or more."])
