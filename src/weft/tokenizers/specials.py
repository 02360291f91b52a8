"""Special tokens in text: where a text spells one of them, for tokenizers whose library does not search.

How a published vocabulary is meant to be used: facts that are read and saved with it, for chat and decoding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Self, final

from weft.core.strict_json import Record

END_OF_DOCUMENT = "<|endoftext|>"
"""How Weft's own vocabularies spell the token between documents."""


@final
@dataclass(frozen=True)
class AddedToken:
    """A token beside the vocabulary proper, matched in text before everything else.

    Attributes:
        special: whether it stands for no text; one that is not special stands for its spelling.
        lstrip: whether it includes the white space before it.
        rstrip: whether it includes the white space after it.
    """

    content: str
    id: int
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False


@final
class Splitter:
    """Splits a text at the tokens it spells; of several that begin at one place the longest matches.

    Args:
        tokens: the tokens to match; without any, no text is split.
    """

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        longest_first = sorted(tokens, key=lambda token: -len(token.content))
        self._ids = [token.id for token in longest_first]
        self._pattern = re.compile("|".join(f"({_pattern(token)})" for token in longest_first) or r"(?!)")

    def split(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Stretches of ``text`` in order: ordinary ones with None, spelled tokens with their id; none is empty."""
        place = 0
        for match in self._pattern.finditer(text):
            if place < match.start():
                yield text[place : match.start()], None
            assert match.lastindex is not None
            yield match[0], self._ids[match.lastindex - 1]
            place = match.end()
        if place < len(text):
            yield text[place:], None


def _pattern(token: AddedToken) -> str:
    return (r"\s*" if token.lstrip else "") + re.escape(token.content) + (r"\s*" if token.rstrip else "")


@final
@dataclass(frozen=True)
class Conventions(Record):
    """The declarations of the files beside a vocabulary about its use. Encoding does not depend on any of it.

    Attributes:
        adds_bos: whether the model expects the opening token before a text; None when no file declares it.
        adds_eos: whether it expects the closing token after one; likewise.
        end_ids: ids besides ``eos_id`` that end a generation (a chat model's end of turn).
        chat_templates: Jinja source by name; the only or usual one is called ``default``.
        stops: texts that end an answer, where the vocabulary has no id for its end.
    """

    adds_bos: bool | None = None
    adds_eos: bool | None = None
    end_ids: tuple[int, ...] = ()
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    stops: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; empty fields are left out."""
        return {name: value for name, value in super().to_json().items() if value not in (None, [], {})}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; fields that a later version has added are ignored."""
        if not isinstance(data, Mapping):
            raise ValueError(f"the conventions are a {type(data).__name__}")
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        for name, sound in SOUND.items():
            if name in known and not sound(known[name]):
                raise ValueError(f"the setting {name!r} is {known[name]!r:.80}")
        return super().from_json(known)


def _texts(value: Any) -> bool:
    return all(isinstance(each, str) for each in value)


SOUND: Mapping[str, Callable[[Any], bool]] = MappingProxyType({
    "adds_bos": lambda value: value is None or isinstance(value, bool),
    "adds_eos": lambda value: value is None or isinstance(value, bool),
    "end_ids": lambda value: isinstance(value, list | tuple) and all(type(each) is int for each in value),
    "chat_templates": lambda value: isinstance(value, Mapping) and _texts(value) and _texts(value.values()),
    "stops": lambda value: isinstance(value, list | tuple) and _texts(value)})
"""What a field of a file may be."""

NO_CONVENTIONS = Conventions()
"""The conventions of tokenizers that were trained here."""
