"""The scheduler on a fake model: any order of submissions, cancels, failures and steps leaves nothing behind."""

from __future__ import annotations

import ast
import itertools
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from weft.core.errors import FailedError, InputError
from weft.decoding.choosing import RowSettings
from weft.decoding.rows import Row
from weft.decoding.stopping import NewToken
from weft.serving.pace import Pace
from weft.serving.requests import EngineLimits, Event, Failed, OverloadedError, PromptRead, Request, StoppedError
from weft.serving.scheduler import Scheduler, Ticket

LIMITS = EngineLimits(rows=4, step_tokens=16, queue_requests=5, queue_tokens=90)
MOST_BYTES = 200
POINTS = ("begin", "read", "admit", "prompt_read", "step", "leave", "tell")


class FakeRows:
    """A row's tokens are the sum of its prompt and the number of the token. It fails where it is told to."""

    def __init__(self) -> None:
        self.read_so_far = dict[Ticket, int]()
        self.new = dict[Ticket, int]()
        self.faults = dict[Ticket, str]()

    def fail(self, ticket: Ticket, point: str) -> None:
        if self.faults.get(ticket) == point:
            raise ValueError(f"a fault in {point}")

    def begin(self, ticket: Ticket) -> int:
        self.read_so_far[ticket] = 0
        self.fail(ticket, "begin")
        return 0

    def read(self, ticket: Ticket, upto: int, look: Callable[[], None]) -> None:
        assert self.read_so_far[ticket] == ticket.read < upto < ticket.length
        look()
        self.fail(ticket, "read")
        look()
        self.read_so_far[ticket] = upto

    def admit(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            self.fail(ticket, "admit")
        for ticket in tickets:
            assert self.read_so_far.pop(ticket) == ticket.read
            self.new[ticket] = 0

    def prompt_read(self, ticket: Ticket) -> PromptRead:
        self.fail(ticket, "prompt_read")
        return PromptRead(0, "not asked")

    def step(self) -> list[dict[Ticket, NewToken | Exception]]:
        found: dict[Ticket, NewToken | Exception] = {}
        for ticket in self.new:
            if self.faults.get(ticket) == "step" and self.new[ticket]:
                found[ticket] = ValueError("a fault in step")
                continue
            self.new[ticket] += 1
            last = self.new[ticket] == ticket.request.settings.max_new_tokens
            token = sum(ticket.request.row.tokens) + self.new[ticket]
            found[ticket] = NewToken(0, token, None, None, "length" if last else None)
        return [found]

    def leave(self, ticket: Ticket, *, complete: bool) -> None:
        self.read_so_far.pop(ticket, None)
        self.new.pop(ticket, None)
        self.fail(ticket, "leave")


class Client:
    """A client that notes its events, and whose ``tell`` may raise at one of them."""

    def __init__(self, rows: FakeRows) -> None:
        self.events, self.late, self.rows = list[Event](), list[Event](), rows
        self.ticket: Ticket | None = None
        self.cancelled, self.raised = False, False

    def tell(self, event: Event) -> None:
        if self.cancelled or self.raised:
            self.late.append(event)
        self.events.append(event)
        if self.ticket is not None and self.rows.faults.get(self.ticket) == "tell":
            self.raised = True
            raise RuntimeError("the client is gone")

    def answer(self) -> list[int]:
        return [event.token for event in self.events if isinstance(event, NewToken)]

    def wanted(self) -> list[int]:
        assert self.ticket is not None
        request = self.ticket.request
        return [sum(request.row.tokens) + new for new in range(1, request.settings.max_new_tokens + 1)]

    def check_order(self) -> None:
        """One `PromptRead`, tokens of which the last has a finish, or `Failed` as the last event."""
        assert self.late == [], "events after it was cancelled, or after tell had raised"
        kinds = [type(event) for event in self.events]
        assert kinds.count(PromptRead) <= 1 and kinds.count(Failed) <= 1
        assert PromptRead not in kinds[1:] and Failed not in kinds[:-1]
        assert self.answer() == self.wanted()[: len(self.answer())]
        ends = [event.finish is not None for event in self.events if isinstance(event, NewToken)]
        assert not any(ends[:-1])


def submitted(scheduler: Scheduler, rows: FakeRows, length: int, new: int, nbytes: int = 1, *, whole: bool = False,
              fault: str | None = None) -> Client:
    client = Client(rows)
    client.ticket = Ticket(Request(Row(tuple(range(1, length + 1))), RowSettings(new)), client.tell, nbytes, whole)
    scheduler.submit(client.ticket)
    if fault is not None:
        rows.faults[client.ticket] = fault
    return client


class Times:
    """A clock that is a hundredth of a second later at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


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


class TimedRows(FakeRows):
    """Rows on a clock: a step takes `QUIET` seconds, half more with a piece behind it, and of the operations of a piece
    one in five takes ``near`` seconds for each token, and ``far`` more for each one before it."""

    def __init__(self, near: float, far: float) -> None:
        super().__init__()
        self.near, self.far, self.now, self.cold = near, far, 0.0, False
        self.pieces = list[int]()

    def read(self, ticket: Ticket, upto: int, look: Callable[[], None]) -> None:
        tokens = upto - ticket.read
        self.pieces.append(tokens)
        for operation in range(20):
            self.cold = True
            self.now += tokens * (self.near + self.far * ticket.read) if operation % 5 == 0 else QUIET / 50
            look()
        super().read(ticket, upto, lambda: None)

    def step(self) -> list[dict[Ticket, NewToken | Exception]]:
        self.now += 1.5 * QUIET if self.cold else QUIET
        self.cold = False
        return super().step()


QUIET = 0.004


def beside(rows: TimedRows, length: int, streams: int = 8) -> list[float]:
    """Seconds between two tokens of a stream while a long prompt is read, in times of its step."""
    scheduler = Scheduler(rows, EngineLimits(), MOST_BYTES, lambda: rows.now)
    clients = [submitted(scheduler, rows, 3, 1 << 20) for _ in range(streams)]
    for _ in range(9):
        scheduler.step()
    times = list[float]()
    for client in clients[:1]:
        assert client.ticket is not None
        client.ticket.tell = lambda event: times.append(rows.now)
    long = submitted(scheduler, rows, length, 1)
    while not long.events:
        scheduler.step()
    return [(after - before) / QUIET for before, after in itertools.pairwise(times)]


@pytest.mark.parametrize(("near", "far", "most", "last"), [
    (3e-6, 0.0, 256, 256), (1e-5, 1e-9, 128, 64), (1e-5, 4e-9, 128, 32)])
def test_rows_beside_a_long_prompt_wait_less_than_three_steps_however_much_is_behind_it(
        near: float, far: float, most: int, last: int) -> None:
    """As a recurrent model, a hybrid and attention to all keys have it: what is behind costs none, some, much."""
    rows = TimedRows(near, far)
    gaps = beside(rows, 16000)
    late = [gap for gap in gaps if gap >= 3]
    assert len(late) <= len(gaps) / 20, f"{len(late)} of {len(gaps)}"
    assert sum(gaps) / len(gaps) >= 1.9, "the prompt has its share too"
    assert (max(rows.pieces), rows.pieces[-2]) == (most, last)


def test_an_operation_that_cannot_be_interrupted_makes_pieces_short() -> None:
    rows = TimedRows(2e-4, 0.0)
    gaps = beside(rows, 2000)
    assert set(rows.pieces) <= {32, 16, 15} and max(gaps[4:]) <= 1.5 + 32 * 2e-4 / QUIET + 0.5


def test_who_waits_is_begun_and_answered_between_operations_of_a_piece() -> None:
    rows = TimedRows(1e-4, 0.0)
    scheduler = Scheduler(rows, EngineLimits(), MOST_BYTES, lambda: rows.now)
    submitted(scheduler, rows, 3, 1 << 20)
    for _ in range(9):
        scheduler.step()
    long = submitted(scheduler, rows, 500, 1)
    short, read, looked = list[Client](), rows.read, 0

    def reads(ticket: Ticket, upto: int, look: Callable[[], None]) -> None:
        nonlocal looked
        looked += 1
        if looked == 1:
            short.append(submitted(scheduler, rows, 5, 3))
        read(ticket, upto, look)
        if looked == 1:
            assert short[0].answer(), "it had its first token before the piece was read"
        if looked == 2:
            scheduler.cancel(ticket)
            look()
            raise AssertionError("a cancelled prompt is not read on")

    rows.read = reads  # type: ignore[method-assign]
    for _ in range(20):
        scheduler.step()
    assert long.ticket is not None and long.ticket.stage == "ended" and long.events == []
    assert scheduler.figures().cancelled == 1 and scheduler.figures().failed == 0


def test_a_piece_that_is_late_once_is_as_long_as_before_and_one_that_was_tried_is_not() -> None:
    pace = Pace(256)
    assert pace.piece(beside=False) == 256 and pace.piece(beside=True) == 32
    pace.stepped(8, 0.1, beside=False)

    def read(longest: float) -> int:
        pace.begin(0.0)
        pace.due(longest)
        pace.read(pace.piece(beside=True))
        return pace.piece(beside=True)

    assert [read(0.01) for _ in range(2)] == [64, 128]
    assert read(0.2) == 64, "longer than it ever was, and late"
    assert [read(0.01) for _ in range(63)] == [64] * 63 and read(0.01) == 128
    assert [read(longest) for longest in (0.05, 0.2, 0.05, 0.2, 0.2)] == [128] * 4 + [64], "late once, and twice"
    for _ in range(9):
        read(9)
    assert read(9) == 32, "not fewer, however slow the prompt is"
    assert pace.seconds(10) == 1.0 and pace.seconds(8000) == pytest.approx(10.0)


def test_the_scheduler_imports_no_tensors() -> None:
    code = "import sys, weft.serving.scheduler; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"


def test_that_import_would_be_seen() -> None:
    source = Path(__file__).parents[2] / "src" / "weft" / "serving" / "engine_rows.py"
    imports: list[Any] = [node for node in ast.parse(source.read_text(encoding="utf-8")).body
                          if isinstance(node, ast.Import)]
    assert "torch" in [alias.name for node in imports for alias in node.names]
