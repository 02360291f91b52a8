"""The stored numbers, which `make test` compares with, are those of the transformers that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from against_transformers.store import CASES, KEPT, ROW
from against_transformers.tiny import alone
from interop.huggingface.tiny_folders import stored, write


@pytest.mark.parametrize("name", CASES)
def test_transformers_still_gives_the_stored_numbers(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    found = torch.atleast_2d(alone(tmp_path, ROW))[-KEPT:]
    torch.testing.assert_close(found, torch.tensor(stored()[name]["logits"]), atol=5e-5, rtol=0)
