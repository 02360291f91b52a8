"""The fuzzer sees what it looks for, and its cases differ from the seeds."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as arrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fuzz import seeds, task_seeds
from fuzz.binary import _thrift_places, archive_changed, gguf_changed, parquet_changed, pickle_changed, protobuf_changed
from fuzz.child import OUT_OF_TIME, run
from fuzz.mutations import bytes_changed, header_changed, lines_changed, mutated
from fuzz.readers import READERS, Reader
from fuzz.reading import Reading, Spoilt, again, drawn, tried
from weft.core.errors import DataError
from weft.core.registry import REGISTRY
from weft.training import parse_run, train


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


def _refuses(path: Path) -> None:
    raise DataError("no.", where=str(path))


def _takes(path: Path) -> None:
    held = bytearray(b"\1") * (100 << 20)
    assert held[-1]


def _prints(path: Path) -> None:
    _say("thread 'main' panicked at a.rs")


@pytest.mark.parametrize(("read", "fault"), [
    (_refuses, ""), (lambda path: None, ""), (lambda path: {}["a"], "KeyError from test_fuzz.py:<lambda>"),
    (lambda path: path.joinpath("a").read_bytes().decode(), "UnicodeDecodeError from test_fuzz.py:<lambda>"),
    (lambda path: _for_ever(), OUT_OF_TIME), (lambda path: _memory(), "MemoryError from test_fuzz.py:_memory"),
    (lambda path: os.kill(os.getpid(), signal.SIGSEGV), "the process ended with -11"),
    (lambda path: os._exit(3), "the process ended with 3"), (_takes, "it takes "),
    (_prints, "it prints 'panicked at'")])
def test_a_fault_of_a_reader_is_seen_and_the_next_case_is_read(
        read: Callable[[Path], object], fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made/some").mkdir(parents=True)
    (tmp_path / "made/some/a").write_bytes(b"seed")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("fuzz.reading.MOST_MEMORY", 1 << 26)
    monkeypatch.setitem(READERS, "tried", Reader("some", read))
    cases = [Spoilt("tried", {"a": b"\xff"}), Spoilt("tried", {"a": b"\xfe"})]
    found = list(tried(cases, tmp_path / "made", tmp_path / "scratch", 1))
    assert [each.case for each in found] == (cases if fault else [])
    assert all(each.fault.startswith(fault) for each in found), found
    assert (tmp_path / "made/some/a").read_bytes() == b"seed"


def test_what_a_reader_shows_is_kept_and_its_cases_follow_from_a_number(tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made/some").mkdir(parents=True)
    (tmp_path / "made/some/a.json").write_text('{"b": [1, 2]}')
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("fuzz.reading.CASES", 8)
    monkeypatch.setitem(READERS, "tried", Reader("some", lambda folder: 1 // 0))
    assert drawn("tried", tmp_path / "made/some", 3) == drawn("tried", tmp_path / "made/some", 3)
    reading = Reading(tmp_path / "made", tmp_path / "scratch", tmp_path / "kept")
    reading.turn("tried", 3)
    (kept,) = reading.seen.values()
    assert reading.count >= 1 and (kept / "files/a.json").is_file()
    assert (kept / "case.txt").read_text().startswith("tried\nseed: 3\nfault: ZeroDivisionError from test_fuzz.py")
    with pytest.raises(ZeroDivisionError):
        again(tmp_path / "made", kept, tmp_path / "again")


def test_files_of_every_format_are_spoilt_within_their_structure(tmp_path: Path) -> None:
    table = io.BytesIO()
    parquet.write_table(arrow.table({"text": ["ab"] * 9}), table)
    pickled = io.BytesIO()
    torch.save({"w": torch.ones(3)}, pickled)
    spoils = [(parquet_changed, table.getvalue()), (archive_changed, pickled.getvalue()),
              (pickle_changed, pickle.dumps({"a": [1, "b"]}, 2)), (protobuf_changed, b"\x0a\x03abc\x10\x07"),
              (gguf_changed, b"GGUF" + bytes(60))]

    @settings(max_examples=8, deadline=None)
    @given(st.data())
    def changed(data: st.DataObject) -> None:
        for spoil, content in spoils:
            assert isinstance(spoil(data.draw, content), bytes)

    changed()
    assert len(list(_thrift_places(table.getvalue()[-8 - int.from_bytes(table.getvalue()[-8:-4], "little"):-8]))) > 20


def test_every_task_is_fuzzed_from_a_run_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {*task_seeds.RUNS, "next_token"} == set(REGISTRY.kinds(("task",)))
    seeds.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in task_seeds.RUNS:
        train(parse_run(json.loads(Path(f"tasks/{name}.json").read_text())), Path(f"out_{name}"))
