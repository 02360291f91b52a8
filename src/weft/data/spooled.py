"""A corpus as one row of tokens that are kept on disk from some size on.

Bytes that are appended and then read: in memory, or beyond a limit in an unnamed temporary file.
"""

from __future__ import annotations

import mmap
import tempfile

import numpy as np

from weft.core.errors import DataError
from weft.data.array import TokenArray, join
from weft.data.corpus import Corpus
from weft.data.duplicates import Repeated
from weft.data.encoding import encode_documents
from weft.data.layout import layout_of
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


class _Column:
    """An array that grows, in stretches of one dtype each.

    Attributes:
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


HELD_BYTES = 1 << 26
"""Bytes from which on the content goes to disk."""


class Spool:
    """Appends bytes. Up to ``limit`` they are kept in memory; beyond it they are written to an unnamed file in the
    folder for temporary files (``TMPDIR``), which is memory-mapped for reading and disappears with its last reader.

    Args:
        where: the data's name, for the message about a full disk.
        limit: bytes that are kept in memory.
    """

    def __init__(self, where: str, *, limit: int = HELD_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=limit)  # noqa: SIM115, closed with its last view
        self._where, self._limit, self.size = where, limit, 0

    def add(self, content: bytes | memoryview) -> None:
        """Append. Raises `DataError`: the folder for temporary files cannot be written to."""
        try:
            self._file.write(content)
        except OSError as error:
            raise self._full(error) from None
        self.size += len(content)

    def view(self) -> memoryview:
        """All that was added; nothing may be added afterwards. Raises `DataError`: as `add`."""
        try:
            if self.size <= self._limit:
                self._file.seek(0)
                return memoryview(self._file.read())
            self._file.flush()
            return memoryview(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ))
        except OSError as error:
            raise self._full(error) from None
        finally:
            self._file.close()

    def _full(self, error: OSError) -> DataError:
        return DataError(f"{self.size:,} bytes and more cannot be kept in {tempfile.gettempdir()} "
                         f"({error.strerror or error}).", where=self._where,
                         remedy="Free space there, or name another folder in TMPDIR.")
