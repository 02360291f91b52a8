"""What a command imports before it works: people wait for it each time."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import weft.api
from weft.core.registry import REGISTRY
list(REGISTRY.parts())
print(*(name for name in {names!r} if name in sys.modules))
"""


def test_neither_the_compiler_nor_checkpoints_of_many_processes_are_imported_to_know_the_parts() -> None:
    heavy = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.tensor", "sympy")

    found = subprocess.run([sys.executable, "-c", CODE.format(names=heavy)], capture_output=True, text=True, check=True)

    assert found.stdout.split() == []
