"""Files of requests in the format of OpenAI's batches, answered by an engine without HTTP: a JSON object on each line.

    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once"}}
    {"id": "batch_req_...", "custom_id": "a", "response": {"status_code": 200, ...}, "error": null}

Answers are appended as they are ready, each line in one piece. The id of an answer is the hash of its request's line.
So a job that was killed goes on from what its file holds: a line whose id is that of a request is its answer, a last
line without an end that begins with such an id is written anew, and a file with anything else is not touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

from weft.core.errors import DataError, FailedError, InputError, OccupiedError, UserError
from weft.core.strict_json import plain
from weft.disk.documents import Unreadable, parse_json
from weft.serving.engine import Engine
from weft.serving.requests import Event, Failed, OverloadedError, Request, StoppedError

Json: TypeAlias = dict[str, Any]
PREFIX, HEAD = "batch_req_", b'{"id":"'
KEYS = ("custom_id", "method", "url", "body")
AHEAD = 256
"""Requests of a file that are submitted before the first of them is answered."""
MOST_LINE = 16 << 20
"""Bytes of one line."""
PAUSE = 1.0
"""Seconds between two times at which the system is told to write what it holds to the disk."""


Understood: TypeAlias = tuple[Sequence[Request], Any, bool]
"""Requests that are all to be submitted, what makes the answer of their events (`weft.server.replies.Reply`), and
whether a stream is wanted."""
Read: TypeAlias = Callable[[str, Json], Understood]
"""Understands the body of a url. Raises `UserError`."""
Refuse: TypeAlias = Callable[[Exception], tuple[int, Json]]
"""The status of HTTP and the object that tell an error."""


@final
@dataclass(frozen=True)
class Wanted:
    """A line of a file of requests.

    Attributes:
        number: of the line, from 1.
        name: the id of its answer.
        custom_id: by which the client knows it; None: the line has none.
        place: where the line begins, in bytes.
        problem: why it cannot be read, with its number; empty if it can.
    """

    number: int
    name: str
    custom_id: str | None
    place: int
    problem: str


@final
@dataclass
class Answered:
    """How far a file is answered.

    Attributes:
        total: number of requests.
        before: how many of them an earlier job has answered.
        now: how many this one has.
        wrong: how many of these are answered by an error.
    """

    total: int
    before: int
    now: int = 0
    wrong: int = 0


@final
@dataclass
class _Running:
    """A request in the engine."""

    wanted: Wanted
    answer: Any
    tickets: list[Any] = field(default_factory=list)


def answer_file(engine: Engine, source: Path, out: Path, *, read: Read, refuse: Refuse,
                told: Callable[[int, int], None] = lambda done, total: None) -> Answered:
    """Answer every request of a file that has no answer yet. The engine is stepped in the calling thread.

    Args:
        engine: has no other requests.
        source: the file of requests. Lines that cannot be read and requests that are refused are answered by errors.
        out: the file of answers, to which is appended; made if it does not exist.
        read: understands bodies.
        refuse: tells errors.
        told: is given the number of requests that were answered by this call, and of those that it has to answer.

    Raises:
        DataError: the file of requests cannot be read or is empty.
        InputError: two requests have the same ``custom_id``.
        OccupiedError: the file of answers holds something else, or another process writes it.
        FailedError: the file of answers cannot be written.
    """
    wanted = read_requests(source)
    with _appending(out, wanted) as (handle, answered):
        pending = deque(each for each in wanted if each.name not in answered)
        job = _Job(engine, source, handle, out, read, refuse, Answered(len(wanted), len(answered)))
        told(0, len(pending))
        job.run(pending, told)
    return job.found


def read_requests(source: Path) -> list[Wanted]:
    """The lines of a file of requests, without those that are blank.

    Raises:
        DataError: it cannot be read, or is empty.
        InputError: two lines have the same ``custom_id``.
    """
    found, lines, place = list[Wanted](), dict[str, int](), 0
    try:
        with source.open("rb") as file:
            for number, line in enumerate(file, start=1):
                wanted = _wanted(number, place, line)
                known = wanted.custom_id
                if known is not None and lines.setdefault(known, number) != number:
                    raise InputError(f"the custom_id {known!r} is that of lines {lines[known]} and {number}.",
                                     where=str(source), remedy="Give each request its own.")
                found += [wanted] if line.strip() else []
                place += len(line)
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror}).", where=str(source),
                        remedy="Give a file with a request on each line.") from None
    if not found:
        raise DataError("there are no requests.", where=str(source), remedy="Give a file with a request on each line.")
    return found


def _wanted(number: int, place: int, line: bytes) -> Wanted:
    custom_id, problem = _envelope(line)
    salt = b"" if custom_id is not None else f"{number}:".encode()
    name = PREFIX + hashlib.sha256(salt + line.strip()).hexdigest()[:24]
    return Wanted(number, name, custom_id, place, problem and f"line {number}: {problem}")


def _envelope(line: bytes) -> tuple[str | None, str]:
    """The custom_id of a line, if it has one, and why it cannot be answered, if that is so."""
    if len(line) > MOST_LINE:
        return None, f"more than {MOST_LINE:,} bytes"
    try:
        data = parse_json(line, once=True)
    except (Unreadable, UnicodeDecodeError) as error:
        return None, f"it is no JSON ({error})"
    if not isinstance(data, dict):
        return None, "it is no object"
    custom_id = data.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id.isprintable() or not custom_id:
        return None, "it has no custom_id, a printable text by which its answer is known"
    unknown = next((key for key in data if key not in KEYS), None)
    if unknown is not None:
        return custom_id, f"unknown field {unknown!r}; known are {', '.join(KEYS)}"
    if data.get("method") != "POST":
        return custom_id, "its method is not POST"
    if not isinstance(data.get("url"), str) or not isinstance(data.get("body"), dict):
        return custom_id, "it has no url, or no body that is an object"
    return custom_id, ""


@contextmanager
def _appending(out: Path, wanted: Sequence[Wanted]) -> Iterator[tuple[int, set[str]]]:
    """The file of answers, open and locked, and the ids of the answers that it holds. Raises `OccupiedError`."""
    if os.path.lexists(out) and not out.is_file():
        raise OccupiedError("this is no file of answers.", where=str(out), remedy="Give the path of a file.")
    try:
        handle = os.open(out, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise OccupiedError(f"the file cannot be written ({error.strerror}).", where=str(out),
                            remedy="Give the path of a file in a folder that you may write to.") from None
    try:
        _lock(handle, out)
        with open(handle, "rb", closefd=False) as file:
            answered, complete = _answers(file, {each.name: each.custom_id for each in wanted}, out)
        os.ftruncate(handle, complete)
        yield handle, answered
    finally:
        os.close(handle)


def _lock(handle: int, out: Path) -> None:
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OccupiedError("another process is writing answers into this file.", where=str(out),
                                remedy="Wait until it has ended, or give another path.") from None


def _answers(file: Iterator[bytes], names: Mapping[str, str | None], out: Path) -> tuple[set[str], int]:
    """The ids of the answers in a file, and the number of bytes of its complete lines. Raises `OccupiedError`: it holds
    something that no job with these requests has written."""
    answered, complete = set[str](), 0
    for number, line in enumerate(file, start=1):
        if line.endswith(b"\n"):
            name = _name_of(line, names)
            known = name is not None and name not in answered
        else:
            name = None
            known = any((HEAD + each.encode())[: len(line)] == line[: len(HEAD) + len(each)]
                        for each in names if each not in answered)
        if not known:
            raise OccupiedError(f"line {number} is no answer to one of these requests.", where=str(out),
                                remedy="Give another path, or the requests that this file answers.")
        if name is not None:
            answered.add(name)
            complete += len(line)
    return answered, complete


def _name_of(line: bytes, names: Mapping[str, str | None]) -> str | None:
    """The id of an answer to one of the requests ``names``; None for any other line."""
    try:
        data = parse_json(line)
    except (Unreadable, UnicodeDecodeError):
        return None
    if not isinstance(data, dict) or data.keys() != {"id", "custom_id", "response", "error"}:
        return None
    name = data["id"]
    return name if isinstance(name, str) and name in names and names[name] == data["custom_id"] else None


@final
class _Job:
    """Requests of a file on their way through an engine."""

    def __init__(self, engine: Engine, source: Path, handle: int, out: Path, read: Read, refuse: Refuse,
                 found: Answered) -> None:
        self._engine, self._source, self._handle, self._out = engine, source, handle, out
        self._read, self._refuse, self.found = read, refuse, found
        self._running = dict[str, _Running]()
        self._events: deque[tuple[_Running, int, Event]] = deque()

    def run(self, pending: deque[Wanted], told: Callable[[int, int], None]) -> None:
        """Answer all requests."""
        total, flushed = len(pending), time.monotonic()
        try:
            while pending or self._running:
                while pending and len(self._running) < AHEAD and self._begin(pending[0]):
                    pending.popleft()
                self._engine.step()
                while self._events:
                    self._take(*self._events.popleft())
                told(self.found.now, total)
                if time.monotonic() - flushed > PAUSE:
                    os.fsync(self._handle)
                    flushed = time.monotonic()
            os.fsync(self._handle)
        finally:
            for each in self._running.values():
                self._cancel(each)

    def _begin(self, wanted: Wanted) -> bool:
        """Submit the requests of a line; False: the engine takes no more now."""
        running = None
        try:
            asked = self._understood(wanted)
            requests, answer, _ = asked
            running = _Running(wanted, answer)
            for place, request in enumerate(requests):
                running.tickets.append(self._engine.submit(request, self._teller(running, place)))
        except (UserError, OverloadedError) as error:
            if running is not None:
                self._cancel(running)
            if isinstance(error, OverloadedError) and self._running:
                return False
            self._refused(wanted, error)
            return True
        self._running[wanted.name] = running
        return True

    def _understood(self, wanted: Wanted) -> Understood:
        """Read a line again. Raises `UserError`; or `FailedError`: it has changed."""
        if wanted.problem:
            raise InputError(f"{wanted.problem}.", where=self._source.name)
        with self._source.open("rb") as file:
            file.seek(wanted.place)
            line = file.readline()
        if _wanted(wanted.number, wanted.place, line) != wanted:
            raise FailedError(f"line {wanted.number} has changed while the file was answered.", where=str(self._source),
                              remedy="Start the job again.")
        data = parse_json(line, once=True)
        asked = self._read(data["url"], data["body"])
        if asked[2]:
            raise InputError("answers in a file are whole.", where="stream", remedy="Leave it out.")
        return asked

    def _teller(self, running: _Running, place: int) -> Callable[[Event], None]:
        return lambda event: self._events.append((running, place, event))

    def _take(self, running: _Running, place: int, event: Event) -> None:
        """Take an event of a request. Of one that a stopped engine has ended nothing is written: it has no answer."""
        wanted = running.wanted
        if self._running.get(wanted.name) is not running:
            return
        if not isinstance(event, Failed):
            running.answer.tell(place, event)
            if running.answer.done:
                del self._running[wanted.name]
                self._write(wanted, 200, running.answer.whole())
            return
        if isinstance(event.error, StoppedError):
            raise event.error
        del self._running[wanted.name]
        self._cancel(running)
        self._refused(wanted, event.error)

    def _cancel(self, running: _Running) -> None:
        for ticket in running.tickets:
            self._engine.cancel(ticket)

    def _refused(self, wanted: Wanted, error: Exception) -> None:
        """Answer a request by its error: one of the client as the server tells it, and any other by its message."""
        self.found.wrong += 1
        if wanted.problem or not isinstance(error, UserError | OverloadedError):
            told = {"code": "invalid_line" if wanted.problem else "failed", "message": str(error)}
            self._write(wanted, None, None, told)
        else:
            self._write(wanted, *self._refuse(error))

    def _write(self, wanted: Wanted, status: int | None, body: Json | None, error: Json | None = None) -> None:
        """Append an answer."""
        response = None if status is None else {
            "status_code": status, "request_id": wanted.name.replace(PREFIX, "req_"), "body": body}
        answer = plain({"id": wanted.name, "custom_id": wanted.custom_id, "response": response, "error": error})
        line = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"
        try:
            while line:
                line = line[os.write(self._handle, line) :]
        except OSError as problem:
            raise FailedError(f"an answer cannot be written ({problem.strerror}).", where=str(self._out),
                              remedy="Free space, and start the job again: it goes on from here.") from None
        self.found.now += 1
