"""Where a long text may be cut so that its stretches, encoded each alone, give the tokens of the whole.

A library needs more than a hundred bytes for each byte that it encodes at once, so a long document is encoded in
stretches. They end behind a letter or digit that a space or a line end follows, and behind that another letter or
digit, and only where both of this holds:

* **No token crosses the place.** No id of the vocabulary stands for that character followed by the separator. Merges
  (BPE), paths (unigram) and longest matches (WordPiece, RWKV World) produce only ids of the vocabulary, so none crosses
  the place, and the two sides are encoded independently.
* **Pre-tokenisation is the same.** A run of letters or digits ends there for every expression made of character
  classes. Where a normaliser puts a space before each text, the separating space is left out and the normaliser's own
  replaces it. Which of the two a tokenizer does is tested at every seam: the text around it, encoded whole, must give
  the tokens and bytes of its two sides.

Without such a place the stretch is extended, to the end of the text if necessary: tokens are always exact, only memory
is not bounded then.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from weft.core.errors import TokenizerError
from weft.tokenizers.lost import lost_nats

if TYPE_CHECKING:
    from weft.tokenizers.base import Encoded, Tokenizer

STRETCH = 1 << 18
"""Characters of a stretch, for which a library takes about 40 MB."""

CONTEXT = 256
"""Characters on either side of a seam that are encoded both together and separately."""

CLOSE = 1 << 12
"""Characters before the intended end that are searched first."""

MOST_TRIED = 16
"""Places that are tested before the stretch is extended."""

SEPARATORS = (" ", "\n")
SEAM = re.compile(r"(?<=[^\W_])[ \n](?=[^\W_])")
SPACE_SEAM = re.compile(r"(?<=[^\W_]) (?=[^\W_])")

Joined: TypeAlias = Mapping[str, frozenset[int]]
"""For each separator, the bytes that precede it within an id."""


@dataclass(frozen=True)
class TextPart:
    """A part of a text that is encoded alone.

    Attributes:
        skipped: bytes of text before it that are left out, since the tokenizer inserts them itself; they count as
            bytes of its first token.
    """

    text: str
    skipped: int = 0


def stretches(tokenizer: Tokenizer, parts: Iterable[str], *, size: int = STRETCH) -> Iterator[TextPart]:
    """Cut a text into stretches that the tokenizer may encode separately; none is empty.

    Args:
        tokenizer: the tokenizer that encodes them.
        size: characters of a stretch, if it can be cut there.
    """
    held, skipped, limit = "", 0, size
    for part in parts:
        held += part
        while len(held) >= limit + CONTEXT:
            seam = _seam(tokenizer, held, limit)
            if seam is None:
                limit *= 2
                continue
            end, start = seam
            yield TextPart(held[:end], skipped)
            held, skipped, limit = held[start:], start - end, size
    if held:
        yield TextPart(held, skipped)


def measured(tokenizer: Tokenizer, batch: list[TextPart]) -> list[Encoded]:
    """The ids of each stretch, with the bytes of the original text that each id stands for and what is paid for text
    that it does not tell."""
    texts = [stretch.text for stretch in batch]
    found = [replace(encoded, lost=lost_nats(tokenizer, text, encoded) if len(encoded.ids) else None)
             for text, encoded in zip(texts, tokenizer.measure_many(texts), strict=True)]
    for stretch, encoded in zip(batch, found, strict=True):
        encoded.byte_lengths[:1] += stretch.skipped
    return found


class PartedTexts(Sequence[str], ABC):
    """Texts that can be read in parts, so that a long one need not be in memory as one ``str``."""

    @abstractmethod
    def parted(self) -> Iterator[Iterator[str]]:
        """The parts of each text, cut anywhere."""


def words_apart(texts: Iterable[str], *, skip: bool = False, size: int = STRETCH) -> Iterator[str]:
    """Cut texts into stretches with the same words, for training on words; every seam is as good as another.

    Args:
        skip: leave the separating space out, for a tokenizer that puts a space before every text.
        size: characters of a stretch, if it can be cut there.
    """
    for parts in parted(texts):
        held = ""
        for part in parts:
            searched, held = max(size, len(held) - 1), held + part
            while len(held) > size:
                found = (SPACE_SEAM if skip else SEAM).search(held, searched)
                if found is None:
                    break
                yield held[:found.start()]
                held, searched = held[found.end() if skip else found.start():], size
        yield held


def parted(texts: Iterable[str]) -> Iterator[Iterator[str]]:
    """The parts of each text."""
    return texts.parted() if isinstance(texts, PartedTexts) else (sliced(text) for text in texts)


def sliced(text: str, size: int = STRETCH) -> Iterator[str]:
    """A text in parts of so many characters."""
    return (text[place:place + size] for place in range(0, len(text), size))


def joined(pieces: Iterable[bytes]) -> Joined:
    """The bytes that precede a separator within the pieces of a vocabulary."""
    found: dict[str, set[int]] = {separator: set() for separator in SEPARATORS}
    for piece in pieces:
        for separator, before in found.items():
            place = piece.find(separator.encode(), 1)
            while place > 0:
                before.add(piece[place - 1])
                place = piece.find(separator.encode(), place + 1)
    return {separator: frozenset(before) for separator, before in found.items()}


def joins(known: Joined, before: str, separator: str) -> bool:
    """Whether a vocabulary has an id in which the separator follows ``before`` in any of its normal forms."""
    forms = {before, before.lower(), *(unicodedata.normalize(form, before) for form in ("NFKC", "NFKD"))}
    return any(form.encode()[-1] in known[separator] for form in forms if form)


def _seam(tokenizer: Tokenizer, text: str, limit: int) -> tuple[int, int] | None:
    """The last place up to ``limit`` where the text may be cut: where one stretch ends and the next begins, in
    characters."""
    near = max(CONTEXT, limit - CLOSE, limit // 2)
    places = list(SEAM.finditer(text, near, limit)) or list(SEAM.finditer(text, max(CONTEXT, limit // 2), limit))
    tried = 0
    for found in reversed(places):
        end = found.start()
        if tokenizer.may_join(text[end - 1], found[0]):
            continue
        for start in (end, end + 1) if found[0] == " " else (end,):
            if _agree(tokenizer, text, end, start):
                return end, start
        tried += 1
        if tried == MOST_TRIED:
            break
    return None


def _agree(tokenizer: Tokenizer, text: str, end: int, start: int) -> bool:
    """Whether the text around a seam gives the same tokens whole and in two parts, with the same bytes before it."""
    first, last = end - CONTEXT, end + CONTEXT
    sides = [TextPart(text[first:end]), TextPart(text[start:last], start - end)]
    try:
        whole, left, right = measured(tokenizer, [TextPart(text[first:last]), *sides])
    except TokenizerError:  # encoding the text itself raises the error that names the place
        return False
    if not len(left.ids) or not len(right.ids):
        return False
    before = whole.byte_lengths[:len(left.ids)].sum()
    return np.array_equal(whole.ids, np.concatenate([left.ids, right.ids])) and bool(before == left.byte_lengths.sum())
