"""Bodies of ``/v1/chat/completions`` as requests, and their events as answers of an assistant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, final

from weft.chat.template import RESERVED, Extras
from weft.core.errors import InputError
from weft.decoding import Ending, NewToken, Row
from weft.decoding.choosing import RowSettings
from weft.server.answer_forms import form_of
from weft.server.completion_bodies import stops_of
from weft.server.dialect import Called, Dialect, Kind, Parting, read_calls
from weft.server.fields import ChatBody, ChatMessage, Tool
from weft.server.replies import FINISH, Json, ReadBody, Reply
from weft.server.served import Served
from weft.serving.requests import PromptRead, Request


def read_chat(served: Served, body: ChatBody) -> ReadBody:
    """The requests of a body, and the answer that they make. Raises `InputError`: fields that do not fit together, a
    conversation that the template rejects or that is too long, or a schema that does not compile."""
    requests, partings = asked_of(served, body)
    return ReadBody(requests, Chat(served, requests, partings, body), bool(body.stream))


def asked_of(served: Served, body: ChatBody) -> tuple[tuple[Request, ...], list[Parting]]:
    """The requests of a body, and how the text of each is parted. Raises `InputError`: see `read_chat`."""
    if served.require_language_model().takes_source:
        raise InputError("this model translates a source, and answers no conversation.", where="messages",
                         remedy="Use /v1/completions, whose prompt is the source.")
    adapter = served.adapter(body.model)
    tools = [] if body.tool_choice == "none" else [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    try:
        dialect = served.dialects[bool(tools)]
    except InputError:
        raise InputError("this model is served without a chat template.", where="messages",
                         remedy="Use /v1/completions, or start the server with --template.") from None
    _require_consistent(body, dialect)
    effort = {} if body.reasoning_effort is None else {"reasoning_effort": body.reasoning_effort}
    prompt, thinks = rendered(dialect, body.messages, tools, {**(body.chat_template_kwargs or {}), **effort})
    row = Row(tuple(prompt))
    given = body.max_completion_tokens or body.max_tokens
    sampling, default, seed = served.sampling(body, served.context)
    most = served.new_tokens(len(row.tokens), given, default, "messages")
    stops = (*dialect.template.stops, *stops_of(body.stop))
    ending = Ending(() if body.ignore_eos else dialect.template.end_ids, stops, dialect.spelled)
    constraint = form_of(served, body, dialect, thinks)
    settings = [RowSettings(most, sampling, ending, index, seed, bool(body.logprobs), top=body.top_logprobs or 0,
                            constraint=constraint) for index in range(body.n or 1)]
    requests = tuple(Request(row, each, adapter=adapter) for each in settings)
    required = bool(tools) and body.tool_choice not in (None, "auto")
    partings = [Parting(dialect, thinks=thinks, calls=bool(tools), thoughts=not (required or _has_format(body)))
                for _ in requests]
    return requests, partings


def rendered(dialect: Dialect, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]],
             variables: Mapping[str, Any] | None) -> tuple[list[int], bool]:
    """The ids of a conversation up to the answer, and whether the answer begins inside a thought. Raises `InputError`:
    the template rejects it."""
    turns = [_turn(message) for message in messages]
    unfinished = turns[-1]["role"] == "assistant"
    extras = Extras(tools=tools or None, variables=variables)
    template = dialect.template
    try:
        ids = template.encode(turns, add_generation_prompt=not unfinished, continue_final=unfinished, extras=extras)
        return ids, not unfinished and dialect.thought is not None and dialect.opens_thought(
            template.text(turns, add_generation_prompt=True, extras=extras))
    except InputError as error:  # whose place may be a file of the server
        where = error.where if error.where and error.where.startswith("messages") else "messages"
        raise InputError(error.what, where=where, remedy="Give messages that the template accepts.") from None


def _turn(message: ChatMessage) -> dict[str, Any]:
    """A message as templates read it: arguments of calls as objects, and developer as system."""
    found = message.model_dump(exclude_none=True, exclude={"annotations"})
    found["role"] = "system" if message.role == "developer" else message.role
    for call in found.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        except (ValueError, RecursionError):
            raise InputError("the arguments of a call are not JSON.", where="messages",
                             remedy="Give them as the server sent them.") from None
    return found


def _require_consistent(body: ChatBody, dialect: Dialect) -> None:
    names = [tool.function.name for tool in body.tools or ()]
    named = body.tool_choice.function if isinstance(body.tool_choice, Tool) else None
    taken = next((name for name in body.chat_template_kwargs or {} if name in RESERVED), None)
    wrong = {
        "top_logprobs": (body.top_logprobs is not None and not body.logprobs, "needs logprobs.", "Set it to true."),
        "stream_options": (body.stream_options is not None and not body.stream, "options of a stream without one.",
                           "Set stream to true."),
        "max_tokens": (None not in (body.max_tokens, body.max_completion_tokens),
                       "two limits, max_tokens and max_completion_tokens.", "Give one of them."),
        "tool_choice": (body.tool_choice is not None and not body.tools, "a choice among no tools.", "Give tools."),
        "tools": (bool(body.tools) and not dialect.takes_tools, "the model's chat template takes no tools.",
                  "Describe them in a message, or serve the model with another template."),
        "tool_choice.function": (named is not None and (named.model_fields_set != {"name"} or named.name not in names),
                                 "no name of one of the tools.", "Give the name alone."),
        "response_format": (_has_format(body) and bool(body.tools), "a format of the answer, beside tools to call.",
                            "Give one of them."),
        "reasoning_effort": (body.reasoning_effort is not None and "reasoning_effort" not in dialect.template.source,
                             "the model's chat template reads none.", "Leave it out."),
        "chat_template_kwargs": (taken is not None, f"the name {taken!r} is taken.",
                                 "Give messages and tools as what they are.")}
    for where, (holds, what, remedy) in wrong.items():
        if holds:
            raise InputError(what, where=where, remedy=remedy)


def _has_format(body: ChatBody) -> bool:
    """Whether the answer is to be JSON."""
    return body.response_format is not None and body.response_format.type != "text"


@final
class Chat(Reply):
    """The answer to a body of ``/v1/chat/completions``.

    Args:
        partings: of each request's text.
        body: what was asked.
    """

    chunk_object, whole_object = "chat.completion.chunk", "chat.completion"

    def __init__(self, served: Served, requests: Sequence[Request], partings: Sequence[Parting],
                 body: ChatBody) -> None:
        super().__init__("chatcmpl", requests, [0], body.model or served.name,
                         body.stream_options is not None and body.stream_options.include_usage)
        self._made = [Message(served, parting, bool(body.logprobs)) for parting in partings]

    def take(self, place: int, event: PromptRead | NewToken) -> list[Json]:
        """See `Reply.take`."""
        if isinstance(event, PromptRead):
            return [{"index": place, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
                     "finish_reason": None}]
        found = self._made[place].take(event)
        return [] if found is None else [{"index": place, **found}]

    def choices(self) -> list[Json]:
        """See `Reply.choices`."""
        return [{"index": place, **message.whole()} for place, message in enumerate(self._made)]


@final
class Message:
    """One answer of an assistant.

    Args:
        told: whether the log-probabilities of its tokens are told.

    Attributes:
        thought_tokens: number of its tokens that are thoughts, with their marks.
        parting: of its text.
    """

    def __init__(self, served: Served, parting: Parting, told: bool) -> None:
        self.thought_tokens = 0
        self._served, self.parting, self._told = served, parting, told
        self._text, self._thought = list[str](), list[str]()
        self._calls: list[Json] = []
        self._log_probs: list[Json] = []
        self._finish = "length"

    def pieces(self, event: NewToken) -> list[tuple[Kind, str, Called | None]]:
        """Take a token; what it makes final, with the call where a piece is one."""
        found: list[tuple[Kind, str, Called | None]] = []
        thinks = self.parting.kind == "thought"
        for kind, piece in self.parting.push(event.text or "", last=event.finish is not None):
            calls = read_calls(piece) if kind == "call" else []
            found += [("call", piece, call) for call in calls] or [("text" if kind == "call" else kind, piece, None)]
        self.thought_tokens += thinks or self.parting.kind == "thought"
        return found

    def take(self, event: NewToken) -> Json | None:
        """Take a token; what a stream tells of it, None if there is nothing."""
        delta: Json = {}
        for kind, piece, call in self.pieces(event):
            if call is not None:
                made = {"id": f"call_{token_hex(12)}", "type": "function", "function": call._asdict()}
                delta.setdefault("tool_calls", []).append({"index": len(self._calls), **made})
                self._calls.append(made)
            else:
                key, kept = ("reasoning_content", self._thought) if kind == "thought" else ("content", self._text)
                delta[key] = delta.get(key, "") + piece
                kept.append(piece)
        if event.finish:
            self._finish = "tool_calls" if self._calls and event.finish != "length" else FINISH[event.finish]
        log_probs = self.told(event)
        if log_probs is not None:
            self._log_probs.append(log_probs)
        if not delta and event.finish is None and log_probs is None:
            return None
        return {"delta": delta, "logprobs": None if log_probs is None else {"content": [log_probs], "refusal": None},
                "finish_reason": self._finish if event.finish else None}

    def whole(self) -> Json:
        """The choice of the whole answer."""
        text = "".join(self._text)
        message: Json = {"role": "assistant", "content": text if text or not self._calls else None, "refusal": None}
        if self._thought:
            message["reasoning_content"] = "".join(self._thought)
        if self._calls:
            message["tool_calls"] = self._calls
        return {"message": message, "finish_reason": self._finish,
                "logprobs": {"content": self._log_probs, "refusal": None} if self._told else None}

    def told(self, event: NewToken) -> Json | None:
        """The log-probability of a token; None: it is not asked for."""
        return {**self._entry(event.token, event.log_prob or 0.0),
                "top_logprobs": [self._entry(*each) for each in event.top]} if self._told else None

    def _entry(self, token: int, log_prob: float) -> Json:
        spelling = self._served.spelling
        return {"token": spelling.text(token), "logprob": log_prob, "bytes": list(spelling.content(token))}
