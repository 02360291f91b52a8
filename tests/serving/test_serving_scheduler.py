"""The scheduler on a fake model: any order of submissions, cancels, failures and steps leaves nothing behind."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.fake_rows import POINTS, Client, FakeRows, Times, submitted
from weft.core.errors import FailedError, InputError
from weft.serving.requests import EngineLimits, Failed, OverloadedError, StoppedError
from weft.serving.scheduler import Scheduler

LIMITS = EngineLimits(rows=4, step_tokens=16, queue_requests=5, queue_tokens=90)
MOST_BYTES = 200


def at_rest(scheduler: Scheduler, rows: FakeRows) -> None:
    figures = scheduler.figures()
    assert (figures.running, figures.waiting, figures.waiting_tokens, figures.slots, figures.state_bytes) == (0,) * 5
    assert rows.read_so_far == {} and rows.new == {}


class AnyOrder(RuleBasedStateMachine):
    """Everything that clients and the engine's thread may do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = FakeRows()
        self.scheduler = Scheduler(self.rows, LIMITS, MOST_BYTES, Times())
        self.clients = list[Client]()
        self.refused, self.closed = 0, False

    @rule(length=st.integers(1, 60), new=st.integers(0, 6), nbytes=st.integers(0, 120), whole=st.booleans(),
          fault=st.sampled_from([None, None, None, *POINTS]))
    def submit(self, length: int, new: int, nbytes: int, whole: bool, fault: str | None) -> None:
        before = self.scheduler.figures()
        try:
            self.clients.append(submitted(self.scheduler, self.rows, length, new, nbytes, whole=whole, fault=fault))
        except OverloadedError as error:
            self.refused += 1
            assert error.retry_after >= 1
            assert before.waiting == LIMITS.queue_requests or before.waiting_tokens + length > LIMITS.queue_tokens
        except StoppedError:
            assert self.closed

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        assert client.ticket is not None
        self.scheduler.cancel(client.ticket)
        client.cancelled = True

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.scheduler.step()

    @precondition(lambda self: not self.closed)
    @rule(really=st.sampled_from([False] * 9 + [True]))
    def close(self, really: bool) -> None:
        if really:
            self.scheduler.close()
            self.closed = True
            at_rest(self.scheduler, self.rows)

    @invariant()
    def numbers_agree(self) -> None:
        figures = self.scheduler.figures()
        assert 0 <= figures.slots <= figures.running <= LIMITS.rows and figures.waiting <= LIMITS.queue_requests
        held = [client.ticket for client in self.clients if client.ticket and client.ticket.stage in (
            "reading", "continuing")]
        assert figures.state_bytes == sum(ticket.nbytes for ticket in held) <= MOST_BYTES
        assert figures.running == len(held) and figures.refused == self.refused
        assert figures.waiting_tokens == sum(client.ticket.length for client in self.clients if client.ticket and
                                             client.ticket.stage == "waiting")
        ended = figures.finished + figures.cancelled + figures.failed
        assert ended + figures.running + figures.waiting == len(self.clients)
        for client in self.clients:
            client.check_order()

    def teardown(self) -> None:
        for _ in range(600):
            if not self.scheduler.step():
                break
        at_rest(self.scheduler, self.rows)
        for client in self.clients:
            whole = client.ticket is not None and self.rows.faults.get(client.ticket) in (None, "leave")
            if whole and not client.cancelled and not self.closed:
                assert client.answer() == client.wanted()


AnyOrder.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_of_a_thousand_faults_each_fails_its_own_row_alone() -> None:
    generator = random.Random(4)
    for trial in range(1000):
        rows = FakeRows()
        scheduler = Scheduler(rows, EngineLimits(rows=3, step_tokens=16), MOST_BYTES, Times())
        guilty, point = generator.randrange(4), POINTS[trial % len(POINTS)]
        clients = [submitted(scheduler, rows, generator.randrange(1, 40) if point != "read" else 40,
                             generator.randrange(2, 6), fault=point if row == guilty else None) for row in range(4)]
        while scheduler.step():
            pass
        at_rest(scheduler, rows)
        for row, client in enumerate(clients):
            client.check_order()
            if row != guilty or point == "leave":
                assert client.answer() == client.wanted(), f"trial {trial}: the fault of row {guilty} in {point}"
            elif point != "tell":
                assert isinstance(client.events[-1], Failed) and len(client.answer()) < len(client.wanted())
        assert scheduler.figures().failed == (point != "leave")


def test_a_failure_is_told_without_what_only_this_process_knows() -> None:
    rows = FakeRows()
    scheduler = Scheduler(rows, LIMITS, MOST_BYTES, Times())
    client = submitted(scheduler, rows, 3, 2, fault="begin")
    scheduler.step()
    event, = client.events
    assert isinstance(event, Failed) and isinstance(event.error, FailedError)
    assert str(event.error) == ("engine: the row could not be computed (ValueError). Send the request again; the "
                                "engine's log has the cause.")
    assert str(event.error.__cause__) == "a fault in begin"


def test_a_long_prompt_is_read_in_pieces_and_short_ones_do_not_wait_for_it() -> None:
    rows = FakeRows()
    scheduler = Scheduler(rows, EngineLimits(rows=4, step_tokens=16), MOST_BYTES, lambda: 0.0)
    quick, long, later, whole = (submitted(scheduler, rows, length, 30, whole=length == 40)
                                 for length in (10, 50, 5, 40))
    seen = []
    for _ in range(6):
        scheduler.step()
        seen.append([client.ticket.read if client.ticket else 0 for client in (quick, long, later, whole)])
    assert seen == [[10, 6, 0, 0], [10, 22, 0, 0], [10, 38, 0, 0], [10, 49, 5, 0], [10, 50, 5, 0], [10, 50, 5, 40]]
    assert len(quick.answer()) == 6 and len(whole.answer()) == 1


def test_short_prompts_are_read_behind_a_piece_that_leaves_room() -> None:
    rows, now = FakeRows(), Times()
    scheduler = Scheduler(rows, EngineLimits(rows=4, step_tokens=64), MOST_BYTES, now)
    submitted(scheduler, rows, 3, 90)
    scheduler.step()
    long, short = submitted(scheduler, rows, 500, 9), submitted(scheduler, rows, 20, 9)
    scheduler.step()
    assert long.ticket and long.ticket.read == 32 and short.answer(), "32 tokens are a piece, 20 fit behind"


def test_rows_wait_until_there_are_slots_and_bytes_for_the_oldest() -> None:
    rows = FakeRows()
    scheduler = Scheduler(rows, LIMITS, MOST_BYTES, Times())
    first, second, third = (submitted(scheduler, rows, 2, new, nbytes) for new, nbytes in ((2, 150), (2, 60), (2, 10)))
    scheduler.step()
    figures = scheduler.figures()
    assert (figures.running, figures.waiting, figures.state_bytes) == (1, 2, 150), "the third does not overtake"
    scheduler.step()
    assert len(first.answer()) == 2 and second.answer() == []
    scheduler.step()
    assert len(second.answer()) == len(third.answer()) == 1 and scheduler.figures().state_bytes == 70


def test_a_full_queue_says_when_to_come_again() -> None:
    rows = FakeRows()
    scheduler = Scheduler(rows, LIMITS, MOST_BYTES, Times())
    for _ in range(LIMITS.queue_requests):
        submitted(scheduler, rows, 2, 5)
    with pytest.raises(OverloadedError, match=r"^queue: 5 requests wait, and the queue has room for 5\. Try again in"):
        submitted(scheduler, rows, 2, 5)
    while scheduler.step():
        pass
    submitted(scheduler, rows, 80, 5)
    with pytest.raises(OverloadedError, match=r"^queue: 80 tokens of prompts wait, and the queue has room for 90\."):
        submitted(scheduler, rows, 11, 5)
    assert scheduler.figures().refused == 2


def test_who_comes_after_as_many_as_there_are_rows_and_places_need_not_be_read() -> None:
    """Nobody is refused so who would have been admitted: those that are being read count, and so do free rows."""
    rows = FakeRows()
    scheduler = Scheduler(rows, LIMITS, MOST_BYTES, Times())
    scheduler.require_room(LIMITS.rows + LIMITS.queue_requests - 1)
    with pytest.raises(OverloadedError, match=r"9 requests wait, and the queue has room for 5"):
        scheduler.require_room(LIMITS.rows + LIMITS.queue_requests)
    for _ in range(2):
        submitted(scheduler, rows, 2, 5)
    scheduler.step()
    submitted(scheduler, rows, 2, 5)
    scheduler.require_room(2 + LIMITS.queue_requests - 2)
    with pytest.raises(OverloadedError):
        scheduler.require_room(2 + LIMITS.queue_requests - 1)
    assert scheduler.figures().refused == 2


def test_what_can_never_run_and_what_comes_after_the_end_is_refused() -> None:
    rows = FakeRows()
    scheduler = Scheduler(rows, LIMITS, MOST_BYTES, Times())
    with pytest.raises(InputError, match=r"6 tokens to read need a state of 201 bytes, and the engine's states "
                                         r"may have 200\. Shorten the prompt or lower max_new_tokens\."):
        submitted(scheduler, rows, 2, 5, 201)
    left = submitted(scheduler, rows, 2, 5)
    scheduler.close()
    assert isinstance(left.events[-1], Failed) and isinstance(left.events[-1].error, StoppedError)
    with pytest.raises(StoppedError, match="engine: the engine takes no more requests"):
        submitted(scheduler, rows, 2, 5)


def test_the_scheduler_imports_no_tensors() -> None:
    code = "import sys, weft.serving.scheduler; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_that_import_would_be_seen() -> None:
    source = Path(__file__).parents[2] / "src" / "weft" / "serving" / "engine_rows.py"
    imports: list[Any] = [node for node in ast.parse(source.read_text(encoding="utf-8")).body
                          if isinstance(node, ast.Import)]
    assert "torch" in [alias.name for node in imports for alias in node.names]
