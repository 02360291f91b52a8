"""How many threads may be asked for."""

from __future__ import annotations

import os

from weft.core.errors import InputError

EACH = 8
"""Threads for each processor, beyond which more only wait for one another."""
ALWAYS = 64
"""What is never too many, so that a count taken from another machine is accepted."""


def require_threads(count: int, where: str) -> None:
    """Refuse a number of threads that no system would start: PyTorch then ends the process.

    Raises:
        InputError: it is not positive, or beyond a multiple of the processors here.
    """
    processors = os.cpu_count() or 1
    most = max(ALWAYS, EACH * processors)
    if not 1 <= count <= most:
        have = "1 processor" if processors == 1 else f"{processors:,} processors"
        raise InputError(f"{count:,} threads on {have}.", where=where, remedy=f"Give 1 to {most:,}.")
