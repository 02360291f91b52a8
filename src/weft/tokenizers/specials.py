"""Special tokens in text: where a text spells one of them, for tokenizers whose library does not search.

How a published vocabulary is meant to be used: facts that are read and saved with it, for chat and decoding.

Vocabularies that others wrote, and the library that reads them: bounds on both, and errors that users can read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from weft.core.errors import TokenizerError, WeftError
from weft.core.strict_json import Record
from weft.disk.documents import MEBIBYTE, Unreadable, read_document

END_OF_DOCUMENT = "<|endoftext|>"
"""How Weft's own vocabularies spell the token between documents."""


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


MOST_TOKENIZER_BYTES = 256 * MEBIBYTE
"""Of a file of a vocabulary. The longest published ones, of 262,144 tokens, have 34 MB."""
MOST_IDS = 1 << 22
"""Of a vocabulary: for each id a few hundred bytes are kept. The largest published ones have about a million."""

AGAIN = "Copy the tokenizer's folder again, whole; what it asks for is not what its library can do."


def read_vocabulary(path: Path) -> bytes:
    """The content of a file of a vocabulary.

    Raises:
        OSError: it is missing or cannot be read.
        Unreadable: it is no regular file, or too long.
    """
    return read_document(path, most=MOST_TOKENIZER_BYTES)


def require_ids(count: int, where: str) -> None:
    """Refuse a vocabulary of more ids than `MOST_IDS`, before a table of them is made.

    Args:
        count: the ids that are asked for, or one more than the largest id.
        where: the file or setting that asks for them.

    Raises:
        TokenizerError: there are more.
    """
    if count > MOST_IDS:
        raise TokenizerError(f"{count:,} ids, and a vocabulary has at most {MOST_IDS:,}.", where=where,
                             remedy="Give fewer; those of a file are counted from 0 without gaps.")


@contextmanager
def library_errors(what: str, where: str) -> Iterator[None]:
    """Turn whatever the library raises into a `TokenizerError`: bare exceptions for inconsistent files, and panics,
    which are no `Exception`.

    Args:
        what: it was asked to do, after "cannot".
    """
    try:
        yield
    except (WeftError, Unreadable, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TokenizerError(f"the tokenizer cannot {what} ({reason[:300]}).", where=where, remedy=AGAIN) from None
