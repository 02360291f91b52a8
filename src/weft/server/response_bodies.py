"""Bodies of ``/v1/responses`` as conversations, and the events of their answers as OpenAI names and orders them."""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex
from typing import Any, final

from weft.core.errors import InputError
from weft.decoding import NewToken
from weft.server.chat_bodies import Message, asked_of
from weft.server.dialect import Called, Kind
from weft.server.fields import ChatBody, InputItem, NamedSchema, ResponseBody, Sampled, TextContent
from weft.server.replies import Json, ReadBody, Reply
from weft.server.served import Served
from weft.serving.requests import PromptRead, Request

NEEDED = {"message": ("role", "content"), "function_call": ("call_id", "name", "arguments"),
          "function_call_output": ("call_id", "output"), "reasoning": ()}
POSSIBLE = ("type", "id", "status")
PLACES = {"messages": "input", "response_format": "text.format", "json_schema": "text.format",
          "max_tokens": "max_output_tokens", "reasoning_effort": "reasoning.effort"}
"""Fields of this body by those of the chat's, which errors name."""
KINDS: dict[Kind, tuple[str, str]] = {"text": ("msg", "output_text"), "thought": ("rs", "reasoning_text")}
"""The beginning of an item's id, and the type of its content."""


def read_response(served: Served, body: ResponseBody) -> ReadBody:
    """The request of a body, and the answer that it makes. Raises `InputError`: see `weft.server.chat_bodies`."""
    try:
        requests, (parting,) = asked_of(served, _as_chat(body))
    except InputError as error:
        name, dot, rest = (error.where or "").partition(".")
        error.where = PLACES.get(name.split("[")[0], name) + dot + rest if error.where else None
        raise
    told = bool(body.include)
    return ReadBody(requests, Response(requests, Message(served, parting, told), body, body.model or served.name),
                    bool(body.stream))


def _as_chat(body: ResponseBody) -> ChatBody:
    """The conversation that a body asks to be answered. Raises `InputError`: an item lacks a field or has another's."""
    if body.top_logprobs is not None and not body.include:
        raise InputError("needs include.", where="top_logprobs", remedy='Include "message.output_text.logprobs".')
    same = {name: getattr(body, name) for name in (*Sampled.model_fields, "chat_template_kwargs", "parallel_tool_calls")
            if name not in ("n", "store")}
    messages = [{"role": "system", "content": body.instructions}] if body.instructions is not None else []
    messages += [{"role": "user", "content": body.input}] if isinstance(body.input, str) else _messages(body.input)
    form, choice = (body.text or {}).get("format"), body.tool_choice
    schema = form.model_dump(by_alias=True, exclude={"type"}) if isinstance(form, NamedSchema) else None
    return ChatBody.model_validate({
        **same, "messages": messages, "max_completion_tokens": body.max_output_tokens,
        "logprobs": bool(body.include), "top_logprobs": body.top_logprobs,
        "response_format": {"type": "json_schema", "json_schema": schema} if schema is not None else form,
        "tools": None if body.tools is None else [_tool(tool) for tool in body.tools],
        "tool_choice": choice if choice is None or isinstance(choice, str) else _tool(choice),
        "reasoning_effort": (body.reasoning or {}).get("effort")})


def _tool(tool: Any) -> Json:
    return {"type": "function", "function": tool.model_dump(exclude_unset=True, exclude={"type"})}


def _messages(items: Sequence[InputItem]) -> list[Json]:
    """The messages of a conversation's items: thoughts, text and calls that follow each other are one of the
    assistant's. Raises `InputError`."""
    found: list[Json] = []
    for place, item in enumerate(items):
        _require_whole(item, f"input[{place}]")
        own = found[-1] if found and found[-1]["role"] == "assistant" else None
        if item.type == "function_call_output":
            found.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
            continue
        if item.type == "message" and (item.role != "assistant" or own is None or "content" in own
                                       or "tool_calls" in own):
            found.append({"role": item.role, "content": _text(item.content)})
            continue
        if own is None or (item.type == "reasoning" and own.keys() - {"role"}):
            own = {"role": "assistant"}
            found.append(own)
        if item.type == "function_call":
            own.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": {
                "name": item.name, "arguments": item.arguments}})
        else:
            own["content" if item.type == "message" else "reasoning_content"] = _text(item.content or item.summary)
    return found


def _require_whole(item: InputItem, where: str) -> None:
    needed = NEEDED[item.type]
    possible = (*needed, *POSSIBLE, *(("content", "summary") if item.type == "reasoning" else ()))
    for name in type(item).model_fields:
        given = getattr(item, name) is not None
        if given != (name in needed) and (name in needed or name not in possible):
            raise InputError(f"an item of type {item.type} {'has none' if given else 'needs one'}.",
                             where=f"{where}.{name}", remedy="Leave it out." if given else "Give it.")


def _text(content: str | Sequence[TextContent] | None) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content or ())


@final
class Response(Reply):
    """The answer to a body of ``/v1/responses``: items of thoughts, text and calls, in the order in which they come.

    Args:
        message: the answer's text as it comes.
        body: what was asked.
    """

    end, chunk_object, whole_object = "", "response", "response"

    def __init__(self, requests: Sequence[Request], message: Message, body: ResponseBody, name: str) -> None:
        super().__init__("resp", requests, [0], name, False)
        self._message, self._body, self._status = message, body, "in_progress"
        self._items, self._told = list[Json](), 0
        self._kind: Kind | None = None
        self._text, self._log_probs, self._waiting = "", list[Json](), list[Json]()

    def take(self, place: int, event: PromptRead | NewToken) -> list[Json]:
        """See `Reply.take`; its chunks are events of their own."""
        if isinstance(event, PromptRead):
            return [self._event(f"response.{name}", response=self.whole()) for name in ("created", "in_progress")]
        pieces, log_prob = self._message.pieces(event), self._message.told(event)
        self._waiting += [log_prob] if log_prob is not None and self._message.parting.kind == "text" else []
        events = [each for kind, piece, call in pieces for each in self._piece(kind, piece, call)]
        if event.finish is None:
            return events
        self._status = "incomplete" if event.finish == "length" else "completed"
        events += [] if self._items else self._open("text")
        events += self._close(self._status)
        return [*events, self._event(f"response.{self._status}", response=self.whole())]

    def chunks(self, place: int, event: PromptRead | NewToken) -> list[Json]:
        """See `Reply.chunks`."""
        return self.take(place, event)

    def choices(self) -> list[Json]:
        """The items of the answer."""
        return list(self._items)

    def failed(self, error: Json) -> Json:
        """See `Reply.failed`."""
        self._status = "failed"
        told = {"code": error["error"]["code"] or error["error"]["type"], "message": error["error"]["message"]}
        return self._event("response.failed", response={**self.whole(), "error": told})

    def whole(self) -> Json:
        """See `Reply.whole`; of an answer that has begun, what there is of it."""
        body, usage = self._body, self.usage
        form = (body.text or {}).get("format")
        shown = body.model_dump(exclude_none=True, by_alias=True, include={
            "instructions", "max_output_tokens", "metadata", "temperature", "top_p", "top_logprobs", "user"})
        return {
            "id": self._head["id"], "object": "response", "created_at": self._head["created"], "status": self._status,
            "error": None, "model": self.name, "output": self.choices(), "store": False, "truncation": "disabled",
            "incomplete_details": {"reason": "max_output_tokens"} if self._status == "incomplete" else None,
            "instructions": None, "max_output_tokens": None, "metadata": {}, "previous_response_id": None,
            "temperature": None, "top_p": None, **shown, "tool_choice": _shown(body.tool_choice) or "auto",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
            "text": {"format": _shown(form) or {"type": "text"}}, "tools": [_shown(tool) for tool in body.tools or ()],
            "usage": None if self._status == "in_progress" else {
                "input_tokens": usage["prompt_tokens"], "input_tokens_details": usage["prompt_tokens_details"],
                "output_tokens": usage["completion_tokens"], "total_tokens": usage["total_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._message.thought_tokens}}}

    def _event(self, kind: str, **fields: Any) -> Json:
        self._told += 1
        return {"type": kind, "sequence_number": self._told - 1, **fields}

    def _piece(self, kind: Kind, piece: str, call: Called | None) -> list[Json]:
        """The events of a piece."""
        if call is not None:
            return [*self._close("completed"), *self._call(call)]
        events = [] if kind == self._kind else [*self._close("completed"), *self._open(kind)]
        self._text += piece
        told = {"logprobs": self._taken()} if kind == "text" else {}
        return [*events, self._event(f"response.{KINDS[kind][1]}.delta", **self._place(), delta=piece, **told)]

    def _open(self, kind: Kind) -> list[Json]:
        prefix, part = KINDS[kind]
        own: Json = {"type": "message", "role": "assistant"} if kind == "text" else {"type": "reasoning", "summary": []}
        item = {"id": f"{prefix}_{token_hex(12)}", "status": "in_progress", "content": [], **own}
        self._items.append(item)
        self._kind, self._text, self._log_probs = kind, "", []
        return [self._event("response.output_item.added", output_index=len(self._items) - 1, item=dict(item)),
                self._event("response.content_part.added", **self._place(), part=self._part(part))]

    def _close(self, status: str) -> list[Json]:
        """The events that end an item, if one is open."""
        if self._kind is None:
            return []
        name, kind = KINDS[self._kind][1], self._kind
        last = {"logprobs": self._taken()} if kind == "text" else {}
        part, place = self._part(name), self._place()
        self._items[-1] = {**self._items[-1], "status": status, "content": [part]}
        self._kind = None
        return [self._event(f"response.{name}.done", **place, text=self._text, **last),
                self._event("response.content_part.done", **place, part=part),
                self._event("response.output_item.done", output_index=len(self._items) - 1, item=self._items[-1])]

    def _call(self, call: Called) -> list[Json]:
        """The events of a call, which comes whole."""
        item = {"id": f"fc_{token_hex(12)}", "type": "function_call", "status": "completed",
                "call_id": f"call_{token_hex(12)}", **call._asdict()}
        self._items.append(item)
        place = {"output_index": len(self._items) - 1}
        named = {**place, "item_id": item["id"]}
        return [self._event("response.output_item.added", **place, item={**item, "arguments": "",
                                                                         "status": "in_progress"}),
                self._event("response.function_call_arguments.delta", **named, delta=call.arguments),
                self._event("response.function_call_arguments.done", **named, name=call.name, arguments=call.arguments),
                self._event("response.output_item.done", **place, item=item)]

    def _place(self) -> Json:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1, "content_index": 0}

    def _part(self, kind: str) -> Json:
        more = {"annotations": [], "logprobs": list(self._log_probs)} if kind == "output_text" else {}
        return {"type": kind, "text": self._text, **more}

    def _taken(self) -> list[Json]:
        """The log-probabilities that have waited for their text."""
        taken, self._waiting = self._waiting, []
        self._log_probs += taken
        return taken


def _shown(given: Any) -> Any:
    """A part of a body as an answer tells it."""
    return given if given is None or isinstance(given, str) else given.model_dump(exclude_unset=True, by_alias=True)
