"""Conversations in the shapes in which they are published, as lists of messages.

| shape | a record |
| --- | --- |
| ``messages`` | ``messages``: a list of ``role`` and ``content``; perhaps ``tools`` |
| ``sharegpt`` | ``conversations``: a list of ``from`` and ``value``; perhaps ``system``, ``tools`` |
| ``alpaca`` | ``instruction``, perhaps ``input``, ``system`` and ``history``, and ``output`` (Taori et al. 2023) |
| ``completion`` | ``prompt`` and ``completion`` (or ``response``): texts, or lists of messages |

Each of them is a preference pair where it has ``chosen`` and ``rejected`` in place of (or beside) the last answer: a
text, a message, or a list of messages, which may repeat the prompt or hold all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from weft.core.errors import DataError, nearest
from weft.disk.documents import Unreadable, parse_json

Message: TypeAlias = dict[str, Any]
Shape: TypeAlias = Literal["messages", "sharegpt", "alpaca", "completion"]

MARKS: Mapping[Shape, tuple[str, ...]] = {"messages": ("messages",), "sharegpt": ("conversations", "conversation"),
                                          "alpaca": ("instruction",), "completion": ("prompt",)}
"""The field by which each shape is recognised, under its names."""
ANSWERS = ("completion", "response")
SYSTEM, USER, ASSISTANT, TOOL, CALL = "system", "user", "assistant", "tool", "function_call"
ROLES: Mapping[str, str] = {
    SYSTEM: SYSTEM, "developer": "developer", USER: USER, "human": USER, ASSISTANT: ASSISTANT, "gpt": ASSISTANT,
    "chatgpt": ASSISTANT, "model": ASSISTANT, TOOL: TOOL, "observation": TOOL, "function_response": TOOL, CALL: CALL}
"""Names of roles as they are published, and the role of each; a ``function_call`` is an assistant's."""
OPENING = (SYSTEM, "developer")
REMEDY = "Correct or remove that record."


class StoredConversation(NamedTuple):
    """A conversation: its messages, and descriptions of the functions that the assistant may call, or None."""

    messages: list[Message]
    tools: list[Any] | None


class Pair(NamedTuple):
    """A preference: the messages before both answers, those of the better and of the worse one, and the functions."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    tools: list[Any] | None


def conversation_of(record: Any, where: str, shape: Shape | None = None) -> StoredConversation:
    """The conversation that a record holds.

    Args:
        record: in one of the shapes.
        where: its file and line, for messages.
        shape: that it has; None: recognised by its fields.

    Raises:
        DataError: it has none of the shapes, or not the named one; a message is empty or has an unknown role; there is
            no answer; or the conversation starts with the assistant.
    """
    found = _object(record, where)
    if "chosen" in found and "rejected" in found and "output" not in found and not _any(found, ANSWERS):
        raise DataError("a preference pair (chosen and rejected), not a conversation.", where=where,
                        remedy="Give task: preferences, or records with one answer.")
    if found.get("label") is False:
        raise DataError("label is false: the answer is not wanted.", where=where,
                        remedy="Remove records of unwanted answers, or give preference pairs and task: preferences.")
    messages = [*_before(found, where, shape), *_answer(found, where, shape)]
    _require_talk(messages, where)
    return StoredConversation(messages, _tools(found, where))


def pair_of(record: Any, where: str, shape: Shape | None = None) -> Pair:
    """The preference pair that a record holds; the arguments and errors are those of `conversation_of`. Where there is
    no prompt, it is what both answers' lists of messages begin with, up to the last message that is not an
    assistant's."""
    found = _object(record, where)
    for name in ("chosen", "rejected"):
        if name not in found:
            raise DataError(f"no field {name!r}; the fields are: {_listed(found)}.", where=where,
                            remedy="Give preference pairs, with chosen and rejected, or task: answers.")
    better, worse = (_side(found[name], f"{where}, {name}") for name in ("chosen", "rejected"))
    known = shape is not None or any(_any(found, names) for names in MARKS.values())
    prompt = _before(found, where, shape) if known else _shared(better, worse, where)
    chosen, rejected = (side[len(prompt):] if side[:len(prompt)] == prompt else side for side in (better, worse))
    for name, side in (("chosen", chosen), ("rejected", rejected)):
        _require_talk([*prompt, *side], f"{where}, {name}")
        if not side or side[0]["role"] != ASSISTANT or side[-1]["role"] != ASSISTANT:
            raise DataError("the answer is not an assistant's.", where=f"{where}, {name}", remedy=REMEDY)
    return Pair(prompt, chosen, rejected, _tools(found, where))


def _before(record: Mapping[str, Any], where: str, shape: Shape | None) -> list[Message]:
    """All messages of a record but the answer that has a field of its own."""
    chosen = _shape(record, where) if shape is None else shape
    field = _any(record, MARKS[chosen])
    if field is None:
        raise DataError(f"no field {MARKS[chosen][0]!r}, which a record of the shape {chosen!r} has; the fields are: "
                        f"{_listed(record)}.", where=where, remedy="Name another shape with task.shape.")
    if chosen == "alpaca":
        return [*_system(record, where), *_history(record, where), _instruction(record, where)]
    value = record[field]
    if isinstance(value, str) and chosen == "completion":
        return [*_system(record, where), _message(USER, value, where)]
    return [*_system(record, where), *_messages(value, f"{where}, {field}")]


def _answer(record: Mapping[str, Any], where: str, shape: Shape | None) -> list[Message]:
    """The answer in a field of its own; none in the shapes that hold it among the messages."""
    chosen = _shape(record, where) if shape is None else shape
    field = {"alpaca": "output", "completion": _any(record, ANSWERS) or ANSWERS[0]}.get(chosen)
    if field is None:
        return []
    if field not in record:
        raise DataError(f"no answer: there is no field {field!r}; the fields are: {_listed(record)}.", where=where,
                        remedy=REMEDY)
    return _side(record[field], f"{where}, {field}")


def _shape(record: Mapping[str, Any], where: str) -> Shape:
    for shape, names in MARKS.items():
        if _any(record, names):
            return shape
    marks = ", ".join(names[0] for names in MARKS.values())
    raise DataError(f"no conversation of a known shape: none of the fields {marks}; the fields are: "
                    f"{_listed(record)}.", where=where, remedy="Give records of one of these shapes.")


def _shared(chosen: list[Message], rejected: list[Message], where: str) -> list[Message]:
    same = 0
    while same < min(len(chosen), len(rejected)) and chosen[same] == rejected[same]:
        same += 1
    while same and chosen[same - 1]["role"] == ASSISTANT:
        same -= 1
    if not same:
        raise DataError("no prompt: chosen and rejected do not begin with the same messages.", where=where,
                        remedy="Give the prompt in a field of its own.")
    return chosen[:same]


def _side(value: Any, where: str) -> list[Message]:
    """An answer: a text, a message, or messages."""
    if isinstance(value, str):
        return [_message(ASSISTANT, value, where)]
    return _messages([value] if isinstance(value, Mapping) else value, where)


def _messages(value: Any, where: str) -> list[Message]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise DataError(f"a {type(value).__name__}, while a list of messages is expected.", where=where, remedy=REMEDY)
    if not value:
        raise DataError("no messages.", where=where, remedy=REMEDY)
    return [_read(each, f"{where}, message {place}") for place, each in enumerate(value, 1)]


def _read(value: Any, where: str) -> Message:
    """A message with ``role`` and ``content``, or with ``from`` and ``value``."""
    if not isinstance(value, Mapping):
        raise DataError(f"a {type(value).__name__}, not a message.", where=where, remedy=REMEDY)
    named = "role" if "role" in value else "from"
    held = "content" if named == "role" else "value"
    role = value.get(named)
    if role not in ROLES:
        raise DataError(f"{role!r} is no known role.", where=where,
                        remedy=nearest(str(role), ROLES) if isinstance(role, str) else "Give each message a role.")
    # Parquet files have every field in every row, empty where a message lacks it.
    more = {key: item for key, item in value.items() if key not in (named, held) and item is not None}
    return _message(str(role), value.get(held), where, more)


def _message(role: str, content: Any, where: str, more: Mapping[str, Any] | None = None) -> Message:
    if role == CALL:
        return {"role": ASSISTANT, "content": "", "tool_calls": _calls(content, where)}
    found = {"role": ROLES[role], "content": content, **(more or {})}
    calls = found.get("tool_calls")
    if content is None and calls:
        found["content"] = ""
    elif not isinstance(content, str | list):
        raise DataError(f"the {ROLES[role]}'s content is {'missing' if content is None else type(content).__name__}.",
                        where=where, remedy=REMEDY)
    elif not _text(content).strip() and not calls and ROLES[role] != TOOL:
        raise DataError(f"the {ROLES[role]}'s message is empty.", where=where, remedy=REMEDY)
    return found


def _calls(content: Any, where: str) -> list[Message]:
    """The calls that a ``function_call`` spells in JSON: an object with ``name`` and ``arguments``, or a list of
    them."""
    calls = _parsed(content, where)
    calls = calls if isinstance(calls, list) else [calls]
    if not calls or not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        raise DataError("a function call without a name.", where=where,
                        remedy='Give {"name": ..., "arguments": {...}} in JSON.')
    return [{"type": "function", "function": {"name": call["name"], "arguments": call.get("arguments", {})}}
            for call in calls]


def _tools(record: Mapping[str, Any], where: str) -> list[Any] | None:
    value = record.get("tools")
    found = _parsed(value, f"{where}, tools") if isinstance(value, str) and value.strip() else value
    if found and not isinstance(found, list):
        raise DataError(f"tools hold a {type(found).__name__}, not a list.", where=where, remedy=REMEDY)
    return found or None


def _parsed(value: Any, where: str) -> Any:
    try:
        return parse_json(value if isinstance(value, str) else "")
    except Unreadable as error:
        raise DataError(f"{error}.", where=where, remedy=REMEDY) from None


def _system(record: Mapping[str, Any], where: str) -> list[Message]:
    value = record.get("system")
    return [_message(SYSTEM, value, where)] if isinstance(value, str) and value.strip() else []


def _history(record: Mapping[str, Any], where: str) -> list[Message]:
    """Earlier turns of an Alpaca record: pairs of a question and its answer."""
    turns = record.get("history") or []
    if not all(isinstance(turn, list | tuple) and len(turn) == 2 for turn in turns):
        raise DataError("history is not a list of pairs.", where=where, remedy=REMEDY)
    return [_message(role, text, f"{where}, history") for turn in turns
            for role, text in zip((USER, ASSISTANT), turn, strict=True)]


def _instruction(record: Mapping[str, Any], where: str) -> Message:
    """The instruction, and below it, after an empty line, the input where there is one."""
    texts = [record["instruction"], record.get("input") or ""]
    if not all(isinstance(text, str) for text in texts):
        raise DataError("instruction or input is not text.", where=where, remedy=REMEDY)
    return _message(USER, "\n\n".join(text for text in texts if text.strip()), where)


def _require_talk(messages: list[Message], where: str) -> None:
    first = next((message for message in messages if message["role"] not in OPENING), None)
    if first is None or all(message["role"] != ASSISTANT for message in messages):
        raise DataError("no answer: no message is an assistant's.", where=where, remedy=REMEDY)
    if first["role"] == ASSISTANT:
        raise DataError("the conversation starts with the assistant, and there is nothing that it answers.",
                        where=where, remedy="Remove that message, or the record.")


def _object(record: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(record, Mapping):
        raise DataError(f"a {type(record).__name__}, while a record is an object with fields.", where=where,
                        remedy=REMEDY)
    return record


def _any(record: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of the names that is a field with something in it."""
    return next((name for name in names if record.get(name) is not None), None)


def _listed(record: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, record)) or "none"


def _text(content: str | list[Any]) -> str:
    return content if isinstance(content, str) else "".join(
        str(part.get("text", "")) for part in content if isinstance(part, Mapping))


SHAPES: tuple[Shape, ...] = get_args(Shape)
