"""The instruction sets of this processor, one after the other, for tests of native code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weft.ops.few_rows import functions
from weft.ops.native.library import VARIABLE, Loaded, loaded
from weft.ops.native.sequence import entry

LIBRARY = loaded()
assert isinstance(LIBRARY, Loaded), f"the tests need a C compiler: {LIBRARY.detail}"
SETS = LIBRARY.sets


def forget() -> None:
    """What is called is determined once for a process, and so again for each set."""
    functions.cache_clear()
    entry.cache_clear()


@pytest.fixture(params=SETS)
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The set in which functions are called."""
    monkeypatch.setenv(VARIABLE, request.param)
    forget()
    assert entry().instructions == request.param
    yield request.param
    monkeypatch.undo()
    forget()
