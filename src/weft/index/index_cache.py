"""The index that `weft list` reads, made once for each version of the sources and kept in the user's cache.

The file is ``index/HASH.json`` in Weft's cache (see `weft.core.process_settings`), where HASH is one of Weft's sources
and of the versions of Python and pydantic, which write descriptions. One that was changed, is a link or is another
user's is not read; where none can be written, the index is made anew each time.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.core.process_settings import cache_root, is_own
from weft.core.strict_json import digest, plain
from weft.disk.atomic import text_in
from weft.index.records import Index

ENTRY_POINTS = "weft.parts"
"""The group of entry points through which installed packages add parts, as in `weft.core.registry`."""
SOURCES = Path(__file__).parents[1]
NAME = r"[0-9a-f]{32}\.json"


def index_folder() -> Path:
    """The folder of the kept indices. Raises `RuntimeError`: the user has no home, and no variable names a folder."""
    return cache_root() / "index"


def kept(make: Callable[[], Index]) -> Index:
    """The index of Weft's own parts, settings and presets, and of published models: as it is kept, or as ``make``
    returns it, which is then kept."""
    try:
        path = index_folder() / f"{_sources()}.json"
    except RuntimeError:
        return make()
    found = read_kept(path)
    if found is not None:
        return Index.from_json(found)
    made = make()
    content = plain(made)
    with suppress(OSError):  # the folder cannot be written to, or something stands there, which stays
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with text_in(path.parent, json.dumps({"sha256": digest(content), "index": content})) as draft:
            os.link(draft, path)
    return made


def read_kept(path: Path) -> dict[str, Any] | None:
    """The content of an index that is kept; None: nothing proves that Weft wrote the file and nobody changed it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if is_own(path) else {}
        return dict(content["index"]) if content["sha256"] == digest(content["index"]) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def has_plugins() -> bool:
    """Whether installed packages add parts, which only the registry knows."""
    return bool(importlib.metadata.entry_points(group=ENTRY_POINTS))


def _sources() -> str:
    """A hash of what the index is made from."""
    found = hashlib.sha256(f"{sys.version} {importlib.metadata.version('pydantic')}".encode())
    for path in sorted(each for each in SOURCES.rglob("*") if each.suffix in (".py", ".yaml", ".json")):
        found.update(f"{path.relative_to(SOURCES)} {path.stat().st_size} ".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:32]
