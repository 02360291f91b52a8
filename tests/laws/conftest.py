"""Laws run on tiny tensors: one thread is fastest, and two test processes must not fight over cores."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
