"""The application of a server: its routes, and the document that describes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from weft.core.errors import MissingExtra
from weft.core.version import VERSION
from weft.server import fields
from weft.server.endpoints import Endpoints, HttpLimits, answered
from weft.server.gate import Access, Gate
from weft.server.metrics import Metrics
from weft.server.served import Served
from weft.serving.engine import Engine

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

JSON, EVENTS = "application/json", "text/event-stream"
ANSWERS = Path(__file__).with_name("answers.json")


@final
@dataclass(frozen=True)
class Described:
    """An endpoint, as it is routed and described.

    Attributes:
        work: a method of `Endpoints`.
        body: of its requests; None: they have none.
        answer: name of its object in ``answers.json``; a media type where it is none.
        other: statuses besides 200 that it may have of its own.
        streams: whether its answer may be a stream.
    """

    path: str
    about: str
    work: str
    body: type[fields.Body] | None
    answer: str
    other: tuple[int, ...] = ()
    streams: bool = False

    @property
    def method(self) -> str:
        """The method of HTTP."""
        return "GET" if self.body is None else "POST"


ENDPOINTS = (
    Described("/v1/completions", "Continue texts or rows of token ids.", "continued", fields.CompletionBody,
              "CompletionAnswer", (404, 429), True),
    Described("/v1/chat/completions", "Answer a conversation in the model's own template.", "continued",
              fields.ChatBody, "ChatAnswer", (404, 429), True),
    Described("/v1/responses", "Answer a conversation by one response of several items; nothing is stored.",
              "continued", fields.ResponseBody, "ResponseAnswer", (404, 429), True),
    Described("/v1/embeddings", "The mean hidden vector of each text.", "read", fields.EmbeddingBody,
              "EmbeddingAnswer", (404, 429)),
    Described("/classify", "The classes or values that the model's head predicts.", "read", fields.ClassifyBody,
              "ClassifyAnswer", (404, 429)),
    Described("/tokenize", "The ids of a text.", "tokenize", fields.TokenizeBody, "TokenizeAnswer", (404,)),
    Described("/detokenize", "The text of ids.", "tokenize", fields.DetokenizeBody, "DetokenizeAnswer", (404,)),
    Described("/v1/models", "What is served.", "models", None, "ModelList"),
    Described("/v1/models/{model}", "A model or an adapter that is served.", "model", None, "ServedModel", (404,)),
    Described("/health", "Whether the engine goes on: 503 after two seconds without a step.", "health", None,
              "HealthAnswer", (503,)),
    Described("/ready", "Whether new requests are taken: 503 while the server ends.", "ready", None, "HealthAnswer",
              (503,)),
    Described("/metrics", "Metrics in the format of Prometheus.", "metrics", None, "text/plain"),
    Described("/", "A page that talks to the model.", "page", None, "text/html"),
)
PROBLEMS = {400: "The request cannot be served; the message says why.", 401: "There is no key, or not one of this "
            "server.", 403: "The name of the host or the page that asks is not one that is answered.",
            404: "There is no such model.", 408: "The body has not come in time.", 413: "The body is too large.",
            415: "The body is not said to be JSON.", 429: "The queue is full; see Retry-After.",
            500: "The server has failed.", 503: "The server ends."}


def application(served: Served, engine: Engine | None, *, access: Access | None = None,
                limits: HttpLimits | None = None, ready: Callable[[], bool] = lambda: True,
                note_bodies: bool = False) -> Gate:
    """The application, for any server of ASGI.

    Args:
        served: the model.
        engine: which continues its texts; None: the model is no language model.
        access: who is answered; None: everybody.
        ready: whether new requests are taken.
        note_bodies: whether the log holds the bodies.

    Raises:
        MissingExtra: the packages of a server are not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError as error:
        raise MissingExtra(error.name or "starlette", "serve", "a server") from None

    metrics = Metrics(engine)
    endpoints = Endpoints(served, engine, metrics, limits or HttpLimits(), ready)
    described = document(bool(access and access.keys))

    async def unknown(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "Starlette hands over what was asked for"
        message = {404: "There is no such path.", 405: "The path has no such method."}.get(error.status_code,
                                                                                         error.detail)
        return JSONResponse({"error": {"message": message, "type": "invalid_request_error", "param": None,
                                       "code": None}}, error.status_code, error.headers)

    routes = [Route(each.path, answered(getattr(endpoints, each.work)), methods=[each.method]) for each in ENDPOINTS]
    routes.append(Route("/openapi.json", lambda _: JSONResponse(described)))
    inner = Starlette(routes=routes, exception_handlers={HTTPException: unknown})
    inner.router.redirect_slashes = False
    return Gate(inner, access or Access(), metrics, frozenset(each.path for each in ENDPOINTS), note_bodies)


def document(with_key: bool) -> dict[str, Any]:
    """The OpenAPI document of the endpoints: bodies by their records, answers as ``answers.json`` describes them."""
    from pydantic import TypeAdapter

    components: dict[str, Any] = {"schemas": json.loads(ANSWERS.read_bytes())}
    references, definitions = TypeAdapter.json_schemas(
        [(each.body, "validation", TypeAdapter(each.body)) for each in ENDPOINTS if each.body is not None],
        ref_template="#/components/schemas/{model}")
    components["schemas"].update(definitions.get("$defs", {}))
    named = {key: reference for (key, _), reference in references.items()}
    paths: dict[str, Any] = {}
    for each in ENDPOINTS:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, named, with_key)
    if with_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {"openapi": "3.1.0", "info": {"title": "Weft", "version": VERSION}, "paths": paths,
            "components": components, **({"security": [{"key": []}]} if with_key else {})}


def _operation(endpoint: Described, named: dict[Any, Any], with_key: bool) -> dict[str, Any]:
    """An endpoint as OpenAPI describes it."""
    answer = {"$ref": f"#/components/schemas/{endpoint.answer}"}
    content: dict[str, Any] = {endpoint.answer: {"schema": {"type": "string"}}} if "/" in endpoint.answer else {
        JSON: {"schema": answer}}
    if endpoint.streams:
        content[EVENTS] = {"schema": {"type": "string"}}
    statuses = {*endpoint.other, 403, *({401} if with_key else ()),
                *((400, 408, 413, 415, 500, 503) if endpoint.body is not None else ())}
    health = {503: {JSON: {"schema": answer}}} if endpoint.body is None else {}
    responses = {"200": {"description": "The answer.", "content": content}, **{
        str(status): {"description": PROBLEMS[status],
                      "content": health.get(status, {JSON: {"schema": {"$ref": "#/components/schemas/ErrorAnswer"}}})}
        for status in sorted(statuses)}}
    found: dict[str, Any] = {"summary": endpoint.about, "responses": responses}
    if endpoint.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": named[endpoint.body]}}}
    if "{model}" in endpoint.path:
        found["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    return found
