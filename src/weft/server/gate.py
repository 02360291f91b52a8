"""The gate before every request: whom it may come from, with which key, and what is noted of it."""

from __future__ import annotations

import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, TypeAlias, final
from urllib.parse import urlsplit

from weft.server.metrics import Metrics

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

OPEN = frozenset({"/", "/health", "/ready"})
"""Paths that need no key: they tell nothing of the model."""
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""An id that a client may give to its request."""
LOG = logging.getLogger("weft.server")


@final
@dataclass(frozen=True)
class Access:
    """Who is answered.

    Attributes:
        keys: of which each request must have one; empty: none is needed.
        hosts: names under which the server may be asked; empty: any. A page of a stranger, whose name he lets lead to
            this machine, would otherwise be answered like a local client.
    """

    keys: tuple[bytes, ...] = ()
    hosts: frozenset[str] = frozenset()

    def refused(self, path: str, headers: Sequence[tuple[bytes, bytes]]) -> tuple[int, str, str] | None:
        """Status, code and message for a request that is not answered; None: it is."""
        given = {name: value for name, value in headers if name in (b"host", b"origin", b"authorization")}
        host, origin = _name(given.get(b"host", b"")), given.get(b"origin")
        if self.hosts and host not in self.hosts:
            return 403, "host_not_allowed", "This server is not asked under that name."
        if origin is not None and _name(urlsplit(origin.decode("latin-1")).netloc.encode("latin-1")) != host:
            return 403, "origin_not_allowed", "Pages of other hosts are not answered."
        if self.keys and path not in OPEN and not self._knows(given.get(b"authorization", b"")):
            return 401, "invalid_api_key", "Send a key of this server as Authorization: Bearer KEY."
        return None

    def _knows(self, given: bytes) -> bool:
        """Whether a key is known, in a time that tells nothing of the keys."""
        kind, _, key = given.partition(b" ")
        found = [hmac.compare_digest(key.strip(), each) for each in self.keys]
        return kind.lower() == b"bearer" and any(found)


@final
class Gate:
    """Refuses requests, gives every one an id, and notes how it was answered.

    Args:
        application: answers what is let through.
        paths: those that are counted by their name.
        note_bodies: whether bodies are noted, which hold what users write.
    """

    def __init__(self, application: Application, access: Access, metrics: Metrics, paths: frozenset[str],
                 note_bodies: bool = False) -> None:
        self._application, self._access, self._metrics = application, access, metrics
        self._paths, self._note_bodies = paths, note_bodies

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        begun, path, status = time.monotonic(), str(scope["path"]), 0
        given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
        identity = given if NAME.fullmatch(given) else f"req_{token_hex(8)}"
        notes: dict[str, Any] = {"note_bodies": self._note_bodies}
        scope["state"] = {**scope.get("state", {}), "id": identity, "notes": notes, "begun": begun}

        async def marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", identity.encode()),
                                      (b"x-content-type-options", b"nosniff")]
            await send(message)

        try:
            refused = self._access.refused(path, scope["headers"])
            if refused is None:
                await self._application(scope, receive, marked)
            else:
                await _refuse(marked, *refused)
        finally:
            name = path if path in self._paths else "other"
            seconds = time.monotonic() - begun
            self._metrics.answered.labels(name, str(status)).inc()
            self._metrics.seconds.labels(name).observe(seconds)
            del notes["note_bodies"]
            if path not in OPEN:
                LOG.info("request", extra={"told": {"id": identity, "method": scope["method"], "path": path[:200],
                                                    "status": status, "seconds": round(seconds, 4), **notes}})


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    """Send an error."""
    told = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    body = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _name(host: bytes) -> str:
    """The name of a host without its port."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") <= 1 else text


@final
class JsonLines(logging.Formatter):
    """Lines of a log as JSON: time, level, what happened, and what is told of it."""

    def format(self, record: logging.LogRecord) -> str:
        """A line."""
        told = {"time": round(record.created, 3), "level": record.levelname.lower(), "event": record.getMessage(),
                **getattr(record, "told", {})}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)
