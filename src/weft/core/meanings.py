"""The meaning of each field of a configuration or a record: the section ``Attributes:`` of its class and of the
bases."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping

SECTION = "Attributes:"
ENTRY = re.compile(r"(\w+(?:, \w+)*): *(.*)")
"""The first line of an entry: names, separated by commas, and what they mean."""


def meanings(described: type, names: Iterable[str]) -> dict[str, str]:
    """The meaning of each of the fields ``names``; empty where neither the class nor a base says it.

    A class's own words come before those of its bases.
    """
    found: dict[str, str] = {}
    for each in described.__mro__:
        if each.__module__ != "builtins":
            for name, text in documented(vars(each).get("__doc__") or "").items():
                found.setdefault(name, text)
    return {name: found.get(name, "") for name in names}


def without_meanings(text: str) -> str:
    """A docstring, cleaned, without its section ``Attributes:``."""
    lines = inspect.cleandoc(text).splitlines()
    if SECTION not in lines:
        return "\n".join(lines)
    begin = lines.index(SECTION)
    end = next((index for index in range(begin + 1, len(lines)) if lines[index] and not lines[index].startswith(" ")),
               len(lines))
    return "\n".join([*lines[:begin], *lines[end:]]).strip()


def documented(text: str) -> Mapping[str, str]:
    """The entries of the section ``Attributes:`` of a docstring, each on one line."""
    lines = inspect.cleandoc(text).splitlines()
    if SECTION not in lines:
        return {}
    entries: list[tuple[str, list[str]]] = []
    for line in lines[lines.index(SECTION) + 1:]:
        if line and not line.startswith(" "):
            break
        begins = ENTRY.fullmatch(line.strip()) if line.startswith("    ") and not line.startswith("     ") else None
        if begins is not None:
            entries.append((begins[1], [begins[2]]))
        elif line.strip() and entries:
            entries[-1][1].append(line.strip())
    return {name: " ".join(words).strip() for names, words in entries for name in names.split(", ")}
