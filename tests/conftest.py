"""For all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from left_behind import left_behind, surroundings

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: every test that sends
# Ctrl-C to a process of its own would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where there is no GPU, Triton runs its kernels by its interpreter, so that the forms in Triton are held to their
# references too. The variable is read when Weft's operations and Triton are imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

TESTS = Path(__file__).parent
LONGEST = (
    "laws/test_every_part.py", "integration/test_compile.py", "laws/test_long_laws.py", "docs/test_docs_blocks.py",
    "laws/test_check_finds.py", "training/test_learning.py", "comparison/test_killed_studies.py",
    "parallel/test_meshes.py", "examples/test_examples_plugin.py", "cli/test_compare.py", "comparison/test_attempts.py",
    "integration/test_data_parallel.py", "docs/test_docs_pages.py", "laws/test_hybrids.py", "parallel/test_divided.py",
    "parallel/test_context.py", "blocks/test_channels.py", "families/test_machinery.py")
"""The files that take longest, from minutes to some 15 seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: each is run by one process, and one that came last would keep the other waiting."""
    place = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(LONGEST)))


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A file of tests leaves the process as it found it, since other files follow in an order that changes with the
    number of workers. This is the first fixture of a file and so the last to end: what a file's own fixtures take back
    is not held against it."""
    before = surroundings()
    yield
    if left := left_behind(before, surroundings()):
        lines = "\n".join(left)
        pytest.fail(f"{request.path.name} leaves behind what other files would find:\n{lines}", pytrace=False)
