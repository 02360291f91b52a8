"""Tokens in shards: written one after the other, mapped into memory when they are read."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Shaped

from weft.data.array import TokenArray, join
from weft.data.manifest import ArrayFile, Part, Shard, sample_hash
from weft.data.stream import Enclosed, begins_of, narrow

SHARD_TOKENS = 1 << 25
"""A shard ends with the document that fills it, or within one that would make it twice as long. Its 4 bytes or so per
token are held in memory until then."""


@final
class ShardWriter:
    """Writes one part of a corpus, document by document.

    Args:
        folder: where the files go.
        part: ``train``, ``validation`` or ``test``.
        vocab_size: decides the type of the ids.
        shard_tokens: a shard ends with the document that brings it to this many tokens, or within one that would bring
            it to twice as many.
    """

    def __init__(self, folder: Path, part: str, vocab_size: int, shard_tokens: int = SHARD_TOKENS) -> None:
        self.folder, self.part, self.shard_tokens = folder, part, shard_tokens
        self._vocab_size = vocab_size
        self._pieces: list[Enclosed] = []
        self._held = 0
        self.shards: list[Shard] = []
        self.tokens = 0

    def add(self, piece: Enclosed) -> None:
        """Add a document, a stretch of one, or what stands at the end of the row."""
        # A document that is many times as long as a shard is not held until its end.
        full = self._held >= (self.shard_tokens if piece.begins else 2 * self.shard_tokens)
        if full:
            self.flush()
        self._pieces.append(narrow(piece, self._vocab_size))
        self._held += len(piece.ids)
        self.tokens += len(piece.ids)

    def flush(self) -> None:
        """Write what is held as a shard."""
        if not self._held:
            return
        # One array after the other: the largest is the memory that writing takes besides the pieces.
        self.shards.append(Shard(
            length=self._held,
            tokens=self._write("tokens", np.concatenate([piece.ids for piece in self._pieces])),
            begins=self._write("begins", begins_of(self._pieces)),
            byte_lengths=self._write("bytes", np.concatenate([piece.byte_lengths for piece in self._pieces]))))
        self._pieces, self._held = [], 0

    def _write(self, what: str, values: Shaped[np.ndarray, " n"]) -> ArrayFile:
        path = self.folder / f"{self.part}-{len(self.shards):05d}.{what}.bin"
        content = values.astype(values.dtype.newbyteorder("<"), copy=False).view(np.uint8).data
        path.write_bytes(content)
        return ArrayFile(name=path.name, dtype=values.dtype.name, bytes=len(content),
                         sha256=hashlib.sha256(content).hexdigest(), sample_sha256=sample_hash(path))


def map_part(folder: Path, part: Part) -> tuple[TokenArray, TokenArray, TokenArray]:
    """Tokens, begins and byte lengths of a part, none of it read yet."""
    tokens, begins, lengths = zip(
        *([_map(folder, file, shard.length) for file in shard.files] for shard in part.shards), strict=True)
    return join(tokens), join(begins), join(lengths)


def _map(folder: Path, file: ArrayFile, length: int) -> Shaped[np.ndarray, " n"]:
    dtype = np.dtype(file.dtype).newbyteorder("<")
    # As a plain array: np.memmap's own indexing costs several times as much on small selections.
    return np.asarray(np.memmap(folder / file.name, dtype=dtype, mode="r", shape=(length,)))
