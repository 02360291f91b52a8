"""Long prompts on a clock: how long rows beside them wait, whatever is behind a piece and however slow it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from serving.fake_rows import Client, FakeRows, submitted
from weft.decoding.stopping import NewToken
from weft.serving.pace import Pace
from weft.serving.requests import EngineLimits
from weft.serving.scheduler import Scheduler, Ticket

MOST_BYTES = 200


class TimedRows(FakeRows):
    """Rows on a clock: a step takes `QUIET` seconds, half more with a piece behind it, and of the operations of a piece
    one in five takes ``near`` seconds for each token, and ``far`` more for each one before it."""

    def __init__(self, near: float, far: float) -> None:
        super().__init__()
        self.near, self.far, self.now, self.cold = near, far, 0.0, False
        self.pieces = list[int]()

    def read(self, ticket: Ticket, upto: int, interrupt: Callable[[], None]) -> None:
        tokens = upto - ticket.read
        self.pieces.append(tokens)
        for operation in range(20):
            self.cold = True
            self.now += tokens * (self.near + self.far * ticket.read) if operation % 5 == 0 else QUIET / 50
            interrupt()
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

    def reads(ticket: Ticket, upto: int, interrupt: Callable[[], None]) -> None:
        nonlocal looked
        looked += 1
        if looked == 1:
            short.append(submitted(scheduler, rows, 5, 3))
        read(ticket, upto, interrupt)
        if looked == 1:
            assert short[0].answer(), "it had its first token before the piece was read"
        if looked == 2:
            scheduler.cancel(ticket)
            interrupt()
            raise AssertionError("a cancelled prompt is not read on")

    rows.read = reads  # type: ignore[method-assign]
    for _ in range(20):
        scheduler.step()
    assert long.ticket is not None and long.ticket.stage == "ended" and long.events == []
    assert scheduler.figures().cancelled == 1 and scheduler.figures().failed == 0


def test_a_step_that_breaks_inside_a_piece_is_not_the_failure_of_its_request() -> None:
    rows = TimedRows(1e-4, 0.0)
    scheduler = Scheduler(rows, EngineLimits(), MOST_BYTES, lambda: rows.now)
    submitted(scheduler, rows, 3, 1 << 20)
    for _ in range(9):
        scheduler.step()
    long = submitted(scheduler, rows, 500, 1)
    rows.step = broken  # type: ignore[method-assign]
    with pytest.raises(MemoryError, match="no more memory"):
        scheduler.step()
    assert long.events == [] and scheduler.figures().failed == 0, "as where a step breaks without a piece"


def broken() -> list[dict[Ticket, NewToken | Exception]]:
    raise MemoryError("no more memory")


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
