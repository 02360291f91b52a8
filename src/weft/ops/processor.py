"""The name of the processor."""

from __future__ import annotations

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
