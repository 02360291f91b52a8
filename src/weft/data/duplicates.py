"""How much of a held-out text also stands in the training text, by n-grams of bytes.

Copies are rarely whole: a character, a space or a capital differs, or half of a document was taken. So texts are
compared without capitals and runs of white space, by all stretches of `WINDOW` bytes: a document's share is the part of
its bytes that lie in a stretch which the training text has. Brown et al. 2020 (GPT-3, appendix C) take 13 words for
such a stretch, Lee et al. 2022 (section 4.1) 50 tokens, and Touvron et al. 2023 (Llama 2, appendix A.6) count the
tokens that lie in one, as it is done here with bytes. A document counts as found from `FOUND` on: licences and other
text that many documents share are part of every corpus.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8, UInt64

from weft.data.document import Document

WINDOW = 50
"""Bytes of a stretch. Of a shorter document all of it is one stretch, which stands at the end of another document, or
is all of it."""

FOUND = 0.4
"""The share from which on a document counts as standing in the training text: half of it does, or nearly. In the source
of Python's standard library the near copies have 0.7 and more, and boilerplate alone 0.38 at most."""

TOLD = 0.05
"""The share of all held-out text from which on it is told, even if no document counts as found: boilerplate alone has
less."""

MOST_SAMPLED = 1 << 22
"""Stretches, about, of which it is noted in which documents they stand, at some 60 bytes of memory each."""

BLOCK = 1 << 18
BORDER = bytes([0xFF]) * WINDOW
"""Stands behind a document. 0xFF is in no UTF-8, so that no stretch goes on into the next document unseen."""

FACTOR = 0x9E3779B97F4A7C15
MOST_BITS, PER_HASH = 25, 16
"""Of a table of what is searched for, which answers most of the questions without a search: the most bits of a place in
it, and the places for each hash."""

Hashes: TypeAlias = UInt64[np.ndarray, " n"]


class Repeated(NamedTuple):
    """Documents of a held-out text.

    Attributes:
        found: documents of which at least `FOUND` stands in the training text; blank documents are left out.
        share: the part of the held-out text that stands in the training text; None: it was not measured.
    """

    found: int
    of: int
    share: float | None = None

    @classmethod
    def over(cls, shares: Float64[np.ndarray, " D"], sizes: Int64[np.ndarray, " D"]) -> Repeated:
        """The numbers of documents whose shares and bytes are those of `overlap`."""
        whole = float(sizes.sum())
        return cls(int((shares >= FOUND).sum()), len(shares), float(shares @ sizes) / whole if whole else 0.0)

    @property
    def told(self) -> bool:
        """Whether it is worth a notice: a document is found, or `TOLD` of the text."""
        return self.found > 0 or (self.share or 0.0) >= TOLD

    def describe(self) -> str:
        """The numbers in words."""
        if self.share is None:
            return f"{self.found:,} of {self.of:,} documents also stand, word for word, in the training text"
        return (f"{self.found:,} of {self.of:,} documents also stand in the training text, by {FOUND:.0%} or more; of "
                f"all text {self.share:.1%} does, in stretches of {WINDOW} bytes")


def overlap(held: Iterable[Document], train: Iterable[Document]) -> tuple[Float64[np.ndarray, " D"],
                                                                        Int64[np.ndarray, " D"]]:
    """The share of each held-out document that stands in the training text, and the document's bytes, both without
    capitals and with single spaces. A blank document has the share 0."""
    content, ends = _together(held)
    places = np.flatnonzero(_starts(content, ends))
    hashes = np.concatenate([_NONE, *_hashes(content)])[places]
    wanted = np.sort(hashes)
    met = _met(wanted, train)
    found = np.zeros(len(content), dtype=np.bool_)
    found[places] = met[np.searchsorted(wanted, hashes)]
    return _shares(found, ends)


def clusters(documents: Sequence[Document], size_bytes: int) -> Int64[np.ndarray, " D"]:
    """The number of the first document in each document's cluster: those that share much, directly or through others.

    Two documents are joined if `FOUND` of the stretches of the smaller one stand in the other. That is counted on a
    sample of the stretches, chosen by their hashes as in Broder 1997 (section 4, modulo m), so that the same stretch is
    chosen in every document; of the documents in which one stands, those that follow each other are compared. Time is
    linear in the text, memory bounded but for 16 bytes a document.

    Args:
        documents: which are read once.
        size_bytes: of all of them.
    """
    every = np.uint64(1 + size_bytes // MOST_SAMPLED)
    sampled = [_sample(document, every) for document in documents]
    counts = np.array([len(each) for each in sampled], dtype=np.int64)
    hashes, owners = np.concatenate([_NONE, *sampled]), np.repeat(np.arange(len(counts)), counts)
    order = np.argsort(hashes, kind="stable")  # of equal hashes, in the order of the documents
    same = hashes[order][1:] == hashes[order][:-1]
    pairs, shared = np.unique(np.stack([owners[order][:-1][same], owners[order][1:][same]]), axis=1, return_counts=True)
    first, second = pairs[:, shared >= FOUND * np.minimum(*counts[pairs])]
    numbers = np.arange(len(counts))
    while True:  # a document takes the smaller number of two, and then the number of the document of that number
        least, before = np.minimum(numbers[first], numbers[second]), numbers.copy()
        np.minimum.at(numbers, first, least)
        np.minimum.at(numbers, second, least)
        numbers = numbers[numbers]
        if np.array_equal(numbers, before):
            return numbers


def _sample(document: Document, every: np.uint64) -> Hashes:
    """One in ``every`` of a document's hashes, each once; the smallest if there is none, and none of a blank one."""
    content = b"".join(_plain(document))
    if not content:
        return _NONE
    within = np.frombuffer(content if len(content) >= WINDOW else (content + BORDER)[:WINDOW], dtype=np.uint8)
    found = np.unique(np.concatenate(list(_hashes(within))))
    chosen: Hashes = found[(found >> np.uint64(40)) % every == 0]
    return chosen if len(chosen) else found[:1]


def _met(wanted: Hashes, train: Iterable[Document]) -> Bool[np.ndarray, " n"]:
    """Whether each of the sorted hashes is one of a stretch of the training text; of equal ones, the first says it."""
    bits = min(MOST_BITS, (PER_HASH * len(wanted)).bit_length() + 1)
    table, met = np.zeros(1 << bits, dtype=np.bool_), np.zeros(len(wanted), dtype=np.bool_)
    table[_short(wanted, bits)] = True
    for block in _blocks(train):
        for hashes in _hashes(block):
            likely = np.sort(hashes[table[_short(hashes, bits)]])  # in order, the search below stays in the cache
            place = np.minimum(np.searchsorted(wanted, likely), max(0, len(wanted) - 1))
            met[place[wanted[place] == likely]] = True
    return met


def _short(hashes: Hashes, bits: int) -> Int64[np.ndarray, " n"]:
    short: Int64[np.ndarray, " n"] = (hashes >> np.uint64(64 - bits)).astype(np.int64)
    return short


def _shares(found: Bool[np.ndarray, " n"],
            ends: Int64[np.ndarray, " D"]) -> tuple[Float64[np.ndarray, " D"], Int64[np.ndarray, " D"]]:
    """The part of each document that lies in a stretch which begins at a place of ``found``."""
    firsts = np.concatenate([[0], ends[:-1] + WINDOW]).astype(np.int64)[:len(ends)]
    places = np.arange(len(found), dtype=np.int32)
    last = np.maximum.accumulate(np.where(found, places, np.int32(-WINDOW)))
    inside = np.concatenate([[0], np.cumsum(places - last < WINDOW)])
    sizes = ends - firsts
    # The stretch of a short document goes on into the border behind it, which is none of its bytes.
    return (inside[ends] - inside[firsts]) / np.maximum(sizes, 1), sizes


def _starts(content: UInt8[np.ndarray, " n"], ends: Int64[np.ndarray, " D"]) -> Bool[np.ndarray, " m"]:
    """Where stretches begin that are looked for: those within a document, and the whole of a short one."""
    valid = np.zeros(max(0, len(content) - WINDOW + 1), dtype=np.bool_)
    for first, end in zip([0, *(ends[:-1] + WINDOW).tolist()], ends.tolist(), strict=False):
        if end > first:
            valid[first:max(first + 1, end - WINDOW + 1)] = True
    return valid


def _together(documents: Iterable[Document]) -> tuple[UInt8[np.ndarray, " n"], Int64[np.ndarray, " D"]]:
    """Documents one after another with borders, and where each ends."""
    content, ends = bytearray(), list[int]()
    for document in documents:
        for piece in _plain(document):
            content += piece
        ends.append(len(content))
        content += BORDER
    return np.frombuffer(bytes(content), dtype=np.uint8), np.array(ends, dtype=np.int64)


def _blocks(documents: Iterable[Document]) -> Iterator[UInt8[np.ndarray, " n"]]:
    """The same in blocks, each of which begins with the last bytes of the one before."""
    held, size = list[bytes](), 0
    for document in documents:
        for piece in (*_plain(document), BORDER):
            held.append(piece)
            size += len(piece)
            if size >= BLOCK:
                content = b"".join(held)
                yield np.frombuffer(content, dtype=np.uint8)
                held, size = [content[1 - WINDOW:]], WINDOW - 1
    if size >= WINDOW:
        yield np.frombuffer(b"".join(held), dtype=np.uint8)


def _plain(document: Document) -> Iterator[bytes]:
    """A text in small letters with single spaces, in parts."""
    begun, spaced = False, False
    for part in document.parts():
        words = part.lower().split()
        if words:
            yield (" " if begun and (spaced or part[0].isspace()) else "").encode() + " ".join(words).encode()
            begun, spaced = True, False
        spaced = spaced or part[-1].isspace()


def _hashes(content: UInt8[np.ndarray, " n"]) -> Iterator[Hashes]:
    """A hash of each stretch of `WINDOW` bytes, in blocks: the value of a polynomial modulo 2^64, by prefix sums."""
    powers, inverse = _powers()
    for first in range(0, len(content) - WINDOW + 1, BLOCK):
        block = content[first:first + BLOCK + WINDOW - 1]
        sums = np.zeros(len(block) + 1, dtype=np.uint64)
        np.cumsum(_DRAWN[block] * powers[:len(block)], out=sums[1:])
        yield (sums[WINDOW:] - sums[:-WINDOW]) * inverse[:len(block) - WINDOW + 1]


@cache
def _powers() -> tuple[Hashes, Hashes]:
    """The powers of a factor and of its inverse modulo 2^64."""
    first, second = (np.cumprod(np.concatenate([np.ones(1, dtype=np.uint64), np.full(
        BLOCK + WINDOW, base, dtype=np.uint64)])) for base in (FACTOR, pow(FACTOR, -1, 1 << 64)))
    return first, second


_NONE = np.zeros(0, dtype=np.uint64)
_DRAWN = np.random.default_rng(0).integers(1 << 63, size=256, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
