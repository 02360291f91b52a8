"""What the processor is called."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path


@cache
def processor_name() -> str:
    """The processor's model."""
    told = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", told.read_text(errors="replace"), re.M) if told.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()
