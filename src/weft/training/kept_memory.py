"""Freed memory stays with the process while it trains.

A training step allocates the same large tensors as the step before. The C library gives the memory of large blocks back
to the system as soon as they are freed, so each step fetches all of it again, page by page, and the system clears every
page: 5 to 10 % of a step of 30 million parameters on two cores. GNU's C library can be told to keep it (mallopt(3)).
The peak is the same, for what is kept is what the next step takes, or a smaller part of it where batches have other
lengths.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of the settings in malloc.h."""
NEVER = -1
KEPT_BELOW = 1 << 30
"""Bytes of a block from which on it gets pages of its own, which go back when it is freed: one such block can be most
of what a process may take."""
USUAL = 1 << 25
"""The largest value to which the C library raises both thresholds by itself, and at which a process that has freed
large tensors arrives."""
OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")
"""Variables by which a user has decided it."""


def keep_freed_memory() -> None:
    """From now on the process keeps what it frees. Nothing happens with another C library, or where a variable of the
    environment sets what it does."""
    library = _settable()
    if library is not None:
        library.mallopt(MMAP_THRESHOLD, KEPT_BELOW)
        library.mallopt(TRIM_THRESHOLD, NEVER)


def return_freed_memory() -> None:
    """Gives what is free back to the system, now and, as is usual, from now on."""
    library = _settable()
    if library is not None:
        library.mallopt(MMAP_THRESHOLD, USUAL)
        library.mallopt(TRIM_THRESHOLD, USUAL)
        library.malloc_trim(0)


@cache
def _settable() -> ctypes.CDLL | None:
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in OWN_SETTINGS):
        return None
    return ctypes.CDLL(None)
