"""Options that had other names or are removed, which are refused with what to write instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

RENAMED: Mapping[tuple[str, str], str] = MappingProxyType({
    ("plan", "--batch"): "--batch-size",
    ("eval", "--length"): "--lengths",
    ("generate", "--tokens"): "--rows",
    ("score", "--tokens"): "--rows",
    ("extend", "--tokens"): "--last-tokens",
    ("extend", "--method"): "--scaling",
    ("convert", "--dtype"): "--cast"})
"""The new name of an option, by command and old name."""

REMOVED: Mapping[str, str] = MappingProxyType({
    "--lay-out": "weights are laid out no more, since plain steps are as fast. Leave it out."})
"""Why an option of several commands is removed, and what to do."""


def renamed_option(command: str | None, arguments: Sequence[str]) -> str | None:
    """A sentence about the first option that has another name now or is removed; None if there is none."""
    for each in arguments:
        old = each.partition("=")[0]
        if old in REMOVED:
            return f"{old}: {REMOVED[old]}"
        new = RENAMED.get((command or "", old))
        if new is not None:
            return f"{old}: this option of weft {command} is called {new} now. Give {new}."
    return None
