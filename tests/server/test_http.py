"""The application over HTTP, on an engine that does as it is told."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import weft.api
from server.fake_engine import FakeEngine, failure, served, spells
from server.test_bodies import PLAIN
from weft.checkpoints import Loaded
from weft.core.config import parse_part
from weft.decoding import Row, RowSettings
from weft.server.app import ENDPOINTS, application
from weft.server.endpoints import HttpLimits
from weft.server.gate import Access, Gate
from weft.server.served import Served
from weft.serving.requests import EngineLimits, Request
from weft.tokenizers import ByteTokenizer

LIMITS = EngineLimits(context=99, queue_requests=3)
HTTP = HttpLimits(body=20_000, receive=0.3, send=0.3)


@contextmanager
def serving(says: str = "Yes é", *, pause: float = 0.0, access: Access | None = None,
            ready: Callable[[], bool] = lambda: True) -> Iterator[tuple[TestClient, FakeEngine, Gate]]:
    """A client, the engine and the application."""
    tiny = served(template=PLAIN, limits=LIMITS)
    engine = FakeEngine(tiny.loaded.tokenizer, spells(says), pause=pause, limits=LIMITS)
    gate = application(tiny, engine, limits=HTTP, access=access, ready=ready)
    with engine.running(), TestClient(gate, base_url="http://localhost") as client:
        yield client, engine, gate


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with serving() as (found, _, _):
        yield found


def problem(answer: Any, status: int) -> dict[str, Any]:
    """The error of an answer, in OpenAI's shape."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    found: dict[str, Any] = answer.json()["error"]
    assert "Traceback" not in found["message"]
    own = re.sub("|".join(("/v1/", "/openapi.json", "application/json", "/classify")), "", found["message"])
    assert "/" not in own, "a path of the server"
    return found


def lines(text: str) -> list[Any]:
    """The events of a stream."""
    *events, last = [line.removeprefix("data: ") for line in text.strip().split("\n\n")]
    assert last == "[DONE]"
    return [json.loads(event) for event in events]


def test_whole_and_streamed_answers_agree(client: TestClient) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30}
    whole = client.post("/v1/chat/completions", json=body).json()
    streamed = client.post("/v1/chat/completions", json={**body, "stream": True,
                                                         "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = lines(streamed.text)
    assert "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"]) == "Yes é"
    assert whole["choices"][0]["message"]["content"] == "Yes é"
    assert events[-1]["usage"] == whole["usage"]
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == whole["usage"]["prompt_tokens"] // 2


@pytest.mark.parametrize(("path", "content", "kind", "status", "says"), [
    ("/v1/completions", b"{", "application/json", 400, "cannot be read"),
    ("/v1/completions", b'{"prompt": "\xff"}', "application/json", 400, "UTF-8"),
    ("/v1/completions", b'{"prompt": "a", "temperature": NaN}', "application/json", 400, "NaN"),
    ("/v1/completions", b'{"prompt": "a", "nonsense": 1}', "application/json", 400, "'nonsense' is unknown"),
    ("/v1/completions", b'{"prompt": "a"}', "text/plain", 415, "Content-Type"),
    ("/v1/completions", b'{"prompt": "' + b"a" * 20_000 + b'"}', "application/json", 413, "more than 20,000"),
    ("/v1/completions", b'{"prompt": "a", "model": "gpt"}', "application/json", 404, "not served"),
    ("/v1/chat/completions", b'{"messages": 1}', "application/json", 400, "list"),
    ("/tokenize", b'{"prompt": 1}', "application/json", 400, "string"),
    ("/detokenize", b'{"tokens": [9223372036854775807]}', "application/json", 400, "outside the vocabulary"),
    ("/v1/embeddings", b'{"input": []}', "application/json", 400, "0 rows"),
    ("/v1/embeddings", b'{"input": "a", "dimensions": 3}', "application/json", 400, "own width"),
    ("/classify", b'{"input": "a"}', "application/json", 400, "classes"),
])
def test_what_clients_do_wrong_is_told(client: TestClient, path: str, content: bytes, kind: str, status: int,
                                       says: str) -> None:
    answer = client.post(path, content=content, headers={"content-type": kind})
    assert says in problem(answer, status)["message"]


def test_paths_and_methods_that_are_not_there(client: TestClient) -> None:
    problem(client.get("/v1/nothing"), 404)
    assert client.get("/v1/completions").headers["allow"] == "POST"
    problem(client.get("/v1/completions"), 405)
    problem(client.options("/v1/completions"), 405)
    assert "access-control-allow-origin" not in client.get("/v1/models", headers={"origin": "http://localhost"}).headers


def test_a_body_without_a_declared_length_is_bounded_too(client: TestClient) -> None:
    answer = client.post("/v1/completions", content=iter([b"x" * 5_000] * 5),
                         headers={"content-type": "application/json"})
    problem(answer, 413)


def test_a_full_queue_is_refused_with_a_time_to_wait() -> None:
    with serving(pause=0.01) as (client, engine, _):
        engine.stalled.set()
        answer = client.post("/v1/completions", json={"prompt": "a", "n": 4, "max_tokens": 9})
        assert problem(answer, 429)["type"] == "rate_limit_error"
        assert answer.headers["retry-after"] == "7"
        assert engine.figures().running == 0, "what was queued before the refusal is cancelled"


def test_in_a_crowd_a_request_is_refused_before_its_body_is_read() -> None:
    with serving(pause=0.01) as (client, engine, _):
        engine.stalled.set()
        waiting = [engine.submit(Request(Row((1, 2)), RowSettings(9)), lambda _: None) for _ in range(3)]
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
            answer = client.post(path, content=b"no JSON", headers={"content-type": "application/json"})
            assert problem(answer, 429)["code"] == "overloaded"
            assert answer.headers["retry-after"] == "7" and answer.headers["x-request-id"]
        assert client.get("/health").status_code == 200, "what needs no row is answered"
        assert client.post("/tokenize", json={"prompt": "a"}).status_code == 200
        for each in waiting:
            engine.cancel(each)
        problem(client.post("/v1/completions", content=b"no JSON"), 400)


def test_who_sends_bodies_slowly_keeps_nobody_out() -> None:
    """More of them than rows and places in the queue, whose bodies never come."""
    with serving() as (client, engine, gate):
        async def together() -> list[int]:
            sent: list[int] = []

            async def stalled() -> Any:
                await asyncio.sleep(60)

            async def send(message: Any) -> None:
                sent.append(message.get("status", 0))

            scope = {"type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
                     "query_string": b"", "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
                     "http_version": "1.1", "scheme": "http", "server": ("localhost", 80), "client": ("localhost", 1)}
            slow = [asyncio.ensure_future(gate(dict(scope), stalled, send)) for _ in range(20)]
            await asyncio.sleep(0.05)
            assert sent == [], "they wait, and are not refused"
            for each in slow:
                each.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
            return sent

        asyncio.run(together())
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200
        assert engine.figures().waiting == 0


def test_a_row_that_fails_is_an_error_that_tells_nothing_of_the_server() -> None:
    with serving(pause=0.005) as (client, engine, _):
        engine.broken.append(failure())
        assert "secret" not in problem(client.post("/v1/completions", json={"prompt": "a"}), 500)["message"]
        engine.broken.append(failure())
        assert "secret" not in client.post("/v1/completions", json={"prompt": "a", "stream": True}).text
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 200


def test_health_is_false_within_two_seconds_of_a_stall_and_true_again() -> None:
    with serving() as (client, engine, _):
        assert client.get("/health").status_code == 200
        engine.stalled.set()
        last = time.monotonic() + 2.5
        while client.get("/health").status_code == 200 and time.monotonic() < last:
            time.sleep(0.05)
        assert client.get("/health").json() == {"status": "stalled"}
        engine.stalled.clear()
        time.sleep(0.05)
        assert client.get("/health").status_code == 200


def test_a_server_that_ends_is_not_ready() -> None:
    ending = []
    with serving(ready=lambda: not ending) as (client, engine, _):
        assert client.get("/ready").status_code == 200
        ending.append(True)
        engine.drain(0)
        assert client.get("/ready").json() == {"status": "stopping"}
        assert problem(client.post("/v1/completions", json={"prompt": "a"}), 503)["code"] == "stopping"
        assert problem(client.post("/v1/embeddings", json={"input": "a"}), 503)["code"] == "stopping"
        assert client.get("/health").status_code == 200


def test_keys_are_asked_for_and_hosts_and_pages_of_others_are_refused() -> None:
    with serving(access=Access((b"one", b"two"), frozenset({"localhost", "127.0.0.1"}))) as (client, _, _):
        for given in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic one"}, {"authorization": "one"},
                      {"authorization": "Bearer "}):
            answer = client.get("/v1/models", headers=given)
            assert problem(answer, 401)["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert client.get("/v1/models", headers={"authorization": "Bearer two"}).status_code == 200
        assert client.get("/health").status_code == client.get("/").status_code == 200
        one = {"authorization": "bearer one"}
        assert client.get("/v1/models", headers={**one, "host": "127.0.0.1:99"}).status_code == 200
        for given in ({"host": "evil.example"}, {"host": "localhost.evil.example:80"}, {"host": ""},
                      {"origin": "https://evil.example"}, {"origin": "null"}):
            problem(client.get("/v1/models", headers={**one, **given}), 403)
        assert client.get("/v1/models", headers={**one, "origin": "http://localhost:8000"}).status_code == 200


def test_requests_have_ids_and_the_log_has_no_texts(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "weft.server")
    answer = client.post("/v1/completions", json={"prompt": "a secret"}, headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert client.get("/v1/models", headers={"x-request-id": "a\tb"}).headers["x-request-id"].startswith("req_")
    told = next(record.told for record in caplog.records if record.told["id"] == "mine-1")  # type: ignore[attr-defined]
    assert (told["status"], told["prompt_tokens"], told["path"]) == (200, 9, "/v1/completions")
    assert "secret" not in str([vars(record) for record in caplog.records])


def test_metrics_count_what_was_asked() -> None:
    with serving() as (client, _, _):
        client.post("/v1/completions", json={"prompt": "a"})
        client.get("/v1/nothing/of/many/names")
        told = client.get("/metrics").text
    assert 'weft_http_requests_total{path="/v1/completions",status="200"} 1.0' in told
    assert 'weft_http_requests_total{path="other",status="404"} 1.0' in told
    assert "weft_finished_total 1.0" in told
    assert 'weft_first_token_seconds_count{path="/v1/completions"} 1.0' in told


def test_the_page_asks_nobody_else(client: TestClient) -> None:
    page = client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    assert "http://" not in page.text and "https://" not in page.text and "//" not in page.text.replace("// A", "")


def test_every_endpoint_is_described(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert set(document["paths"]) == {each.path for each in ENDPOINTS}
    schema = document["components"]["schemas"]["CompletionBody"]
    assert schema["additionalProperties"] is False and schema["required"] == ["prompt"]


def body(**fields: Any) -> bytes:
    return json.dumps({"prompt": "a", "max_tokens": 90, "ignore_eos": True, **fields}).encode()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_row(stream: bool) -> None:
    with serving(pause=0.01) as (client, engine, gate):
        sent: list[Any] = []
        assert client.portal is not None
        client.portal.call(_ask_and_leave, gate, body(stream=stream), sent)
        last = time.monotonic() + 2
        while engine.figures().running and time.monotonic() < last:
            time.sleep(0.005)
        assert engine.figures().cancelled == 1 and engine.figures().finished == 0
        assert any(b"data: " in message.get("body", b"") for message in sent) == stream


async def _ask_and_leave(gate: Gate, content: bytes, sent: list[Any]) -> None:
    """Send a request, wait until it runs, and leave."""
    first = asyncio.Event()
    waiting = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.sleep(0.1)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        first.set()

    await gate(scope(content), receive, send)


def scope(content: bytes, **more: Any) -> dict[str, Any]:
    """A request as a server of ASGI hands it over."""
    return {"type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions",
            "query_string": b"", "http_version": "1.1", "scheme": "http", "root_path": "", "client": None,
            "server": ("localhost", 80), "headers": [(b"host", b"localhost"), (b"content-type", b"application/json"),
                                                     (b"content-length", str(len(content)).encode())], **more}


def test_a_client_that_takes_nothing_is_left_after_a_while() -> None:
    with serving(pause=0.005) as (client, engine, gate):
        ended: list[bool] = []
        assert client.portal is not None
        client.portal.call(_ask_and_take_nothing, gate, body(stream=True), ended)
        assert ended == [True]
        assert engine.figures().running == 0


async def _ask_and_take_nothing(gate: Gate, content: bytes, ended: list[bool]) -> None:
    waiting = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.sleep(60)

    abort = {"extensions": {"weft.abort": lambda: ended.append(True)}}
    await asyncio.wait_for(gate(scope(content, **abort), receive, send), 10)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    with serving() as (client, _, gate):
        assert client.portal is not None
        status: list[int] = []
        client.portal.call(_send_half, gate, status)
        assert status == [408]


async def _send_half(gate: Gate, status: list[int]) -> None:
    waiting = [{"type": "http.request", "body": b'{"prompt"', "more_body": True}]

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.sleep(60)
        return waiting.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])

    await asyncio.wait_for(gate(scope(b"x" * 90), receive, send), 10)


def test_a_classifier_has_classes_and_vectors_and_continues_nothing() -> None:
    config = {"kind": "encoder", "vocab_size": 257, "d_model": 8, "position": "sinusoidal",
              "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "mask": "bidirectional"},
                                                    {"kind": "mlp", "d_ff": 16}]}],
              "head": {"kind": "pooled", "labels": ["good", "bad"]}}
    built = parse_part(("encoder",), config).build(None).eval()
    loaded = Loaded(built, ByteTokenizer(), built.config, None, {}, Path("judge"))
    expected = weft.api.classify(loaded, ["fine", ("a", "b")])
    with TestClient(application(Served("judge", loaded), None), base_url="http://localhost") as client:
        first = client.post("/classify", json={"input": "fine"}).json()["data"][0]
        pair = client.post("/classify", json={"input": [["a", "b"]]}).json()["data"][0]
        vectors = client.post("/v1/embeddings", json={"input": ["fine", "a"]}).json()
        for path, body in (("/v1/completions", {"prompt": "a"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
            assert "predicts no next token" in problem(client.post(path, json=body), 400)["message"]
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200
        assert client.get("/v1/models").json()["data"][0]["kind"] == "encoder"
    assert first["labels"] == ["good", "bad"] and first["best"] == list(expected[0].best)
    assert first["scores"][0] == pytest.approx(expected[0].scores[0])
    assert pair["scores"][0] == pytest.approx(expected[1].scores[0])
    assert [len(each["embedding"]) for each in vectors["data"]] == [8, 8]
