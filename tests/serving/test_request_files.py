"""Files of requests: each is answered once, whatever befalls the job and whatever its lines are."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch

from decoding.small_models import Bigram, reseeded
from weft.core.errors import DataError, FailedError, InputError, OccupiedError, UserError
from weft.decoding import Constraint, NewToken, Row, RowSettings
from weft.serving.engine import Engine
from weft.serving.request_files import Answered, answer_file, read_requests
from weft.serving.requests import EngineLimits, PromptRead, Request


class Tokens:
    """An answer that is the tokens of all rows."""

    def __init__(self, rows: int) -> None:
        self.rows: list[list[int]] = [[] for _ in range(rows)]
        self.ended = 0

    @property
    def done(self) -> bool:
        return self.ended == len(self.rows)

    def tell(self, place: int, event: PromptRead | NewToken) -> None:
        if isinstance(event, NewToken):
            self.rows[place].append(event.token)
            self.ended += event.finish is not None

    def whole(self) -> dict[str, Any]:
        return {"rows": self.rows}


class Understood(NamedTuple):
    requests: tuple[Request, ...]
    answer: Tokens
    stream: bool


class Broken:
    """A constraint that fails at once."""

    def allowed(self) -> torch.Tensor:
        raise ValueError("broken")

    def push(self, _token: int) -> bool:
        return False


def read(url: str, body: dict[str, Any]) -> Understood:
    if url != "/rows":
        raise InputError(f"{url!r} is no endpoint.", where="url", remedy="Give /rows.")
    made: Callable[[], Constraint] | None = Broken if body.get("breaks") else None
    requests = tuple(Request(Row(tuple(body["tokens"])), RowSettings(body.get("most", 3), row=index, constraint=made))
                     for index in range(body.get("n", 1)))
    return Understood(requests, Tokens(len(requests)), body.get("stream", False))


def refuse(error: Exception) -> tuple[int, dict[str, Any]]:
    return 400 if isinstance(error, UserError) else 429, {"error": {"message": str(error)}}


def engine(**limits: Any) -> Engine:
    shares = torch.rand(20, 20, generator=reseeded(1)) + 0.1
    return Engine(Bigram(shares.tolist()).eval(), None, limits=EngineLimits(**{"rows": 4, "context": 64, **limits}))


def answer(source: Path, out: Path, **limits: Any) -> Answered:
    return answer_file(engine(**limits), source, out, read=read, refuse=refuse)


def line(custom_id: str, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/rows", "body": {"tokens": [1, 2], **body}})


def written(path: Path) -> dict[str | None, dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b"", "the last line is whole"
    found = [json.loads(each) for each in lines]
    assert len({each["id"] for each in found}) == len(found)
    return {each["custom_id"]: each for each in found}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    lines = [line(f"row {place}", tokens=[place % 20], most=1 + place % 5) for place in range(30)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_every_request_has_its_own_answer(source: Path, tmp_path: Path) -> None:
    told, out = list[tuple[int, int]](), tmp_path / "out.jsonl"
    found = answer_file(engine(), source, out, read=read, refuse=refuse, told=lambda *each: told.append(each))
    assert found == Answered(30, 0, 30, 0) and told[0] == (0, 30) and told[-1] == (30, 30) and told == sorted(told)
    answers = written(out)
    assert all(len(answers[f"row {place}"]["response"]["body"]["rows"][0]) == 1 + place % 5 for place in range(30))
    for place in (0, 4, 17, 29):
        alone = tmp_path / f"{place}.jsonl"
        alone.write_text(line(f"row {place}", tokens=[place % 20], most=1 + place % 5), encoding="utf-8")
        answer(alone, tmp_path / f"{place}.out")
        mine = answers[f"row {place}"]
        assert mine == written(tmp_path / f"{place}.out")[f"row {place}"]
        assert mine["error"] is None and mine["response"]["status_code"] == 200
        assert mine["response"]["request_id"] == mine["id"].replace("batch_req_", "req_")


def test_wrong_lines_are_answered_by_errors_that_name_them(tmp_path: Path) -> None:
    source, out = tmp_path / "requests.jsonl", tmp_path / "out.jsonl"
    good = {"custom_id": "x", "method": "POST", "url": "/rows", "body": {"tokens": [1]}}
    lines = [line("fine"), "", "{", json.dumps([1]), json.dumps({**good, "custom_id": 3}),
             json.dumps({**good, "custom_id": "m", "method": "GET"}), json.dumps({**good, "custom_id": "k", "more": 1}),
             json.dumps({**good, "custom_id": "b", "body": 1}), json.dumps({**good, "custom_id": "u", "url": "/x"}),
             line("stream", stream=True), line("id", tokens=[99]), line("long", most=500), line("breaks", breaks=True),
             '{"custom_id": "twice", "custom_id": "twice"}', line("ü", n=3)]
    source.write_text("\n".join(lines), encoding="utf-8")
    assert answer(source, out) == Answered(14, 0, 14, 12)
    told = [json.loads(each) for each in out.read_text(encoding="utf-8").splitlines()]
    problems = {each["error"]["message"] for each in told if each["error"] is not None}
    for expected in ("requests.jsonl: line 3: it is no JSON", "requests.jsonl: line 4: it is no object",
                     "line 5: it has no custom_id, a printable text", "line 6: its method is not POST",
                     "line 7: unknown field 'more'; known are custom_id, method, url, body",
                     "line 8: it has no url, or no body that is an object", "line 14: it is no JSON",
                     "the constraint failed (ValueError)"):
        assert any(expected in each for each in problems), (expected, problems)
    assert len(problems) == 8
    answers = {each["custom_id"]: each["response"] for each in told if each["response"] is not None}
    assert {key: each["status_code"] for key, each in answers.items()} == {
        "fine": 200, "ü": 200, "u": 400, "stream": 400, "id": 400, "long": 400}
    assert "answers in a file are whole" in answers["stream"]["body"]["error"]["message"]
    assert "id 99 is outside" in answers["id"]["body"]["error"]["message"] and len(answers["ü"]["body"]["rows"]) == 3
    assert answer(source, out) == Answered(14, 14)


def test_two_requests_of_one_custom_id_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = tmp_path / "requests.jsonl"
    source.write_text("\n".join([line("a"), line("b"), line("a", most=2)]), encoding="utf-8")
    with pytest.raises(InputError, match=r"the custom_id 'a' is that of lines 1 and 3\. Give each request its own"):
        answer(source, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_what_cannot_be_read_or_written_is_told(tmp_path: Path, source: Path) -> None:
    (tmp_path / "empty").write_text("\n \n", encoding="utf-8")
    for wrong, message in ((tmp_path / "empty", "there are no requests"), (tmp_path, "the file cannot be read"),
                           (tmp_path / "none", "the file cannot be read")):
        with pytest.raises(DataError, match=message):
            answer(wrong, tmp_path / "out.jsonl")
    for wrong, message in ((tmp_path, "this is no file of answers"), (tmp_path / "a/b", "the file cannot be written")):
        with pytest.raises(OccupiedError, match=message):
            answer(source, wrong)


@pytest.mark.parametrize("content", [
    b"notes of mine\n", b"notes", b'{"id":"batch_req_0123456789abcdef01234567","custom_id":"row 0"', b"\n",
    b'{"id": "batch_req_', b'{"id":"x","custom_id":"row 0","response":null,"error":null}\n'])
def test_a_file_of_something_else_stays_as_it_is(source: Path, tmp_path: Path, content: bytes) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(content)
    with pytest.raises(OccupiedError, match=r"out\.jsonl: line 1 is no answer to one of these requests\. Give another"):
        answer(source, out)
    assert out.read_bytes() == content
    with pytest.raises(OccupiedError, match="line 1 is no answer"):
        answer(source, source)


def test_answers_to_other_requests_are_not_added_to(source: Path, tmp_path: Path) -> None:
    out, asked = tmp_path / "out.jsonl", source.read_text(encoding="utf-8")
    answer(source, out)
    before = out.read_bytes()
    source.write_text(asked.replace('"most": 3', '"most": 2'), encoding="utf-8")
    with pytest.raises(OccupiedError, match=r"line \d+ is no answer to one of these requests"):
        answer(source, out)
    assert out.read_bytes() == before
    source.write_text(asked, encoding="utf-8")
    out.write_bytes(before + before[: before.index(b"\n") + 1])  # an answer twice is nothing that a job writes
    with pytest.raises(OccupiedError, match="line 31 is no answer"):
        answer(source, out)


def test_a_job_goes_on_behind_every_byte_at_which_it_was_cut(source: Path, tmp_path: Path) -> None:
    """And requests that were added to a file are answered beside those that were there."""
    source.write_text("".join(each + "\n" for each in source.read_text(encoding="utf-8").splitlines()[:6]),
                      encoding="utf-8")
    out, cut = tmp_path / "out.jsonl", tmp_path / "cut.jsonl"
    answer(source, out)
    whole, draw = out.read_bytes(), Random(0)
    for size in {0, 1, 7, 8, 20, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(15))}:
        cut.write_bytes(whole[:size])
        before = whole[:size].count(b"\n")
        assert answer(source, cut) == Answered(6, before, 6 - before)
        assert written(cut) == written(out) and cut.read_bytes().startswith(whole[: whole[:size].rfind(b"\n") + 1])
    with source.open("a", encoding="utf-8") as file:
        file.write(line("more") + "\n")
    assert answer(source, out) == Answered(7, 6, 1) and out.read_bytes().startswith(whole)


def test_more_requests_than_the_engine_takes_wait_outside(source: Path, tmp_path: Path) -> None:
    """A queue of two; a body of more requests than the queue ever takes is answered by its refusal."""
    with source.open("a", encoding="utf-8") as file:
        file.write(line("pair", n=2) + "\n" + line("many", n=9) + "\n")
    assert answer(source, tmp_path / "out.jsonl", rows=1, queue_requests=2) == Answered(32, 0, 32, 1)
    answers = written(tmp_path / "out.jsonl")
    assert answers["many"]["response"]["status_code"] == 429 and len(answers["pair"]["response"]["body"]["rows"]) == 2


def test_an_engine_that_stops_leaves_no_answers_of_its_end(source: Path, tmp_path: Path) -> None:
    stopping, out, calls = engine(), tmp_path / "out.jsonl", list[int]()

    def told(done: int, _total: int) -> None:
        calls.append(done)
        if done > 5:
            stopping.close()

    with pytest.raises(FailedError):
        answer_file(stopping, source, out, read=read, refuse=refuse, told=told)
    begun = len(written(out))
    assert 5 < begun < 30 and all(each["response"]["status_code"] == 200 for each in written(out).values())
    assert answer(source, out) == Answered(30, begun, 30 - begun)


def test_a_full_disk_ends_the_job_in_one_sentence(source: Path, tmp_path: Path) -> None:
    """A limit on the size of files is the same to a process; the next job goes on behind the last whole answer."""
    out, before = tmp_path / "out.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
    try:
        with pytest.raises(FailedError, match=r"out\.jsonl: an answer cannot be written \(File too large\)\. Free "
                                              "space, and start the job again: it goes on from here"):
            answer(source, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert out.stat().st_size == 1500 and not out.read_bytes().endswith(b"\n")
    begun = out.read_bytes().count(b"\n")
    assert answer(source, out) == Answered(30, begun, 30 - begun) and len(written(out)) == 30


def test_requests_that_change_meanwhile_end_the_job(source: Path, tmp_path: Path) -> None:
    def told(_done: int, _total: int) -> None:
        source.write_text(source.read_text(encoding="utf-8").replace("row 29", "row xy"), encoding="utf-8")

    slow = engine(rows=1, queue_requests=1)
    with pytest.raises(FailedError, match=r"line 30 has changed while the file was answered\. Start the job again"):
        answer_file(slow, source, tmp_path / "out.jsonl", read=read, refuse=refuse, told=told)


def test_one_process_at_a_time_writes_a_file(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"

    def told(_done: int, _total: int) -> None:
        with pytest.raises(OccupiedError, match="another process is writing answers into this file"):
            answer(source, out)

    answer_file(engine(), source, out, read=read, refuse=refuse, told=told)


def test_line_numbers_count_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n\n" + line("a") + "\n\n{\n", encoding="utf-8")
    assert [(each.number, each.custom_id) for each in read_requests(path)] == [(3, "a"), (5, None)]


@pytest.mark.parametrize("kills", [int(os.environ.get("WEFT_KILLS", "20"))])
def test_jobs_that_are_killed_lose_no_answer_and_have_none_twice(source: Path, tmp_path: Path, kills: int) -> None:
    """Forks that are killed at random moments, whose file the next one goes on with."""
    total = 12 * kills
    source.write_text("\n".join(line(f"row {place}", tokens=[place % 20], most=12) for place in range(total)),
                      encoding="utf-8")
    out, draw = tmp_path / "out.jsonl", Random(2)
    for _ in range(kills):
        size = out.stat().st_size if out.exists() else 0
        process = os.fork()
        if process == 0:
            try:
                answer(source, out)
            finally:
                os._exit(0)
        goal, until = size + draw.randrange(2500), time.monotonic() + 20
        while not (out.exists() and out.stat().st_size >= goal) and time.monotonic() < until:
            time.sleep(draw.uniform(0, 0.002))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    found = answer(source, out)
    assert found.total == total == found.before + found.now and found.before > 3 * kills
    assert set(written(out)) == {f"row {place}" for place in range(total)}
    assert all(each["response"]["status_code"] == 200 for each in written(out).values())
