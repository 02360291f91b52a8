"""The registry's index, as a process writes it in which no test has added a part."""

from __future__ import annotations

import sys


def write_index() -> None:
    """Write it to standard output."""
    from weft.api.listing import indexed
    from weft.index.stored import stored, written

    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    # Counting published models takes seconds, and tests/families compares each of those that are stored.
    sys.stdout.write(written(indexed(stored().published)))
