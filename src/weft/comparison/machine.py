"""Where a study ran."""

from __future__ import annotations

import os
import platform

import torch

from weft.comparison.results import Machine
from weft.core.version import VERSION
from weft.training.compute import processor_name


def this_machine(device: str, threads: int) -> Machine:
    """What a reader needs to judge the seconds."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory = 0
    place = torch.device(device)
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else device
    return Machine(processor_name(), os.cpu_count() or 1, threads, memory, name, platform.platform(terse=True),
                   platform.python_version(), torch.__version__, VERSION)
