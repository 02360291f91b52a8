"""Rows without a model, and clients of a scheduler, which fail where they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.decoding.choosing import RowSettings
from weft.decoding.rows import Row
from weft.decoding.stopping import NewToken
from weft.serving.requests import Event, Failed, PromptRead, Request
from weft.serving.scheduler import Scheduler, Ticket

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

    def read(self, ticket: Ticket, upto: int, interrupt: Callable[[], None]) -> None:
        assert self.read_so_far[ticket] == ticket.read < upto < ticket.length
        interrupt()
        self.fail(ticket, "read")
        interrupt()
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
