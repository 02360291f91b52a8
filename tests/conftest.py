"""For all tests."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

gc.disable()  # until all files are collected, see `pytest_collection_finish`

import torch  # noqa: E402
from _pytest.runner import runtestprotocol  # noqa: E402

import unmeasured  # noqa: E402, F401  # before the compiler is imported
from fresh import check_near  # noqa: E402
from left_behind import left_behind, surroundings  # noqa: E402
from long_tests import long_tests, name_of  # noqa: E402
from weft.core import version  # noqa: E402
from weft.ops.native.build import cache_folder  # noqa: E402

sys.path.append(str(Path(version.__file__).parents[3] / "docs"))  # its programs, beside the source that is tested

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: every test that sends
# Ctrl-C to a process of its own would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where there is no GPU, Triton runs its kernels by its interpreter, so that the forms in Triton are held to their
# references too. The variable is read when Weft's operations and Triton are imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Routes of matrix products are kept in a folder of the tests' own, and native code where it always is. Worker processes
# take the folder of the first.
if "PYTEST_XDIST_WORKER" not in os.environ:
    CACHE = tempfile.TemporaryDirectory(prefix="weft-cache-")
    cache_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    (Path(CACHE.name) / "native").symlink_to(cache_folder())
    os.environ["WEFT_CACHE_DIR"] = CACHE.name

TESTS = Path(__file__).parent
LONGEST = (
    "laws/test_every_part.py", "docs/test_docs_blocks.py", "integration/test_compile.py", "laws/test_long_laws.py",
    "parallel/test_meshes.py", "training/test_learning.py", "laws/test_check_finds.py", "judge/test_museum.py",
    "comparison/test_killed_studies.py", "training/test_kills.py", "comparison/test_attempts.py",
    "blocks/test_channels.py", "cli/test_cli_facts.py", "integration/test_data_parallel.py", "ops/test_forms.py",
    "laws/test_hybrids.py", "parallel/test_divided.py", "analysis/test_by_blocks.py",
    "examples/test_examples_plugin.py", "docs/test_docs_pages.py", "cli/test_compare.py", "parallel/test_context.py",
    "mutants/test_mutants.py", "comparison/test_study_runs.py", "training/test_resume.py")
"""The files that take longest, from two minutes to ten seconds."""
SHOWN = 0.1
"""Seconds from which the beginning and the end of a test that passed are shown by ``--durations``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="Leave out the tests of tests/long_tests.txt.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest files: each is run by one process, and one that came last would keep the other waiting."""
    place = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(LONGEST)))
    if config.getoption("--quick"):
        long = long_tests()
        left = [item for item in items if name_of(item.path, item.name) in long]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if name_of(item.path, item.name) not in long]


def pytest_collection_finish() -> None:
    _send_messages_to_the_root()
    _search_for_cycles_rarely()


def _send_messages_to_the_root() -> None:
    """Let PyTorch's loggers pass on to the root what they log, which they do not by themselves. To catch messages,
    pytest puts two handlers on the root and on every logger that passes nothing on, and takes them away again, three
    times for each test: with PyTorch's eighty loggers that was two fifths of the time that a test of nothing takes."""
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger) and logger.name.split(".")[0] == "torch":
            logger.propagate = True


def _search_for_cycles_rarely() -> None:
    """Search for cycles that nothing refers to from here on, among what the tests make. All modules are imported now:
    their objects stay, and each search through them would take most of a second. The compiler makes so many objects
    that the searches of the young took a tenth of its time at Python's own thresholds (700, 10, 10), and a thirtieth at
    10,000."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 10)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """What a worker sends of a test: its call, what did not pass, and what took long. Five messages for each of some
    14,000 tests (its beginning and its end, and three reports) would take both processes ten seconds."""
    if not hasattr(item.config, "workerinput"):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed or report.duration > SHOWN:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture
def _near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of this test read shorter far rows (`fresh.check_near`)."""
    check_near(monkeypatch)


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
