"""For tests of native code: the instruction sets of this processor, one after the other, and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import pytest
import torch
from jaxtyping import Bool
from torch import Tensor

from weft.masks.visible import VisibleKeys
from weft.ops.few_rows import functions
from weft.ops.native.library import VARIABLE, NativeLibrary, loaded
from weft.ops.native.sequence import alone, entry

LIBRARY = loaded()
assert isinstance(LIBRARY, NativeLibrary), f"the tests need a C compiler: {LIBRARY.detail}"
SETS = LIBRARY.sets


def forget() -> None:
    """What is called is determined once for a process, and so again for each set."""
    functions.cache_clear()
    entry.cache_clear()
    alone.cache_clear()


@pytest.fixture(params=SETS)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The set in which functions are called."""
    monkeypatch.setenv(VARIABLE, request.param)
    forget()
    assert entry().instructions == request.param
    yield request.param
    monkeypatch.undo()
    forget()


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    """In every test of a file that has this name: forms in C have no gradients."""
    with torch.inference_mode():
        yield


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal random numbers, drawn in float64 and rounded to ``dtype``."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@final
class TensorKeys(VisibleKeys):
    """A mask given as a tensor.

    Args:
        allowed: True where a query may attend to a key.
    """

    def __init__(self, allowed: Bool[Tensor, "#B #H T S"]) -> None:
        self._allowed = allowed

    def dense(self) -> Bool[Tensor, "#B #H T S"]:
        return self._allowed
