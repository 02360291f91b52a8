"""The largest memory that a process has held."""

from __future__ import annotations

import sys
from pathlib import Path

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak() -> None:
    """Begin anew, where the system can (Linux): what reading the text took is then not counted."""
    try:
        RESET.write_text("5")
    except OSError:
        return


def peak_memory_bytes() -> int:
    """Resident memory at its highest since `forget_peak`, or since the process began where that is impossible."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return 0
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
