"""Special tokens in a conversation: those of the template are recognised, those spelled in a message are plain text.

Before a message is given to the template, the first character of every special token that it spells is replaced by a
stand-in, a private-use character that occurs nowhere in this conversation. Templates can still compare, slice and trim
messages; in the result only the template's own special tokens are spelled out. `encode` recognises these, and encodes
everything else, with the stand-ins replaced again, as ordinary text.

The marks by which a template finds the thoughts in an answer are special tokens too, for many models. What the model
has written keeps them: the template finds them, and they are tokens again. Nobody else's text does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from weft.disk.documents import parse_json
from weft.tokenizers.base import Tokenizer
from weft.tokenizers.library import LIBRARY_FILE, LibraryTokenizer, parse_library
from weft.tokenizers.library_pieces import without_specials
from weft.tokenizers.specials import AddedToken, Splitter

PRIVATE = range(0x100000, 0x10FFFE)
"""Code points of the last private-use plane (Unicode 15.0, section 23.5), which occur in no vocabulary and in hardly
any text."""


class Guard:
    """Separates the special tokens of a template from those spelled in messages.

    Args:
        specials: spellings that must stay ordinary text in a message.
        texts: all texts to be rendered; stand-ins are characters that occur in none of them.
        marks: those of the special tokens that stay what they are in the model's own messages.
    """

    def __init__(self, specials: Iterable[str], texts: Iterable[str], marks: Collection[str] = ()) -> None:
        self._of_others = _hidden(specials)
        self._of_the_model = _hidden(special for special in self._of_others[0] if special not in marks)
        firsts = sorted({special[0] for special in self._of_others[0]})
        free = unused(texts)
        self.mark, self.opens, self.closes = next(free), next(free), next(free)
        self._standing = {first: next(free) for first in firsts}
        self._back = str.maketrans({stand_in: first for first, stand_in in self._standing.items()})

    @property
    def stand_ins(self) -> str:
        """The private characters in use, the marks among them."""
        return self.mark + self.opens + self.closes + "".join(self._standing.values())

    def cover(self, value: Any, *, own: bool = False) -> Any:
        """Replace the first characters of special tokens in all texts of plain data by stand-ins; ``own``: the model
        has written it, so its marks stay."""
        if isinstance(value, str):
            return self._cover_text(value, own)
        if isinstance(value, dict):
            return {self._cover_text(key, own): self.cover(item, own=own) for key, item in value.items()}
        return [self.cover(item, own=own) for item in value] if isinstance(value, list) else value

    def bare(self, text: str) -> str:
        """``text`` with the stand-ins replaced by the characters they stand for."""
        return text.translate(self._back)

    def is_used_in(self, text: str) -> bool:
        """Whether a message contributed something that could be taken for a special token."""
        return any(stand_in in text for stand_in in self._standing.values())

    def _cover_text(self, text: str, own: bool) -> str:
        specials, spelled = self._of_the_model if own else self._of_others
        places = {found.start() for found in spelled.finditer(text)} | set(_unfinished(text, specials))
        if not places:
            return text
        return "".join(self._standing[char] if place in places else char for place, char in enumerate(text))


def _hidden(specials: Iterable[str]) -> tuple[list[str], re.Pattern[str]]:
    """Spellings, the longest first, and the places where a text has one: by look-ahead, since those that overlap count
    as well."""
    ordered = sorted(filter(None, specials), key=len, reverse=True)
    return ordered, re.compile("|".join(f"(?={re.escape(special)})" for special in ordered) or r"(?!)")


def _unfinished(text: str, specials: Sequence[str]) -> Iterator[int]:
    """Places near the end of a text at which a special token begins that text of the template could complete. White
    space at the end is ignored, since templates trim it."""
    end = len(text.rstrip())
    for start in range(max(0, end - len(specials[0]) + 1) if specials else end, end):
        if any(special.startswith(text[start:end]) for special in specials):
            yield start


def unused(texts: Iterable[str]) -> Iterator[str]:
    """Private-use characters that occur in none of the texts."""
    taken = {char for text in texts for char in text if ord(char) in PRIVATE}
    return (chr(point) for point in PRIVATE if chr(point) not in taken)


def all_texts(value: Any) -> Iterator[str]:
    """Every text in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from all_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from all_texts(item)


def encode(tokenizer: Tokenizer, text: str, guard: Guard) -> list[int]:
    """The ids of a rendered conversation.

    Where no message has spelled a special token, this is ``tokenizer.encode(text, specials=True)``.

    Raises:
        TokenizerError: the text holds something that the tokenizer cannot express.
    """
    if not guard.is_used_in(text):
        return tokenizer.encode(text, specials=True)
    splitter = Splitter(AddedToken(content, place) for content, place in tokenizer.special_tokens.items())
    pieces = [(guard.bare(piece), place) for piece, place in splitter.split(text)]
    if isinstance(tokenizer, LibraryTokenizer):
        return _encode_marked(tokenizer, pieces)
    return [token for piece, place in pieces for token in (tokenizer.encode(piece) if place is None else [place])]


def _encode_marked(tokenizer: LibraryTokenizer, pieces: list[tuple[str, int | None]]) -> list[int]:
    """Encode the pieces as one text in which private-use characters are the special tokens, so that the library treats
    the edges of special tokens and the beginning of a text as always."""
    free = unused(piece for piece, _ in pieces)
    marks = {place: next(free) for place in sorted(set(tokenizer.special_tokens.values()))}
    text = "".join(piece if place is None else marks[place] for piece, place in pieces)
    library, places = _with_marks(tokenizer.files()[LIBRARY_FILE], marks)
    found = library.encode_batch_fast([text], add_special_tokens=False)[0].ids
    ids: list[int] = np.array(found, dtype=np.int32).tolist()
    return [places.get(token, token) for token in ids]


def _with_marks(source: bytes, marks: Mapping[int, str]) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
    """The library with every special token spelled as its mark, and the original ids of all added tokens, which the
    library renumbers."""
    declared = parse_json(parse_library(source).to_str())
    added = [{**token, "content": marks[token["id"]], "normalized": False} if token["special"] else token
             for token in declared.get("added_tokens") or []]
    changed = without_specials(declared)
    model = declared["model"] if changed is None else json.loads(changed)["model"]
    library = parse_library(json.dumps({**declared, "model": model, "added_tokens": added}))
    renumbered = ((library.token_to_id(token["content"]), token["id"]) for token in added)
    return library, {new: place for new, place in renumbered if new is not None}
