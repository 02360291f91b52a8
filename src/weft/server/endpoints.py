"""The answers to requests over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from weft.core.errors import InputError
from weft.core.strict_json import dumps
from weft.server.bodies import error_object, read_body
from weft.server.gate import LOG, Message, Receive, Send
from weft.server.mailbox import Exchange, Mailbox
from weft.server.metrics import Metrics
from weft.server.read_bodies import classified, detokenized, embedded, tokenized
from weft.server.replies import ReadBody, require_answer
from weft.server.served import Served
from weft.serving.engine import Engine
from weft.serving.requests import OverloadedError, StoppedError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")
STALLED = 2.0
"""Seconds without a step after which an engine that has something to do is said to be stalled."""


@final
@dataclass(frozen=True)
class HttpLimits:
    """The limits of what a client may send and how slowly it may read.

    Attributes:
        body: bytes of a body.
        receive: seconds within which a body must have come.
        send: seconds within which a client must take what it is sent.
        reading: number of requests that may wait for embeddings and classes.
    """

    body: int = 4 << 20
    receive: float = 30.0
    send: float = 30.0
    reading: int = 64


class LeftError(Exception):
    """The client has left, and nobody waits for the answer."""


class BodyError(InputError):
    """A body is too large, came too late or is of another type than JSON.

    Args:
        status: of HTTP.
    """

    def __init__(self, status: int, what: str, remedy: str) -> None:
        self.status = status
        super().__init__(what, where="body", remedy=remedy)


@final
class Endpoints:
    """The endpoints of a server.

    Args:
        engine: None: the model is no language model.
        ready: whether new requests are taken.
    """

    def __init__(self, served: Served, engine: Engine | None, metrics: Metrics, limits: HttpLimits,
                 ready: Callable[[], bool]) -> None:
        self._served, self._engine, self._metrics, self.limits = served, engine, metrics, limits
        self._ready = ready
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="weft-reading")
        self._models = ThreadPoolExecutor(1, thread_name_prefix="weft-vectors")
        self._reading = self._entering = 0

    @cached_property
    def _mailbox(self) -> Mailbox:
        return Mailbox(asyncio.get_running_loop())

    async def continued(self, request: Request) -> Response | _Streamed:
        """Completions and answers of an assistant, whole or streamed."""
        if self._engine is not None:
            self._engine.require_room(self._entering)  # in a crowd nothing is read of who is refused
        content = await self._content(request)
        self._entering += 1  # who sends a body slowly keeps nobody out
        try:
            asked = await self._aside(read_body, self._served, request.url.path, content)
        finally:
            self._entering -= 1
        if self._engine is None:
            self._served.require_language_model()
            raise StoppedError("there is no engine.", where="server")
        exchange = Exchange(self._engine, self._mailbox, asked.requests, request.receive)
        return _Streamed(self, request, asked, exchange) if asked.stream else await self._whole(
            request, asked, exchange)

    async def read(self, request: Request) -> Response:
        """Embeddings and classes, computed one after the other in a thread of their own."""
        content = await self._content(request)
        if not self._ready():
            raise StoppedError("the server takes no more requests.", where="server")
        if self._reading >= self.limits.reading:
            raise OverloadedError(f"{self._reading} requests wait.", 1.0)
        self._reading += 1
        try:
            work = embedded if request.url.path == "/v1/embeddings" else classified
            return _json(await asyncio.get_running_loop().run_in_executor(self._models, work, self._served, content))
        finally:
            self._reading -= 1

    async def tokenize(self, request: Request) -> Response:
        """The ids of a text, or the text of ids."""
        work = tokenized if request.url.path == "/tokenize" else detokenized
        return _json(await self._aside(work, self._served, await self._content(request)))

    async def models(self, _request: Request) -> Response:
        """The list of the models that are served."""
        return _json({"object": "list", "data": [self._model(name) for name in
                                                 (self._served.name, *self._served.adapters)]})

    async def model(self, request: Request) -> Response:
        """One of the models that are served."""
        name = str(request.path_params["model"])
        self._served.adapter(name)
        return _json(self._model(name))

    async def health(self, _request: Request) -> Response:
        """Whether the engine goes on."""
        figures = None if self._engine is None else self._engine.figures()
        stalled = figures is not None and time.monotonic() - figures.alive_at > STALLED
        return _json({"status": "stalled" if stalled else "ok"}, 503 if stalled else 200)

    async def ready(self, _request: Request) -> Response:
        """Whether new requests are taken."""
        return _json({"status": "ok" if self._ready() else "stopping"}, 200 if self._ready() else 503)

    async def metrics(self, _request: Request) -> Response:
        """The metrics."""
        text, kind = self._metrics.text()
        return _response(text, media_type=kind)

    async def page(self, _request: Request) -> Response:
        """The page that talks to the model."""
        return _response(PAGE.read_bytes(), media_type="text/html", headers=POLICY)

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._served.created, "owned_by": "weft",
                "context_length": self._served.context if self._engine is not None else
                self._served.loaded.model.limit(), "kind": self._served.loaded.config.kind}

    async def _whole(self, request: Request, asked: ReadBody, exchange: Exchange) -> Response:
        """A whole answer, unless the client leaves."""
        with exchange:
            async for _ in self.told(request, asked, exchange):
                pass
        return _json(asked.answer.whole())

    async def told(self, request: Request, asked: ReadBody,
                   exchange: Exchange) -> AsyncIterator[list[dict[str, Any]]]:
        """The chunks of an answer, together those that came together. Raises `LeftError`: the client has left; or the
        error of a request that failed."""
        notes, first = request.state.notes, True
        while not asked.answer.done:
            events = await exchange.events()
            if not events:
                self._metrics.left.labels(request.url.path).inc()
                notes["left"] = True
                raise LeftError
            chunks = [chunk for place, event in events for chunk in asked.answer.tell(place, require_answer(event))]
            if first and any(row.tokens for row in asked.answer.rows):
                first = False
                seconds = time.monotonic() - request.state.begun
                self._metrics.first.labels(request.url.path).observe(seconds)
                notes["first_token"] = round(seconds, 4)
            yield chunks
        usage = asked.answer.usage
        notes |= {"prompt_tokens": usage["prompt_tokens"], "new_tokens": usage["completion_tokens"],
                  "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]}

    async def _aside(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of work that would hold up the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)

    async def _content(self, request: Request) -> bytes:
        """The body of a request. Raises `BodyError`."""
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise BodyError(415, "the body is not said to be JSON.", "Send Content-Type: application/json.")
        most = self.limits.body
        declared = request.headers.get("content-length", "0")
        too_large = BodyError(413, f"more than {most:,} bytes.", "Send less, or start the server with --max-body.")
        if declared.isdecimal() and (len(declared) > 18 or int(declared) > most):
            raise too_large
        content = bytearray()
        try:
            async with asyncio.timeout(self.limits.receive):
                async for piece in request.stream():
                    content += piece
                    if len(content) > most:
                        raise too_large
        except TimeoutError:
            raise BodyError(408, f"it has not come within {self.limits.receive:g} seconds.", "Send it anew.") from None
        if request.state.notes["note_bodies"]:
            request.state.notes["body"] = content.decode(errors="replace")
        return bytes(content)


PAGE = Path(__file__).with_name("page.html")
POLICY = {"content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
          "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
          "referrer-policy": "no-referrer", "cache-control": "no-cache"}


@final
class _Streamed:
    """A streamed answer, as an application of ASGI. Its first event is awaited before anything is sent, so that what is
    refused has its own status."""

    def __init__(self, endpoints: Endpoints, request: Request, asked: ReadBody, exchange: Exchange) -> None:
        self._endpoints, self._request, self._asked, self._exchange = endpoints, request, asked, exchange
        self._begun = False

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            with self._exchange:
                await self._events(scope, send)
        except LeftError:
            return
        except Exception as error:
            refused = refusal(self._request, error)
            if not self._begun:
                await refused(scope, receive, send)
                return
            told = self._asked.answer.failed(error_object(error)[1])
            await self._send(scope, send, {**_body([told]), "more_body": False})

    async def _events(self, scope: Message, send: Send) -> None:
        async for chunks in self._endpoints.told(self._request, self._asked, self._exchange):
            if not self._begun:
                self._begun = True
                await self._send(scope, send, {"type": "http.response.start", "status": 200, "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
                    (b"x-accel-buffering", b"no")]})
            if chunks:
                await self._send(scope, send, _body(chunks))
        await self._send(scope, send, {"type": "http.response.body", "body": self._asked.answer.end.encode()})

    async def _send(self, scope: Message, send: Send, message: Message) -> None:
        """Send a message within the time that a client has to take it, or end the connection."""
        try:
            async with asyncio.timeout(self._endpoints.limits.send):
                await send(message)
        except TimeoutError:
            self._request.state.notes["slow"] = True
            abort: Callable[[], None] | None = scope.get("extensions", {}).get("weft.abort")
            if abort is not None:
                abort()
                await asyncio.sleep(0)  # in which the loop learns of it
            raise LeftError from None


def _body(chunks: list[dict[str, Any]]) -> Message:
    """Chunks as events of a stream, which have a name where chunks have a type."""
    text = "".join((f"event: {chunk['type']}\n" if "type" in chunk else "") + f"data: {_text(chunk)}\n\n"
                   for chunk in chunks)
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


WRITTEN = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _text(data: Mapping[str, Any]) -> str:
    try:
        return WRITTEN.encode(data)
    except ValueError:  # a log-probability of a token that cannot occur
        return dumps(data)


def _json(data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return _response(_text(data), status_code=status, headers=headers, media_type="application/json")


def _response(content: bytes | str, **options: Any) -> Response:
    from starlette.responses import Response

    return Response(content, **options)


def answered(work: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
    """An endpoint whose errors are answers."""

    async def endpoint(request: Request) -> Any:
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect

        try:
            return await work(request)
        except HTTPException:
            raise
        except (LeftError, ClientDisconnect):
            return _json({}, 499)
        except Exception as error:
            return refusal(request, error)

    return endpoint


def refusal(request: Request, error: Exception) -> Response:
    """The answer that tells an error; what is no mistake of the client is noted in the log."""
    status, told = error_object(error)
    status = error.status if isinstance(error, BodyError) else status
    if status == 500:
        LOG.error("request failed", exc_info=error, extra={"told": {"id": request.state.id}})
    headers = {"retry-after": error.wait} if isinstance(error, OverloadedError) else None
    return _json(told, status, headers)
