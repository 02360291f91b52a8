"""``python -m weft``."""

from __future__ import annotations

from weft.cli.entry import run

if __name__ == "__main__":
    run()
