"""Tokens in shards: written one after another, and read by the window."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from jaxtyping import Int64, Shaped

from weft.data.array import Part as ArrayPart
from weft.data.array import TokenArray, join
from weft.data.layout import RowPart
from weft.data.prepared_manifest import ArrayFile, PreparedPart, Shard, sample_hash
from weft.data.stored_array import StoredArray
from weft.data.stream import SCORED, flags_of

SHARD_TOKENS = 1 << 25
"""Tokens of a shard: it ends with the document that reaches this size, or within one that would reach twice as much.
Its tokens, about 4 bytes each, are held in memory until then."""


class ShardWriter:
    """Writes the row of tokens of one part of a corpus, piece by piece.

    Args:
        part: ``train``, ``validation`` or ``test``.
        vocab_size: decides the dtype of the ids.
        shard_tokens: a shard ends with the document that reaches this many tokens, or within one that would reach twice
            as many.
    """

    def __init__(self, folder: Path, part: str, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self.folder, self.part, self.shard_tokens = folder, part, shard_tokens
        self._vocab_size = vocab_size
        self._rows: list[RowPart] = []
        self._held = 0
        self.shards: list[Shard] = []
        self.tokens, self.scored = 0, 0

    def add(self, row: RowPart) -> None:
        """Add a piece of the row: whole documents, or the beginning, middle or end of one."""
        starts, first = np.flatnonzero(row.begins), 0
        while first + self._room(starts, first) < len(row.ids):
            last = first + self._room(starts, first)
            self._hold(row.cut(first, last))
            self.flush()
            first = last
        self._hold(row.cut(first, len(row.ids)))

    def flush(self) -> None:
        """Write the tokens in memory as a shard."""
        if not self._held:
            return
        scored = np.concatenate([row.scored for row in self._rows])
        flags = flags_of(scored)
        lost = [row.lost for row in self._rows if row.lost is not None]
        # One array after another, so that only one of them is in memory besides the rows.
        self.shards.append(Shard(
            length=self._held,
            tokens=self._write("tokens", np.concatenate([row.ids for row in self._rows])),
            begins=self._write("begins", np.concatenate([row.begins for row in self._rows])),
            byte_lengths=self._write("bytes", np.concatenate([row.byte_lengths for row in self._rows])),
            flags=None if flags is None else self._write("flags", flags),
            lost=self._write("lost", np.concatenate(lost)) if lost else None))
        self._rows, self._held = [], 0

    def _room(self, starts: Int64[np.ndarray, " n"], first: int) -> int:
        """How many tokens from ``first`` of a piece on still go into this shard: up to the first document that begins
        after the shard is full, and at most up to twice the size of a shard."""
        full = first + max(0, self.shard_tokens - self._held)
        following = starts[np.searchsorted(starts, full):]
        most = 2 * self.shard_tokens - self._held
        return most if not len(following) else min(int(following[0]) - first, most)

    def _hold(self, row: RowPart) -> None:
        if len(row.ids):
            self._rows.append(row.narrow(self._vocab_size))
            self._held += len(row.ids)
            self.tokens += len(row.ids)
            self.scored += int(row.scored.sum())

    def _write(self, what: str, values: Shaped[np.ndarray, " n"]) -> ArrayFile:
        path = self.folder / f"{self.part}-{len(self.shards):05d}.{what}.bin"
        content = values.astype(values.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
        path.write_bytes(content)
        return ArrayFile(name=path.name, dtype=values.dtype.name, bytes=len(content),
                         sha256=hashlib.sha256(content).hexdigest(), sample_sha256=sample_hash(path))


def open_part(folder: Path, part: PreparedPart) -> tuple[TokenArray, TokenArray, TokenArray, TokenArray | None,
                                                         TokenArray | None]:
    """The arrays of a part: tokens, document starts, bytes of each token; flags and lost nats, None where it has none.
    Raises `DataError`: a file cannot be read or is too short; so does whatever reads the arrays."""
    tokens, begins, lengths = zip(
        *([_open(folder, file, shard.length) for file in (shard.tokens, shard.begins, shard.byte_lengths)]
          for shard in part.shards), strict=True)
    lost = [_open(folder, shard.lost, shard.length) for shard in part.shards if shard.lost is not None]
    return join(tokens), join(begins), join(lengths), _flags(folder, part), join(lost) if lost else None


def _flags(folder: Path, part: PreparedPart) -> TokenArray | None:
    """The flags of all tokens; None if no shard has any. All tokens of a shard without flags are scored."""
    if all(shard.flags is None for shard in part.shards):
        return None
    return join([np.broadcast_to(np.uint8(SCORED), (shard.length,)) if shard.flags is None
                 else _open(folder, shard.flags, shard.length) for shard in part.shards])


def _open(folder: Path, file: ArrayFile, length: int) -> ArrayPart:
    return StoredArray(folder / file.name, np.dtype(file.dtype).newbyteorder("<"), length)
