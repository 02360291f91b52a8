"""`weft serve` as a process on a port of its own: OpenAI's client, hostile clients, and how it ends."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest

import weft as library
from fresh import Fresh, weft
from server.fake_engine import model
from server.test_bodies import PLAIN
from weft.checkpoints import save_checkpoint
from weft.tokenizers import ByteTokenizer, Conventions

SECONDS = 20


class Process:
    """A server that runs.

    Attributes:
        port: where it listens.
    """

    def __init__(self, folder: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.process = Fresh(weft, "serve", str(folder), "--port", "0", "--threads", "1", *options,
                             folder=folder.parent, environment=environment)
        self.process.wait_for("Ctrl-C ends it")
        found = re.search(r":(\d+) \(", self.process.printed())
        assert found is not None
        self.port = int(found[1])

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0,
                             timeout=SECONDS, **options)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)

    def ask(self, body: dict[str, Any], path: str = "/v1/completions") -> bytes:
        """A request as bytes."""
        content = json.dumps(body).encode()
        return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(content)}\r\n\r\n").encode() + content

    def metric(self, name: str) -> float:
        """A number of ``/metrics``."""
        with self.connect() as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            told = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
        found = re.search(rf"^{name} ([0-9.e+]+)$", told, re.MULTILINE)
        assert found is not None, told
        return float(found[1])

    def settle(self) -> None:
        """Wait until no request is left."""
        last = time.monotonic() + SECONDS
        while self.metric("weft_running") + self.metric("weft_waiting") and time.monotonic() < last:
            time.sleep(0.02)
        assert self.metric("weft_running") == self.metric("weft_waiting") == self.metric("weft_slots") == 0
        assert self.metric("weft_state_bytes") == 0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "tiny"
    save_checkpoint(folder, model(), ByteTokenizer().with_conventions(Conventions(chat_templates={"default": PLAIN})))
    return folder


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[Process]:
    found = Process(checkpoint)
    yield found
    found.process.send(signal.SIGTERM)
    ended = found.process.end(30)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr


LONG = {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": True}


def test_openais_client_completes_and_chats(server: Process, checkpoint: Path) -> None:
    client = server.client()
    assert [each.id for each in client.models.list()] == ["tiny"]
    whole = client.completions.create(model="tiny", prompt="The cat", max_tokens=12, temperature=0, logprobs=2)
    expected, = library.generate(checkpoint, "The cat", max_new_tokens=12, log_probs=True).rows
    assert whole.choices[0].text == expected.text
    assert whole.choices[0].logprobs is not None and expected.log_probs is not None
    assert whole.choices[0].logprobs.token_logprobs == pytest.approx(expected.log_probs, abs=1e-4)
    drawn = client.completions.create(model="tiny", prompt="The cat", max_tokens=12, seed=3, n=2)
    assert [each.text for each in drawn.choices] == [each.text for each in client.completions.create(
        model="tiny", prompt="The cat", max_tokens=12, seed=3, n=2).choices]
    stream = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=9,
                                            seed=1, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    answer = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=9,
                                            seed=1)
    text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage is not None and answer.usage is not None
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens


def test_embeddings_come_as_numbers_and_as_bytes(server: Process) -> None:
    client = server.client()
    bytes_ = client.embeddings.create(model="tiny", input=["a", "bc"])  # of which the client asks for base64
    numbers = client.embeddings.create(model="tiny", input=["a", "bc"], encoding_format="float")
    for one, other in zip(bytes_.data, numbers.data, strict=True):
        assert sum(value * value for value in one.embedding) == pytest.approx(1, abs=1e-5)
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)


def test_errors_are_those_that_openais_client_knows(server: Process) -> None:
    client = server.client()
    with pytest.raises(openai.BadRequestError, match="'nonsense' is unknown"):
        client.completions.create(model="tiny", prompt="a", extra_body={"nonsense": 1})
    with pytest.raises(openai.NotFoundError, match="not served"):
        client.completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="context has room"):
        client.completions.create(model="tiny", prompt="a", max_tokens=10**9)


def test_many_clients_at_once_have_the_answers_that_each_has_alone(server: Process) -> None:
    alone = [server.client().completions.create(model="tiny", prompt=f"text {place}", max_tokens=20, seed=place)
             .choices[0].text for place in range(12)]

    async def together() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0,
                                      timeout=SECONDS) as client:
            found = await asyncio.gather(*(client.completions.create(
                model="tiny", prompt=f"text {place}", max_tokens=20, seed=place) for place in range(12)))
        return [each.choices[0].text for each in found]

    assert asyncio.run(together()) == alone


def test_clients_that_leave_at_random_leave_nothing_behind(server: Process) -> None:
    random.seed(5)

    async def leave() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(server.ask({**LONG, "stream": random.random() < 0.5}))
        await writer.drain()
        await asyncio.sleep(random.random() * 0.2)
        writer.transport.abort()
        del reader

    async def all_of_them() -> None:
        for _ in range(5):
            await asyncio.gather(*(leave() for _ in range(20)))

    asyncio.run(all_of_them())
    server.settle()
    assert server.client().completions.create(model="tiny", prompt="a", max_tokens=2).usage is not None


def test_slow_readers_and_half_sent_requests_hold_nobody_up(server: Process) -> None:
    connections = [server.connect() for _ in range(40)]
    try:
        for place, connection in enumerate(connections):
            whole = server.ask(LONG)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.sendall(whole if place < 4 else whole[:place * 3])
        answer = server.client().completions.create(model="tiny", prompt="a", max_tokens=2)
        assert answer.choices[0].finish_reason == "length"
    finally:
        for connection in connections:
            connection.close()
    server.settle()


@pytest.mark.parametrize(("sent", "status"), [
    (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"403"), (b"nonsense\r\n\r\n", b"400"),
    (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 70_000, b"400"),
    (b"GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Content-Length: 99999999999999999999\r\n\r\n", b"4"),
])
def test_what_is_no_request_is_refused(server: Process, sent: bytes, status: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(sent)
        assert connection.recv(1 << 12).split(b" ")[1].startswith(status)


def test_sigterm_lets_running_answers_end(checkpoint: Path) -> None:
    server = Process(checkpoint)
    with server.connect() as connection:
        connection.sendall(server.ask({**LONG, "max_tokens": 600}))
        assert b" 200 " in connection.recv(1 << 12)
        server.process.send(signal.SIGTERM)
        told = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert told.count(b'"finish_reason":"length"') == 1 and b"[DONE]" in told
    ended = server.process.end(30)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_does_not_end_in_time_is_told_so_and_a_second_signal_waits_for_nothing(checkpoint: Path) -> None:
    server = Process(checkpoint, "--drain-seconds", "0.2")
    with server.connect() as connection:
        connection.sendall(server.ask(LONG))
        assert b" 200 " in connection.recv(1 << 12)
        server.process.send(signal.SIGINT)
        told = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert b'"code":"stopping"' in told and b"[DONE]" not in told
    assert server.process.end(30).returncode == 0
    server = Process(checkpoint, "--drain-seconds", "600")
    with server.connect() as connection:
        connection.sendall(server.ask(LONG))
        assert b" 200 " in connection.recv(1 << 12)
        server.process.send(signal.SIGTERM)
        time.sleep(0.2)
        server.process.send(signal.SIGTERM)
        assert server.process.end(10).returncode == 128 + signal.SIGTERM


def test_a_killed_server_frees_its_port_and_its_clients_learn_of_it(checkpoint: Path) -> None:
    server = Process(checkpoint)
    with server.connect() as connection:
        connection.sendall(server.ask(LONG))
        assert b" 200 " in connection.recv(1 << 12)
        server.process.send(signal.SIGKILL)
        with suppress(ConnectionResetError):
            while told := connection.recv(1 << 16):
                assert b"[DONE]" not in told
    assert server.process.end(10).returncode == -signal.SIGKILL
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", server.port))


def test_a_key_from_the_environment_is_needed(checkpoint: Path) -> None:
    server = Process(checkpoint, environment={"WEFT_API_KEY": "sesame"})
    with pytest.raises(openai.AuthenticationError, match="Bearer"):
        server.client().models.list()
    assert server.client().with_options(api_key="sesame").models.list().data[0].id == "tiny"
    server.process.send(signal.SIGTERM)
    assert server.process.end(30).returncode == 0

