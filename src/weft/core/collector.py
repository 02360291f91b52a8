"""Python's search for cycles that nothing refers to, which imports do without."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """For the imports of a process of Weft's own, not of a program that uses the library.

    An import makes hundreds of thousands of objects, all of which stay. Python would search them again and again for
    cycles that nothing refers to, which takes a fourth of the time that PyTorch and Weft need to be imported, and again
    in every full search later. Within the block there is no search; what exists at its end is left out of all later
    ones, and so a process that is forked afterwards does not copy its memory by searching it. Within another such
    block, or where the search is off, it changes nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
