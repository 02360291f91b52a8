"""The index, as a process makes it in which no test has added a part."""

from __future__ import annotations

import sys
from pathlib import Path


def write_index(path: Path) -> None:
    """Make the index, keep it in the cache, and write it to a file."""
    from weft.api.listing import indexed
    from weft.core.strict_json import dumps
    from weft.index.index_cache import kept

    made = kept(indexed)
    assert kept(lambda: sys.exit("it is made twice")) == made
    path.write_text(dumps(made), encoding="utf-8")
