"""A server that runs until a signal ends it: its socket, its connections, its log and its keys."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, final

from weft.core.errors import InputError, MissingExtra
from weft.disk.documents import Unreadable, read_document
from weft.server.gate import LOCAL, Access, Application
from weft.serving.thread import EngineThread

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

KEY_VARIABLE = "WEFT_API_KEY"
HEADERS_SECONDS, MOST_HEADERS, IDLE_SECONDS = 10.0, 64 << 10, 30
"""Seconds within which the headers of a request must have come, bytes of them, and seconds that a connection may stay
without a request."""
LEFT_SECONDS = 5
"""Seconds for what is still to be sent once the engine has ended."""


@final
@dataclass(frozen=True)
class Listening:
    """Where a server listens.

    Attributes:
        host: a name or an address.
        port: 0: any that is free.
        certificate: file of a TLS certificate; None: no TLS.
        key: file of its key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None

    @property
    def local(self) -> bool:
        """Whether this machine alone reaches it."""
        return self.host in LOCAL

    def require_tls(self) -> None:
        """Refuse files that are no certificate and key. Raises `InputError`."""
        if (self.certificate is None) != (self.key is None):
            raise InputError("a certificate and its key belong together.", where="--tls-cert, --tls-key",
                             remedy="Give both.")
        if self.certificate is None or self.key is None:
            return
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key, "")
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"no certificate with its key can be read ({error.strerror or error}).",
                             where="--tls-cert, --tls-key", remedy="Give files in the format PEM, without a "
                             "password.") from None

    def open(self) -> socket.socket:
        """A socket that has the address, and does not listen yet. Raises `InputError`: the address is taken or not this
        machine's."""
        try:
            family, _, _, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
            found = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise InputError(f"no address of that name ({error.strerror}).", where="--host",
                             remedy="Give one of this machine.") from None
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
        except OSError as error:
            found.close()
            raise InputError(f"{self.host}:{self.port} cannot be listened to ({error.strerror}).",
                             where="--host, --port", remedy="Give another port; 0 takes one that is free.") from None
        return found


def access_of(place: Listening, key_file: Path | None) -> Access:
    """Who is answered at a place. Raises `InputError`: the file of keys cannot be read or has none, or there is no key
    and others than this machine reach the place."""
    keys = _keys(key_file)
    if not keys and not place.local:
        raise InputError(f"anybody who reaches {place.host} could use the model.", where="--host",
                         remedy=f"Give --api-key-file FILE with a key on each line, or set {KEY_VARIABLE}; or listen "
                                "to 127.0.0.1.")
    return Access(keys, LOCAL if place.local else frozenset())


def _keys(file: Path | None) -> tuple[bytes, ...]:
    variable = os.environ.get(KEY_VARIABLE, "").strip()
    if file is None:
        return (variable.encode(),) if variable else ()
    try:
        lines = read_document(file, most=1 << 20).split(b"\n")
    except (OSError, Unreadable) as error:
        raise InputError(f"the file cannot be read ({getattr(error, 'strerror', None) or error}).", where=str(file),
                         remedy="Give a file with a key on each line.") from None
    found = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith(b"#"))
    if not found:
        raise InputError("the file has no key.", where=str(file), remedy="Write one on each line.")
    return (*found, *((variable.encode(),) if variable else ()))


def run(application: Application, listening: socket.socket, place: Listening, engine: EngineThread | None, *,
        drain: float, draining: Callable[[], None], started: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then let running answers end, for ``drain`` seconds at most. A second signal ends
    the process at once.

    Args:
        listening: a bound socket.
        engine: None: there is none to wait for.
        draining: is called when the first signal has come.
        started: is called when connections are accepted.

    Raises:
        MissingExtra: the packages of a server are not installed.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtra(error.name or "uvicorn", "serve", "a server") from None

    class Server(uvicorn.Server):
        """A server that lets answers end before it closes connections."""

        loop: asyncio.AbstractEventLoop | None = None
        ending: Future[None] | None = None
        told = False

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Accept connections."""
            await super().startup(sockets)
            self.loop = asyncio.get_running_loop()
            started()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Begin to end; at the second signal, end at once."""
            if self.told or self.loop is None:
                os._exit(128 + sig)
            self.told = True
            draining()
            self.ending = asyncio.run_coroutine_threadsafe(self._end(), self.loop)

        async def _end(self) -> None:
            if engine is not None:
                await asyncio.to_thread(engine.drain, drain)
                await asyncio.to_thread(engine.stop)
            self.should_exit = True

    config = uvicorn.Config(application, http=_connection(), ws="none", lifespan="off", log_config=LOGGING,
                            access_log=False, server_header=False, timeout_keep_alive=IDLE_SECONDS,
                            timeout_graceful_shutdown=LEFT_SECONDS, ssl_certfile=place.certificate,
                            ssl_keyfile=place.key, backlog=1024)
    Server(config).run([listening])


LOGGING: dict[str, Any] = {
    "version": 1, "disable_existing_loggers": False,
    "formatters": {"json": {"()": "weft.server.gate.JsonLines"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
    "loggers": {"weft.server": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
                "uvicorn": {"handlers": ["stderr"], "level": "ERROR", "propagate": False}}}


def _connection() -> type[HttpToolsProtocol]:
    """The class of connections, of which none stays that does not go on."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Connection(HttpToolsProtocol):
        """A connection that ends where headers do not come in time, are too long, or an answer is not taken."""

        late: asyncio.TimerHandle | None = None
        heading, headed = True, 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """A client has come."""
            super().connection_made(transport)
            self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            """The client has gone."""
            self._have_headers()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            """Bytes have come."""
            super().data_received(data)
            self.headed = self.headed + len(data) if self.heading else 0
            if self.headed > MOST_HEADERS and not self.transport.is_closing():
                self.send_400_response("The headers are too long.")

        def on_message_begin(self) -> None:
            """A request begins."""
            super().on_message_begin()
            self._await_headers()
            extensions: dict[str, Any] = {"weft.abort": self.transport.abort}
            self.scope["extensions"] = extensions

        def on_headers_complete(self) -> None:
            """Its headers have come."""
            self._have_headers()
            super().on_headers_complete()

        def timeout_keep_alive_handler(self) -> None:
            """The client has sent nothing more: close, and end the connection where it does not take its answer."""
            super().timeout_keep_alive_handler()
            self.loop.call_later(IDLE_SECONDS, self.transport.abort)

        def _await_headers(self) -> None:
            self._have_headers()
            self.heading, self.headed = True, 0
            self.late = self.loop.call_later(HEADERS_SECONDS, self.transport.abort)

        def _have_headers(self) -> None:
            self.heading = False
            if self.late is not None:
                self.late.cancel()
                self.late = None

    return Connection
