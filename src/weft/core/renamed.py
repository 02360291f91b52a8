"""Keys of configurations that had other names, which are still read, and written in fingerprints.

A class of settings names them in `Settings.renamed`. Whoever reads what a user wrote does so inside `noting`, which
says once what is called otherwise now; checkpoints, runs and prepared data of before are read without a word.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import BaseModel

LOGGER = logging.getLogger(__name__)

_seen: ContextVar[dict[tuple[str, str], None] | None] = ContextVar("old names that were read", default=None)


def renames(config: type) -> dict[str, str]:
    """The new name of each old key of a class of settings, those of its bases included."""
    return {old: new for base in reversed(config.__mro__) for old, new in vars(base).get("renamed", {}).items()}


def with_new_names(config: type, data: Any) -> Any:
    """``data`` of a mapping with the new names of its keys. Of two names of one key the later in the mapping counts,
    since changes are laid over what they change; two mappings are laid over one another."""
    new_names = renames(config)
    if not isinstance(data, Mapping) or not any(old in data for old in new_names):
        return data
    found: dict[str, Any] = {}
    for key, value in data.items():
        name = str(new_names.get(key, key))
        if name != key:
            _remember(key, name)
        before = found.get(name)
        found[name] = {**before, **value} if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return found


def _remember(old: str, new: str) -> None:
    seen = _seen.get()
    if seen is not None:
        seen[old, new] = None


def with_old_names(item: Any, plain: Any) -> Any:
    """The plain data of a configuration with the names that its keys had first, for hashes that files hold."""
    if isinstance(item, BaseModel) and isinstance(plain, Mapping):
        first = {new: old for old, new in renames(type(item)).items()}
        values = dict(item)
        return {first.get(key, key): with_old_names(values.get(key), value) for key, value in plain.items()}
    if isinstance(item, Mapping) and isinstance(plain, Mapping):
        return {key: with_old_names(item.get(key), value) for key, value in plain.items()}
    if isinstance(item, list | tuple) and isinstance(plain, list):
        return [with_old_names(*each) for each in zip(item, plain, strict=True)]
    return plain


@contextmanager
def noting(where: str) -> Iterator[None]:
    """Around the reading of what a user wrote: one note of all old names in it, in the outermost of these.

    Args:
        where: the file, or another name of what is read.
    """
    if _seen.get() is not None:
        yield
        return
    found: dict[tuple[str, str], None] = {}
    token = _seen.set(found)
    try:
        yield
    finally:
        _seen.reset(token)
        if found:
            said = ", ".join(f"{old} is called {new}" for old, new in found)
            LOGGER.warning("note: %s: %s now; the old %s still read", where, said,
                           "name is" if len(found) == 1 else "names are")
