"""The thread of an engine: answers come, drain waits, stop ends, and rest costs nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from decoding.small_models import ROPE, decoder
from weft.core.model import LanguageModel
from weft.decoding import GREEDY, NewToken, Row, RowSettings, generate
from weft.serving.engine import Engine
from weft.serving.requests import Event, Failed, Request, StoppedError
from weft.serving.thread import EngineThread

PROMPTS = [Row((1, 2, 3)), Row((4,)), Row((7, 7, 2, 5, 1))]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return decoder(ROPE).eval()


@pytest.fixture
def running(model: LanguageModel) -> Iterator[tuple[Engine, EngineThread]]:
    engine = Engine(model, None)
    thread = EngineThread(engine)
    thread.start()
    yield engine, thread
    thread.stop()
    assert thread.error is None and not thread.alive


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread does; a minute is far more than it needs."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def tokens(events: list[Event]) -> list[int]:
    return [event.token for event in events if isinstance(event, NewToken)]


def test_requests_from_several_threads_are_answered(running: tuple[Engine, EngineThread], model: LanguageModel) -> None:
    engine, thread = running
    heard: list[list[Event]] = [[] for _ in PROMPTS]
    clients = [threading.Thread(target=engine.submit, args=(Request(row, RowSettings(8)), events.append))
               for row, events in zip(PROMPTS, heard, strict=True)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert thread.drain(60)
    wanted = generate(model, PROMPTS, max_new_tokens=8, sampling=GREEDY)
    assert [tokens(events) for events in heard] == [list(row.tokens) for row in wanted.rows]


def test_drain_refuses_more_and_stop_fails_what_is_left(model: LanguageModel) -> None:
    engine = Engine(model, None)
    thread = EngineThread(engine)
    heard: list[Event] = []
    engine.submit(Request(PROMPTS[0], RowSettings(100_000)), heard.append)
    thread.start()
    until(lambda: len(heard) > 2)
    assert not thread.drain(0.05)
    with pytest.raises(StoppedError, match="takes no more requests"):
        engine.submit(Request(PROMPTS[0], RowSettings(3)), heard.append)
    thread.stop()
    assert isinstance(heard[-1], Failed) and isinstance(heard[-1].error, StoppedError)
    assert not thread.alive and engine.figures().state_bytes == engine.figures().running == 0


def test_a_cancelled_row_is_free_and_hears_nothing_more(running: tuple[Engine, EngineThread]) -> None:
    engine, _ = running
    heard: list[Event] = []
    ticket = engine.submit(Request(PROMPTS[0], RowSettings(100_000)), heard.append)
    until(lambda: len(heard) > 2)
    engine.cancel(ticket)
    count = len(heard)
    until(lambda: engine.figures().running == 0)
    engine.cancel(ticket)
    assert len(heard) == count and engine.figures().cancelled == 1


def test_at_rest_it_sleeps_and_still_shows_that_it_is_alive(running: tuple[Engine, EngineThread]) -> None:
    engine, _ = running
    steps, before, spent = engine.figures().steps, engine.figures().alive_at, time.process_time()
    until(lambda: engine.figures().alive_at > before)
    assert time.process_time() - spent < 0.25, "of half a second; a loop without sleep takes all of it"
    assert engine.figures().steps == steps


def test_an_error_of_a_step_itself_ends_the_thread_and_every_request(model: LanguageModel) -> None:
    engine = Engine(model, None)
    thread = EngineThread(engine)
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise KeyboardInterrupt

    engine.submit(Request(PROMPTS[1], RowSettings(9)), broken)
    engine.submit(Request(PROMPTS[0], RowSettings(9)), heard.append)
    thread.start()
    until(lambda: not thread.alive)
    assert isinstance(thread.error, KeyboardInterrupt) and isinstance(heard[-1], Failed)
    assert engine.figures().running == engine.figures().state_bytes == 0
