"""The fuzzer sees what it looks for, and its cases differ from the seeds."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.child import OUT_OF_TIME, run
from fuzz.mutations import bytes_changed, header_changed, lines_changed, mutated


def _say(text: str) -> None:
    os.write(2, text.encode())


def _for_ever() -> None:
    while True:
        pass


def _memory() -> None:
    bytearray(64 << 30)


@pytest.mark.parametrize(("work", "fault"), [
    (lambda: None, ""), (lambda: sys.exit(2), ""), (lambda: sys.exit(7), "exit code 7"),
    (lambda: _say("internal error: x"), "it says 'internal error'"), (lambda: 1 / 0, "exit code 99"),
    (lambda: os.kill(os.getpid(), signal.SIGTERM), "it was ended by SIGTERM"),
    (_for_ever, OUT_OF_TIME), (_memory, "exit code 99")])
def test_a_fault_is_seen(work: Callable[[], None], fault: str, tmp_path: Path) -> None:
    assert run(work, tmp_path, 1).fault == fault


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_what_is_spoilt_is_written_as_it_was_meant(data: st.DataObject) -> None:
    tree = {"a": [1, {"b": 2.5}], "c": "text"}
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    mutated(data.draw, tree)
    assert tree == {"a": [1, {"b": 2.5}], "c": "text"}, "the seed stays as it is"
    spoilt = header_changed(data.draw, len(header).to_bytes(8, "little") + header + b"1234")
    size = int.from_bytes(spoilt[:8], "little")
    json.loads(spoilt[8:8 + size])
    assert spoilt.endswith(b"1234")
    assert isinstance(lines_changed(data.draw, b"a b\nc"), bytes)
    assert isinstance(bytes_changed(data.draw, header), bytes)
