"""Special tokens in text: where a text spells one of them, for tokenizers whose library does not search."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

END_OF_DOCUMENT = "<|endoftext|>"
"""How Weft's own vocabularies spell the token between documents."""


@final
@dataclass(frozen=True)
class AddedToken:
    """A token beside the vocabulary proper, matched in text before everything else.

    Attributes:
        content: its spelling.
        id: its id.
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
