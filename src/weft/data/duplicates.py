"""Documents of the same text: how many of those held out stand in the training text too."""

from __future__ import annotations

from typing import NamedTuple, final

from weft.data.corpus import Corpus


@final
class Repeated(NamedTuple):
    """Documents of a held-out text.

    Attributes:
        found: those whose text is that of a document of the training text, to the last byte; blank ones, which say
            nothing, are left out.
        of: all of them.
    """

    found: int
    of: int

    def describe(self) -> str:
        """In a few words."""
        return f"{self.found:,} of {self.of:,} documents also stand, word for word, in the training text"


def repeated(held: Corpus, train: Corpus) -> Repeated:
    """How many documents of ``held`` stand in ``train`` too.

    Texts are read once and compared by hashes of 16 bytes, of which those of ``held`` are kept.
    """
    texts = [document for document in held.documents if any(part.strip() for part in document.parts())]
    wanted = [document.digest() for document in texts]
    sizes = {document.size_bytes for document in texts}
    waiting = set(wanted)
    found = {digest for document in train.documents if document.size_bytes in sizes
             and (digest := document.digest()) in waiting}
    return Repeated(sum(digest in found for digest in wanted), len(held.documents))
