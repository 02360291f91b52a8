"""A corpus: named documents of text, with a hash; how it is limited and split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias, overload

import numpy as np
from jaxtyping import Bool, Float64

from weft.core.errors import DataError
from weft.data.document import Document
from weft.data.document_buffer import Documents, documents_of
from weft.data.duplicates import FOUND, Repeated, clusters, overlap
from weft.data.utf8 import LINE_END, character_at, character_count, character_start, find_byte, parts_of
from weft.tokenizers.split_points import PartedTexts

FEWEST_TO_SPLIT = 100
BORDERS = b"\xff" * 8
"""Precedes a document's borders in the hash of a corpus: a length that no name and no text has."""
Split: TypeAlias = tuple["Corpus", "Corpus"]
SplitBy: TypeAlias = Literal["name", "content", "copies"]
MOST_SEARCHED = 1 << 26
"""Bytes of held-out text that are searched for in the training text, at some 50 bytes of memory each; of a longer text,
documents spread over it."""


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order.

    Attributes:
        documents: the documents, with distinct names.
        version: edition of the source, or empty.
        whole: documents are never cut, however few there are, since a part of a record with several fields is no
            record.
        files: of documents that are made of line i of several text files, these files, in the order of a document's
            values.
    """

    name: str
    documents: Sequence[Document]
    version: str = ""
    whole: bool = False
    files: tuple[str, ...] = ()

    @cached_property
    def size_bytes(self) -> int:
        """UTF-8 bytes of all documents."""
        return int(documents_of(self.documents).sizes().sum(dtype=np.int64))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 (hexadecimal) of the documents' names, texts and borders, in order; each name and text is preceded
        by its length."""
        digest = hashlib.sha256()
        for document in self.documents:
            for content in (memoryview(document.name.encode()), document.utf8):
                digest.update(len(content).to_bytes(8, "little"))
                for _, part in parts_of(content):
                    digest.update(part)
            if document.borders:
                digest.update(BORDERS + repr(document.borders).encode())
        return digest.hexdigest()

    def texts(self) -> Sequence[str]:
        """The text of each document, decoded on each access."""
        return _Texts(self.documents)

    def place_of(self, document: Document, value: int) -> str:
        """Where that value of a document's stands, for messages: file and line, or the document's name where all of its
        values are in one file."""
        return f"{self.files[value]}, line {document.name.rpartition(':')[2]}" if self.files else document.name

    def describe(self) -> str:
        """Name, version, size and hash in one line."""
        version = f" {self.version}" if self.version else ""
        count = f"{len(self.documents)} document{'' if len(self.documents) == 1 else 's'}"
        return f"{self.name}{version}: {count}, {self.size_bytes:,} bytes, sha256 {self.sha256}"

    def limited(self, max_bytes: int, *, seed: int = 0) -> Corpus:
        """At most ``max_bytes`` of this corpus: whole documents in the order of a seeded hash of their names.

        A document that does not fit into the rest is skipped. If none fits, the first in that order is cut after the
        last character that fits. The chosen documents keep the corpus's order.

        Raises:
            DataError: the limit is below one byte, below the first character, or below every document that must stay
                whole.
        """
        if max_bytes < 1:
            raise DataError(f"the limit must be at least 1 byte, received {max_bytes}.", where="max_bytes",
                            remedy="Raise it.")
        if self.size_bytes <= max_bytes:
            return self
        documents = documents_of(self.documents)
        order = np.argsort(_ranks("limit", seed, (document.name for document in documents), len(documents)),
                           kind="stable")
        sizes = documents.sizes()
        order = order[sizes[order] > 0]
        chosen = _fitting(sizes, order, max_bytes)
        if len(chosen):
            return replace(self, documents=documents.select(chosen))
        if self.whole:
            raise DataError(f"a limit of {max_bytes} bytes does not hold one whole record.", where=self.name,
                            remedy="Raise max_bytes.")
        return replace(self, documents=(_cut(documents[int(order[0])], max_bytes),))

    def split(self, validation: float = 0.1, *, seed: int = 0, by: SplitBy = "name") -> Split:
        """Split into training and validation parts by document, so that no document is in both.

        The part of a document depends on its name, or on its text, and on the seed alone, so it does not change when
        other documents are added or removed. Documents with the same text and different names may be in different parts
        when names decide (see `weft.data.duplicates`), but not when texts do. By ``copies``, documents that share much
        are in one part, that of the name which comes first among theirs, and what is held out has no document of which
        `FOUND` stands in the training text: the last are moved there, which holds out less than the share. With fewer
        than 100 documents, the last ``validation`` of each document's characters, from the next line start on if there
        is one, is held out instead. Documents that must stay `whole`, or are split by ``copies``, are never divided so.

        Args:
            validation: the share to hold out, above 0 and below 1.
            by: whether a document's ``name``, its ``content``, or the document with its near ``copies`` decides.

        Raises:
            DataError: the share is outside (0, 1), or the corpus is too small to give both parts text.
        """
        if not 0.0 < validation < 1.0:
            raise DataError(f"the share held out must be above 0 and below 1, received {validation}.",
                            where="validation", remedy="Give a share such as 0.1.")
        by_document = self.whole or by == "copies" or len(self.documents) >= FEWEST_TO_SPLIT
        parts = self._by_document(validation, seed, by) if by_document else self._within_documents(validation)
        train, held_out = (replace(self, name=f"{self.name} ({side})", documents=documents) for side,
                           documents in zip(("train", "validation"), parts, strict=True))
        if not train.size_bytes or not held_out.size_bytes:
            raise DataError(f"{self.size_bytes} bytes are too few to hold out a share of {validation}.",
                            where=self.name, remedy="Give more text, or a separate validation text.")
        return train, held_out

    def _by_document(self, share: float, seed: int, by: SplitBy) -> tuple[Documents, Documents]:
        """Documents with the same key have the same rank, so they stay together. The lowest rank is always held out,
        and the highest never."""
        documents = documents_of(self.documents)
        ranks = _ranks("split", seed, self._keys(by), len(documents))
        first, last = ranks.min(initial=1), ranks.max(initial=0)
        held = (ranks == first) | ((ranks < share) & (ranks != last))
        if by == "copies":
            _move_copies(documents, held)
        if first >= last or not held.any():
            raise self._indivisible(by)
        return documents.select(np.flatnonzero(~held)), documents.select(np.flatnonzero(held))

    def _keys(self, by: SplitBy) -> Iterator[str]:
        if by != "copies":
            return (document.name if by == "name" else document.digest().hex() for document in self.documents)
        names, first = [document.name for document in self.documents], dict[int, str]()
        numbers = clusters(self.documents, self.size_bytes).tolist()
        for name, number in sorted(zip(names, numbers, strict=True)):
            first.setdefault(number, name)
        return (first[number] for number in numbers)

    def _indivisible(self, by: SplitBy) -> DataError:
        count = len(self.documents)
        what = ("one record cannot be divided" if count == 1 else f"all {count} documents share much of their text"
                if by == "copies" else f"all {count} documents have the same text")
        return DataError(f"{what}, so none can be held out.", where=self.name,
                         remedy="Give more text, or a separate validation text.")

    def _within_documents(self, share: float) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
        pairs = [(document, _place_to_cut(document.utf8, share)) for document in self.documents]
        heads = (Document(document.name, document.utf8[:place]) for document, place in pairs)
        tails = (Document(document.name, document.utf8[place:]) for document, place in pairs)
        return _with_text(heads), _with_text(tails)


def repeated(held: Corpus, train: Corpus) -> Repeated:
    """How much of ``held`` is also in ``train``. Texts are read once; the time is linear in both."""
    searched = documents_of(held.documents)
    every = max(1, -(-held.size_bytes // MOST_SEARCHED))
    if every > 1:
        searched = searched.select(np.arange(0, len(searched), every))
    return Repeated.over(*overlap(searched, train.documents))


def _move_copies(documents: Documents, held: Bool[np.ndarray, " n"]) -> None:
    """Mark as not held out what the training text has, until it has none of it. A document that goes there may be what
    others are found by. Of more than `MOST_SEARCHED` bytes nothing is moved."""
    while held.any() and int(documents.sizes()[held].sum(dtype=np.int64)) <= MOST_SEARCHED:
        places = np.flatnonzero(held)
        found = overlap(documents.select(places), documents.select(np.flatnonzero(~held)))[0] >= FOUND
        if not found.any():
            return
        held[places[found]] = False


class _Texts(PartedTexts):
    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents

    def __len__(self) -> int:
        return len(self._documents)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        found = self._documents[place]
        return found.text if isinstance(found, Document) else _Texts(found)

    def parted(self) -> Iterator[Iterator[str]]:
        return (document.parts() for document in self._documents)


def _ranks(purpose: str, seed: int, names: Iterable[str], count: int) -> Float64[np.ndarray, " n"]:
    """A pseudo-random number in [0, 1) for each name. Limiting and splitting have different purposes, so their choices
    are independent."""
    hashes = (hashlib.sha256(f"{purpose}\0{seed}\0{name}".encode()).digest() for name in names)
    return np.fromiter((int.from_bytes(each[:6], "big") / 2.0**48 for each in hashes), np.float64, count)


def _fitting(sizes: np.ndarray, order: np.ndarray, max_bytes: int) -> np.ndarray:
    """The indices, ascending, of the documents that fit into ``max_bytes``, taken greedily in ``order``."""
    chosen, left = np.zeros(len(sizes), dtype=np.bool_), max_bytes
    for number in order:
        size = int(sizes[number])
        if size <= left:
            chosen[number] = True
            left -= size
    return np.flatnonzero(chosen)


def _cut(document: Document, max_bytes: int) -> Document:
    place = character_start(document.utf8, max_bytes)
    if not place:
        raise DataError(f"a limit of {max_bytes} bytes does not hold the first character.", where=document.name,
                        remedy="Raise max_bytes.")
    return document.until(place)


def _place_to_cut(content: memoryview, share: float) -> int:
    """The byte at which the held-out share of a document begins: the next line start, if there is one."""
    place = character_at(content, int(character_count(content) * (1.0 - share)))
    line_end = find_byte(content, LINE_END, place)
    return line_end + 1 if 0 <= line_end < len(content) - 1 else place


def _with_text(documents: Iterable[Document]) -> tuple[Document, ...]:
    return tuple(document for document in documents if document.size_bytes)
