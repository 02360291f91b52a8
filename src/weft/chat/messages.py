"""Messages of a conversation from outside, checked before a template gets them.

    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from weft.core.errors import InputError
from weft.disk.documents import read_json

Message: TypeAlias = Mapping[str, Any]
"""``role`` and ``content``, and further keys that a template uses (``tool_calls``, ``name``, ``tool_call_id``)."""

ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
"""A role is a plain word, since templates write it among the model's own control tokens."""

ASSISTANT = "assistant"
REASONING = ("reasoning_content", "thinking", "reasoning")
"""Keys of an answer's thoughts, of which the first is that of most templates."""

GIVE_MESSAGES = 'Give a list such as [{"role": "user", "content": "Hello"}].'
DEEPEST = 64
KINDS: Mapping[type, str] = MappingProxyType({list: "a list", tuple: "a list", dict: "an object", type(None): "null"})


def read_messages(path: str | Path) -> list[dict[str, Any]]:
    """Read the messages of a JSON file: a list, or an object with a list under ``messages``. Raises `InputError`: the
    file is missing, not JSON, or holds something else."""
    try:
        data = read_json(Path(path))
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror}).", where=str(path),
                         remedy="Give the path of a JSON file.") from None
    except ValueError as error:
        raise InputError(f"not JSON in UTF-8 ({error}).", where=str(path), remedy=GIVE_MESSAGES) from None
    if isinstance(data, dict) and "messages" in data:
        data = data["messages"]
    return parse_messages(data, where=str(path))


def parse_messages(data: object, *, where: str = "messages") -> list[dict[str, Any]]:
    """Copy messages as plain data, so that a template cannot reach the caller's objects. Raises `InputError`: naming
    the message and what is wrong with it."""
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise InputError(f"{_kind(data)} where a list of messages is expected.", where=where, remedy=GIVE_MESSAGES)
    if not data:
        raise InputError("no messages.", where=where, remedy=GIVE_MESSAGES)
    return [_message(each, f"{where}[{index}]") for index, each in enumerate(data)]


def plain_data(value: object, where: str, depth: int = 0) -> Any:
    """Copy ``value`` as plain JSON data. Raises `InputError`: JSON cannot express it, or it is nested too deeply."""
    if depth > DEEPEST:
        raise InputError(f"nested more than {DEEPEST} deep.", where=where, remedy="Give flatter data.")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_data(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise InputError(f"{_kind(value)}, which JSON cannot express.", where=where, remedy="Give plain data.")


def with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: thoughts that stand under one of `REASONING` under the two keys that templates
    read, and no key that holds null, as `transformers` does it (5.24, ``_alias_reasoning_fields``)."""
    given = {key: value for key, value in message.items() if value is not None}
    thoughts = next((given[key] for key in REASONING if key in given), None)
    return given if thoughts is None else {"thinking": thoughts, **given, "reasoning_content": thoughts}


def _message(data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise InputError(f"{_kind(data)} where a message is expected.", where=where, remedy=GIVE_MESSAGES)
    message: dict[str, Any] = plain_data(data, where)
    role = message.get("role")
    if not isinstance(role, str) or not ROLE.fullmatch(role):
        raise InputError(f"{role!r} is not a role.", where=f"{where}.role",
                         remedy="Give a plain word: system, user, assistant, tool, or one that the template defines.")
    _require_content(message, where)
    return message


def _require_content(message: Mapping[str, Any], where: str) -> None:
    content = message.get("content")
    if content is None and ("content" not in message) and not message.get("tool_calls"):
        raise InputError("no content.", where=where, remedy="Give its text as content.")
    if content is None or isinstance(content, str):
        return
    parts = content if isinstance(content, list) else [content]
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InputError("content that is not text.", where=f"{where}.content[{index}]",
                             remedy='Give a string, or a list of {"type": "text", "text": ...}: '
                                    "Weft's models read text alone.")
    if not isinstance(content, list):
        raise InputError("content that is an object.", where=f"{where}.content", remedy="Give a string.")


def _kind(value: object) -> str:
    return KINDS.get(type(value), f"a {type(value).__name__}")
