"""Requests of one client at the engine, whose events come from the engine's thread to the loop of the server."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias, final

from weft.server.gate import Receive
from weft.serving.engine import Engine
from weft.serving.requests import Event, Request

Told: TypeAlias = tuple[int, Event]


@final
class Mailbox:
    """Events of the engine's thread, which the loop of the server takes over together: one step of the engine wakes the
    loop once, however many rows it has continued.

    Args:
        loop: that of the server.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._woken = loop, False
        self._posted: deque[tuple[Exchange, int, Event]] = deque()

    def post(self, exchange: Exchange, place: int, event: Event) -> None:
        """Hand over an event; called in the engine's thread."""
        self._posted.append((exchange, place, event))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop has ended, and with it everybody who would read
                self._posted.clear()

    def _deliver(self) -> None:
        self._woken = False  # before the events are taken, so that none posted meanwhile waits for ever
        while self._posted:
            exchange, place, event = self._posted.popleft()
            exchange.deliver(place, event)


@final
class Exchange:
    """The requests of one body, from their submission to their last events. Whoever leaves it early cancels what still
    runs.

    Args:
        requests: submitted together; where the engine refuses one, none runs.
        receive: tells that the client has left.
    """

    def __init__(self, engine: Engine, mailbox: Mailbox, requests: Sequence[Request], receive: Receive) -> None:
        self._engine, self._mailbox, self._requests, self._receive = engine, mailbox, requests, receive
        self._tickets: list[Any] = []
        self._told: list[Told] = []
        self._news = asyncio.Event()
        self._left = False

    def __enter__(self) -> Exchange:
        """Submit the requests. Raises what `Engine.submit` raises."""
        try:
            for place, request in enumerate(self._requests):
                self._tickets.append(self._engine.submit(request, partial(self._mailbox.post, self, place)))
        except BaseException:
            self._cancel()
            raise
        self._watch = asyncio.ensure_future(self._gone())
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.cancel()
        self._cancel()

    def deliver(self, place: int, event: Event) -> None:
        """Take an event; called by the loop."""
        if not self._left:
            self._told.append((place, event))
            self._news.set()

    async def _gone(self) -> None:
        """Let `events` end once the client has left, and nobody waits for them any more."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()
        self._news.set()

    async def events(self) -> list[Told]:
        """The events that have come since the last call, at least one; none once the client has left."""
        while not self._told and not self._left:
            self._news.clear()
            await self._news.wait()
        told, self._told = self._told, []
        return [] if self._left else told

    def _cancel(self) -> None:
        self._left = True
        for ticket in self._tickets:
            self._engine.cancel(ticket)
        self._tickets = []
