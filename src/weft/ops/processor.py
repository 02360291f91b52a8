"""The name of the processor, and how much memory it has."""

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
