"""Products of many lengths do not let a process grow, unless the user wants to keep more of them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fresh import Fresh
from ops.product_memory import products_of_many_lengths
from weft.ops.processor import VARIABLES

MANY = dict.fromkeys(VARIABLES, "1024")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not torch.backends.mkldnn.is_available(),
                    reason="what is counted is the heap of GNU's C library and oneDNN's products")
def test_compiled_products_are_kept_to_a_bound(tmp_path: Path) -> None:
    """600 products more, where all are kept, and none more than before, where they are bounded. How large one is
    depends on the processor."""
    bounded, kept = (int(Fresh(products_of_many_lengths, folder=tmp_path, environment=given).end().stdout)
                     for given in ({}, MANY))
    assert kept > 20e6 and bounded < kept / 5, (bounded, kept)


def test_a_users_own_bound_stands() -> None:
    code = f"import os, weft.ops; print([os.environ[name] for name in {VARIABLES}])"
    ended = subprocess.run([sys.executable, "-c", code], env={**os.environ, **MANY}, capture_output=True, text=True,
                           check=True)
    assert ended.stdout.strip() == str(list(MANY.values()))
