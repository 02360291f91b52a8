"""As a run on a GPU: the same bits each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weft.training.compute import same_bits


@pytest.fixture(autouse=True)
def _repeatable() -> Iterator[None]:
    with same_bits():
        yield
