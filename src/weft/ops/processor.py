"""The name of the processor, and how much memory it has.

How many compiled products oneDNN and PyTorch's layer over it keep.

oneDNN compiles a product for each number of rows that it meets, and keeps the last 1,024 of them; so does the layer
through which PyTorch calls it. Some half a megabyte each, they come to 0.6 GB where batches, prompts or texts have many
lengths: training on Multi30k grew from 1.1 GB in its first steps to 2.5 within 140. With 128 of each a run takes the
same time, since hardly one of the older products is asked for again. Where a hundred lengths recur, as prompts' may, a
call pays for compiling again: 1.4 to 2.5 ms of 14 through the maps of 8 layers of width 512.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path


@cache
def processor_name() -> str:
    """The processor's model name, or its architecture where the system does not report one."""
    file = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", file.read_text(errors="replace"), re.M) if file.exists() else None
    return match[1].strip() if match else platform.processor() or platform.machine()


def main_memory() -> int:
    """Bytes of main memory; 0 if the system does not report it."""
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return 0


KEPT = 128
"""More than the products, forward and backward, of a step whose batches have one length."""
VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Read by oneDNN and by PyTorch at the process's first product."""


def bound_onednn_caches() -> None:
    """Keep `KEPT` compiled products in each cache, unless the user has set how many. It must be called before the
    process's first product, and changes nothing after it."""
    for name in VARIABLES:
        os.environ.setdefault(name, str(KEPT))
