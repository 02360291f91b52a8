"""Imports of Weft's own processes are made without searches for cycles that nothing refers to."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from weft.comparison.launch import SERVER
from weft.core.process_settings import uncollected

IMPORTED = """
import gc
print("torch" in sys.modules, gc.get_freeze_count() > 100_000, gc.isenabled())
"""


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """What the tests freeze here can be collected again."""
    yield
    gc.unfreeze()
    gc.freeze()


def test_nothing_is_searched_inside_and_what_exists_is_left_out_afterwards() -> None:
    before, searches = gc.get_freeze_count(), list[str]()

    def seen(phase: str, info: dict[str, int]) -> None:
        searches.append(phase)

    gc.callbacks.append(seen)
    try:
        with uncollected():
            assert not gc.isenabled()
            kept = [[number] for number in range(100_000)]
        inside = list(searches)
    finally:
        gc.callbacks.remove(seen)
    assert inside == [] and gc.isenabled()
    assert gc.get_freeze_count() - before >= len(kept)


def test_the_search_goes_on_after_an_error() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()


def test_within_another_and_where_the_search_is_off_nothing_changes() -> None:
    gc.disable()
    try:
        before = gc.get_freeze_count()
        with uncollected():
            kept = [[number] for number in range(10_000)]
        assert not gc.isenabled() and gc.get_freeze_count() - before < len(kept)
    finally:
        gc.enable()


def test_what_the_server_of_a_study_imports_is_left_out_before_it_forks() -> None:
    imports, _, served = SERVER.partition("sys.exit(")
    assert served == "serve())\n"
    done = subprocess.run([sys.executable, "-c", imports + IMPORTED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]
