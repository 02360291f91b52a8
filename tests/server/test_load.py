"""A server under load as `benchmarks/serving_load.py` puts it on one: short here, whole in ``make test-serve``."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "serving_load.py"
LONG = int(os.environ.get("WEFT_SERVE_CASES", "25")) > 25
AT_REST = dict.fromkeys(("running", "waiting", "waiting_tokens", "slots", "state_bytes"), 0)


@pytest.fixture(scope="module")
def load() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("serving_load", SCRIPT)
    assert spec is not None and spec.loader is not None
    made = sys.modules["serving_load"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    yield made
    del sys.modules["serving_load"]


@pytest.fixture(scope="module")
def server(load: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("loaded")
    load.write_tiny(folder / "tiny")
    limits = () if LONG else ("--max-rows", "4", "--queue-requests", "8")
    with load.serving(folder / "tiny", folder / "log", *limits) as found:
        yield found


def test_of_a_crowd_all_that_are_accepted_finish_and_the_others_are_told(load: Any, server: Any) -> None:
    for clients in (500, 2000) if LONG else (60,):
        found = asyncio.run(load.crowd(server, clients, random.Random(1)))
        assert set(found["ended"]) == {"finished", "429"} and sum(found["ended"].values()) == clients
        assert found["left"] == AT_REST
        # A connection of uvicorn and what waits to be sent to it take some tens of kB.
        assert found["memory_mb"]["most"] < found["memory_mb"]["before"] + 250 + 0.1 * clients


def test_clients_that_leave_or_are_slow_leave_nothing_behind(load: Any, server: Any) -> None:
    found = asyncio.run(load.leavers(server, 1000 if LONG else 50, random.Random(2)))
    assert found["left"] == AT_REST and set(found["ended"]) <= {"left", "finished", "429"}
    found = asyncio.run(load.slow(server, 40 if LONG else 4, random.Random(3)))
    assert found["left"] == AT_REST and set(found["ended"]) == {"finished"}


def test_memory_does_not_grow_under_mixed_load(load: Any, server: Any) -> None:
    asyncio.run(load.mixed(server, 0.05, 8, random.Random(4)))  # in which states that are kept find their number
    found = asyncio.run(load.mixed(server, 30 if LONG else 0.1, 8, random.Random(5)))
    assert found["left"] == AT_REST and set(found["ended"]) <= {"left", "finished"}
    first, *_, last = found["memory_mb_of_quarters"]
    assert last < first + 30, found["memory_mb"]
