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
    heavy = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.tensor", "sympy", "triton")

    found = subprocess.run([sys.executable, "-c", CODE.format(names=heavy)], capture_output=True, text=True, check=True)

    assert found.stdout.split() == []


LATE = """
import sys
import torch
from weft.core.part_config import Dims
from weft.mixers.mamba import MambaConfig
from weft.ops.gated_scan import SELECTIVE_SCAN
def loaded():
    print(*(name for name in {names!r} if f"weft.ops.{{name}}" in sys.modules), sep=",")
layer = MambaConfig().build(Dims(8)).eval()
loaded()
layer(torch.zeros(1, 3, 8))
loaded()
SELECTIVE_SCAN.form("triton")
loaded()
"""


def test_a_form_is_imported_when_a_call_could_take_it_or_it_is_asked_for_by_name() -> None:
    names = ("native_selective_scan", "native_short_convolution", "routed_linear", "triton.selective_scan")

    found = subprocess.run([sys.executable, "-c", LATE.format(names=names)], capture_output=True, text=True, check=True)

    assert found.stdout.splitlines() == ["", ",".join(names[:3]), ",".join(names)]
