"""Bodies of requests read without HTTP: from bytes or plain data to what an engine is asked, and the errors of both.

    asked = read_body(served, "/v1/completions", {"prompt": "Once", "max_tokens": 8})
    tickets = [engine.submit(request, tell(place)) for place, request in enumerate(asked.requests)]
    asked.answer.tell(place, event)       for each event, with the place of its request
    asked.answer.whole()                  once asked.answer.done
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from weft.core.errors import InputError, UserError, nearest, shortened
from weft.disk.documents import Unreadable, parse_json
from weft.server.chat_bodies import read_chat
from weft.server.completion_bodies import read_completion
from weft.server.fields import REFUSED, Body, ChatBody, CompletionBody, ResponseBody
from weft.server.replies import ReadBody
from weft.server.response_bodies import read_response
from weft.server.served import Served, TooLongError, UnknownModelError
from weft.serving.requests import OverloadedError, StoppedError

B = TypeVar("B", bound=Body)
MOST_REASONS = 3
"""Problems of a body that one message tells."""


def parse_body(record: type[B], content: bytes | Mapping[str, Any]) -> B:
    """A body as its record.

    Args:
        content: JSON, or the data of it.

    Raises:
        InputError: it is no JSON in UTF-8, or a field is unknown, missing, refused or of the wrong type; ``where`` is
            the field.
    """
    data = content if isinstance(content, Mapping) else _plain(content)
    try:
        return record.model_validate(data)
    except ValidationError as error:
        _refuse(error, record)


def read_body(served: Served, path: str, content: bytes | Mapping[str, Any]) -> ReadBody:
    """The requests that a body of an endpoint makes to the engine, and the answer that their events will make; the
    endpoints are those of `READERS`. Raises `InputError`: see `parse_body`; or the model cannot take it."""
    reader = READERS.get(path)
    if reader is None:
        raise InputError(f"{path!r} is no endpoint that continues a text.", where="url",
                         remedy=f"Give one of {', '.join(READERS)}.")
    return reader(served, content)


READERS: Mapping[str, Callable[[Served, bytes | Mapping[str, Any]], ReadBody]] = MappingProxyType({
    "/v1/completions": lambda served, content: read_completion(served, parse_body(CompletionBody, content)),
    "/v1/chat/completions": lambda served, content: read_chat(served, parse_body(ChatBody, content)),
    "/v1/responses": lambda served, content: read_response(served, parse_body(ResponseBody, content)),
})
"""The endpoints that continue texts."""


def error_object(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status of HTTP and the object by which an error is told. Of what is no error of Weft's nothing is told but
    that it happened."""
    status, kind, code = next((told for each, told in ERRORS if isinstance(error, each)), (500, "server_error", None))
    if isinstance(error, UserError | OverloadedError | StoppedError):
        message = " ".join(each for each in (f"{error.where}: {error.what}" if error.where else error.what,
                                             error.remedy) if each)
    else:
        message = "The server could not answer this request; its log says why."
    where = error.where if isinstance(error, UserError) else None
    return status, {"error": {"message": message, "type": kind, "param": where, "code": code}}


ERRORS: tuple[tuple[type[Exception], tuple[int, str, str | None]], ...] = (
    (UnknownModelError, (404, "invalid_request_error", "model_not_found")),
    (TooLongError, (400, "invalid_request_error", "context_length_exceeded")),
    (OverloadedError, (429, "rate_limit_error", "overloaded")), (StoppedError, (503, "server_error", "stopping")),
    (UserError, (400, "invalid_request_error", None)))
"""Status, type and code of errors; of the kinds that an error has, the first counts."""


def _plain(content: bytes) -> Any:
    """The data of a JSON document in UTF-8, in which no name is given twice and every number is finite."""
    try:
        data = parse_json(content.decode(), once=True)
        _require_plain(data)
    except UnicodeDecodeError as error:
        raise InputError(f"the body is not UTF-8 (byte {error.start}).", where="body",
                         remedy="Send JSON in UTF-8.") from None
    except Unreadable as error:
        raise InputError(f"the body cannot be read: {error}.", where="body", remedy="Send JSON.") from None
    return data


def _require_plain(data: Any) -> None:
    """Refuse numbers that JSON does not have, and halves of characters, which UTF-8 does not have. `parse_json` has
    bounded the depth. Raises `Unreadable`."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise Unreadable("it has NaN or Infinity, which are no numbers of JSON, or a number beyond all bounds")
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise Unreadable("it has half of a surrogate pair, which is no character") from None


def _refuse(error: ValidationError, record: type[Body]) -> NoReturn:
    """Refuse a body by its first wrong field. Raises `InputError`."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    problems.sort(key=lambda each: each["loc"][-1:] != ("type",))  # what a thing is, before what it lacks
    where = _place(problems[0]["loc"], record)
    if problems[0]["type"] == "extra_forbidden":
        name = str(problems[0]["loc"][-1])
        inside = len(problems[0]["loc"]) > 1
        reason = None if inside else REFUSED.get(name)
        remedy = reason or ("Leave it out." if inside else nearest(name, record.model_fields))
        raise InputError(f"the field {shortened(name, 100)!r} is {'not supported' if reason else 'unknown'}.",
                         where=shortened(where, 200), remedy=remedy)
    field = where.split(".")[0].split("[")[0]
    same = list(dict.fromkeys(each["msg"] for each in problems if _place(each["loc"], record).split(".")[0]
                              .split("[")[0] == field))
    told = "; or ".join(message[:1].lower() + message[1:] for message in same[:MOST_REASONS])
    raise InputError(f"{told}.", where=shortened(where, 200), remedy="See /openapi.json for what it may be.")


def _place(location: tuple[int | str, ...], record: type[Body]) -> str:
    """The path of a field, without the names that pydantic gives to the members of a union."""
    found = "" if location else "body"
    for step in location:
        if isinstance(step, int):
            found += f"[{step}]"
        elif not any(mark in step for mark in "[(") and not (found and step in UNION_MEMBERS):
            found += f".{step}" if found else step
    return found


UNION_MEMBERS = frozenset({"str", "int", "constrained-str", "constrained-int", "text", "json_object", "json_schema"})
"""Names of members of unions, as pydantic writes them into the path of a problem."""
