"""Duplicates: how many held-out documents are also in the training text."""

from __future__ import annotations

from typing import NamedTuple, final

from weft.data.corpus import Corpus


@final
class Repeated(NamedTuple):
    """Documents of a held-out text.

    Attributes:
        found: documents whose text is byte for byte that of a training document; blank documents are left out.
        of: all of them.
    """

    found: int
    of: int

    def describe(self) -> str:
        """Both numbers in words."""
        return f"{self.found:,} of {self.of:,} documents also stand, word for word, in the training text"


def repeated(held: Corpus, train: Corpus) -> Repeated:
    """How many documents of ``held`` are also in ``train``.

    Texts are read once and compared by hashes of 16 bytes; only those of ``held`` are kept in memory.
    """
    texts = [document for document in held.documents if any(part.strip() for part in document.parts())]
    digests = [document.digest() for document in texts]
    sizes = {document.size_bytes for document in texts}
    waiting = set(digests)
    found = {digest for document in train.documents if document.size_bytes in sizes
             and (digest := document.digest()) in waiting}
    return Repeated(sum(digest in found for digest in digests), len(held.documents))
