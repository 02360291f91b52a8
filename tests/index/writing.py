"""The registry's index, as a process writes it in which no test has added a part."""

from __future__ import annotations

import sys


def write_index() -> None:
    """Write it to standard output."""
    from weft.api.listing import indexed
    from weft.index.stored import written

    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(written(indexed()))
