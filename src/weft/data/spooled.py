"""A corpus as one row of tokens that are kept on disk from some size on."""

from __future__ import annotations

from typing import final

import numpy as np

from weft.data.array import TokenArray, join
from weft.data.corpus import Corpus
from weft.data.duplicates import Repeated
from weft.data.encoding import encode_documents
from weft.data.layout import layout_of
from weft.data.spool import Spool
from weft.data.stream import SCORED, TokenStream, require_tokens
from weft.tokenizers import Tokenizer


def spooled_corpus(corpus: Corpus, tokenizer: Tokenizer, *, repeated: Repeated | None = None) -> TokenStream:
    """A stream as `weft.data.encode_corpus` returns it, with each array in an unnamed temporary file once it has 64
    MiB.

    Besides the corpus only the tokens of some documents at a time are in memory, and the parts of the files in use,
    which the operating system may drop.

    Raises:
        DataError: the corpus gives no token, or none that is scored; or the folder for temporary files is full.
        TokenizerError: the tokenizer cannot express a text; ``where`` names the document.
    """
    layout = layout_of(tokenizer)
    ids, begins, lengths, scored, lost = (_Column(corpus.name) for _ in range(5))
    for row in layout.rows(encode_documents(corpus.documents, tokenizer)):
        narrow = row.narrow(tokenizer.vocab_size)
        ids.add(narrow.ids)
        begins.add(narrow.begins)
        lengths.add(narrow.byte_lengths)
        scored.add(narrow.scored)
        lost.add(np.zeros(0, dtype=np.float32) if narrow.lost is None else narrow.lost)
    require_tokens(ids.size, scored.ones, corpus)
    flags = None if scored.ones == scored.size else _flags(scored.array())
    return TokenStream(
        tokens=ids.array(), begins=begins.array(), byte_lengths=lengths.array(), begins_scored=layout.begins_scored,
        vocab_size=tokenizer.vocab_size, corpus=corpus.name, corpus_sha256=corpus.sha256,
        tokenizer_sha256=tokenizer.fingerprint(), repeated=repeated, flags=flags,
        lost=lost.array() if layout.pays else None)


@final
class _Column:
    """An array that grows, in stretches of one dtype each.

    Attributes:
        size: items so far.
        ones: those that are not zero.
    """

    def __init__(self, where: str) -> None:
        self._spool = Spool(where)
        self._stretches: list[tuple[np.dtype, int]] = []
        self.size, self.ones = 0, 0

    def add(self, values: np.ndarray) -> None:
        if not len(values):
            return
        self._spool.add(values.tobytes())
        self.size += len(values)
        self.ones += int(np.count_nonzero(values))
        if self._stretches and self._stretches[-1][0] == values.dtype:
            self._stretches[-1] = (values.dtype, self._stretches[-1][1] + len(values))
        else:
            self._stretches.append((values.dtype, len(values)))

    def array(self) -> TokenArray:
        """All items; nothing may be added afterwards."""
        content, place, parts = self._spool.view(), 0, list[np.ndarray]()
        for dtype, count in self._stretches:
            parts.append(np.frombuffer(content, dtype=dtype, count=count, offset=place))
            place += count * dtype.itemsize
        return join(parts)


def _flags(scored: TokenArray) -> TokenArray:
    """The flags of tokens by whether each is scored: a byte of 1 or 0 either way."""
    assert SCORED == 1, "a boolean byte is the flag"
    parts = [scored] if isinstance(scored, np.ndarray) else list(scored.parts)
    return join([np.asarray(part).view(np.uint8) for part in parts])
