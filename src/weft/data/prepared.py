"""Prepared folders: reading their streams and tokenizers, and writing them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from weft.core.errors import CheckpointError, DataError, nearest
from weft.core.version import VERSION
from weft.data.corpus import Corpus, repeated
from weft.data.duplicates import Repeated
from weft.data.encoding import encode_documents
from weft.data.layout import RowPart, layout_of
from weft.data.prepared_manifest import (
    AGAIN,
    Depth,
    Manifest,
    PreparationRecipe,
    PreparedPart,
    SourceFile,
    TokenizerEntry,
    check_files,
    is_prepared,
    read_prepared_manifest,
    write_prepared_manifest,
)
from weft.data.shards import SHARD_TOKENS, ShardWriter, open_part
from weft.data.stream import TokenStream, require_tokens
from weft.disk.manifest import MANIFEST_FILE, FileEntry, sha256_of
from weft.disk.ownership import by_manifest, not_listed
from weft.tokenizers import Tokenizer

TRAIN = "train"
PAYING = 4
"""The first format with the nats of text that a tokenizer loses."""


@dataclass(frozen=True)
class PreparationProgress:
    """How far a preparation has come.

    Attributes:
        part: that is being encoded: train, validation or test.
        done: bytes of text encoded so far.
        total: bytes of text in the part.
        seconds: since the beginning of the part.
    """

    part: str
    done: int
    total: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        """The remaining time at the same speed."""
        return self.seconds * (self.total - self.done) / self.done if self.done else float("inf")

    def line(self) -> str:
        """The progress in one line."""
        speed = self.done / self.seconds / 1e6 if self.seconds else 0.0
        return (f"{self.part}: {self.done / self.total:4.0%} of {self.total / 1e6:,.1f} MB, {speed:.2f} MB/s, "
                f"{self.seconds_left:,.0f} s left")


OnProgress = Callable[[PreparationProgress], None]


@dataclass(frozen=True)
class PreparedData:
    """A checked folder of tokens, see `open_prepared`."""

    path: Path
    manifest: Manifest

    def part(self, name: str) -> PreparedPart:
        """Train, validation or test. Raises `DataError`: the folder lacks it."""
        if name not in self.manifest.parts:
            raise DataError(f"the folder has no part {name!r}.", where=str(self.path),
                            remedy=nearest(name, self.manifest.parts))
        return self.manifest.parts[name]

    def stream(self, name: str) -> TokenStream:
        """The row of tokens of a part, of which only what is in use is read. Raises `DataError`: the folder lacks the
        part, or a file of it cannot be read; so does whatever reads the row."""
        part = self.part(name)
        tokens, begins, byte_lengths, flags, lost = open_part(self.path, part)
        # Unknown where the folder was made before lost text was paid for, by a tokenizer that may lose some.
        if lost is None and self.manifest.format < PAYING and not self.tokenizer().keeps_text:
            lost = np.broadcast_to(np.float32(np.nan), (part.tokens,))
        return TokenStream(tokens, begins, byte_lengths, self.manifest.begins_scored,
                           self.manifest.tokenizer.vocab_size, part.corpus, part.corpus_sha256,
                           self.manifest.tokenizer.fingerprint, part.repeated, flags, lost=lost)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens.

        Raises:
            CheckpointError: its files are missing, damaged or changed.
            DataError: the files are those of another tokenizer.
        """
        from weft.tokenizers.config import known_tokenizers
        from weft.tokenizers.files import load_tokenizer

        tokenizer = load_tokenizer(self.path, kinds=known_tokenizers())
        if tokenizer.fingerprint() != self.manifest.tokenizer.fingerprint:
            raise DataError("the tokenizer is not the one that the tokens were made with.", where=str(self.path),
                            remedy=AGAIN)
        return tokenizer

    def changed_sources(self) -> dict[str, str]:
        """Source files that are no longer the same: by path, ``changed`` or ``missing``."""
        found: dict[str, str] = {}
        for source in self.manifest.sources:
            path = Path(source.path)
            if not path.is_file():
                found[source.path] = "missing"
            elif path.stat().st_size != source.bytes or sha256_of(path) != source.sha256:
                found[source.path] = "changed"
        return found


def open_prepared(path: str | Path, *, check: Depth = "sample") -> PreparedData:
    """The prepared data of a folder.

    Args:
        check: what is compared with the manifest: the files' sizes; also samples of at most 16 MiB of each file; or all
            of their content.

    Raises:
        DataError: the folder is not a prepared one, is damaged, or is of a newer format.
    """
    folder = Path(path)
    if not is_prepared(folder):
        raise DataError("not a folder of prepared data.", where=str(folder),
                        remedy="Make one with: weft data prepare SOURCE --out FOLDER")
    manifest = read_prepared_manifest(folder)
    check_files(folder, manifest, check)
    return PreparedData(folder, manifest)


def by_prepared_manifest(folder: Path) -> list[str]:
    """The proof of a folder that `write_prepared` has filled, see `weft.disk.ownership.Proof`."""
    try:
        manifest = read_prepared_manifest(folder)
    except DataError:
        return by_manifest(folder)
    try:
        files = PreparedData(folder, manifest).tokenizer().saved()
    except (CheckpointError, DataError):
        files = {}
    listed = {file.name: FileEntry(file.bytes, file.sha256) for file in manifest.files}
    listed |= {name: FileEntry(len(content), hashlib.sha256(content).hexdigest()) for name, content in files.items()}
    return not_listed(folder, listed, {MANIFEST_FILE})


@dataclass(frozen=True)
class EncodingTexts:
    """Texts to be encoded.

    Attributes:
        parts: ``train``, ``validation`` and perhaps ``test``.
        corpus: the whole text in one line.
        corpus_sha256: hash of the whole text.
        sources: the files that it was read from; empty for the text that comes with Python.
        recipe: settings with which it was read.
    """

    parts: Mapping[str, Corpus]
    corpus: str
    corpus_sha256: str
    sources: tuple[SourceFile, ...]
    recipe: PreparationRecipe

    def repeated(self) -> dict[str, Repeated]:
        """How much of each held-out part is also in the training text."""
        return {name: repeated(corpus, self.parts[TRAIN]) for name, corpus in self.parts.items() if name != TRAIN}


class DocumentEncoder(Protocol):
    """Converts documents to a row of tokens with flags."""

    @property
    def begins_scored(self) -> bool:
        """See `weft.data.stream.TokenStream`."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that is saved, once all documents are converted."""

    def rows(self, corpus: Corpus) -> Iterator[RowPart]:
        """The row of tokens in pieces."""


class TextEncoder:
    """Documents of running text, arranged by the `Layout` of their tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self._layout = tokenizer, layout_of(tokenizer)

    @property
    def begins_scored(self) -> bool:
        """See `Layout`."""
        return self._layout.begins_scored

    def rows(self, corpus: Corpus) -> Iterator[RowPart]:
        """The row of tokens in pieces."""
        return self._layout.rows(encode_documents(corpus.documents, self.tokenizer))


def write_prepared(folder: Path, texts: EncodingTexts, encoder: DocumentEncoder, *, shard_tokens: int = SHARD_TOKENS,
                   on_progress: OnProgress | None = None) -> Manifest:
    """Encode texts into an empty folder; the manifest is written last. The caller makes the folder atomic.

    Raises:
        DataError: a part gives no token.
        TokenizerError: the tokenizer cannot express a text.
        OSError: the folder cannot be written to.
    """
    parts = {name: _write_part(folder, name, corpus, encoder, shard_tokens, on_progress)
             for name, corpus in texts.parts.items()}
    tokenizer = encoder.tokenizer
    for name, found in texts.repeated().items():
        parts[name] = parts[name].model_copy(update={
            "in_training": found.found, "searched": found.of, "share_in_training": found.share})
    tokenizer.save(folder)
    manifest = Manifest(
        weft=VERSION, corpus=texts.corpus, corpus_sha256=texts.corpus_sha256, recipe=texts.recipe,
        sources=texts.sources, begins_scored=encoder.begins_scored, parts=parts,
        tokenizer=TokenizerEntry(name=tokenizer.name, vocab_size=tokenizer.vocab_size,
                                 fingerprint=tokenizer.fingerprint()))
    write_prepared_manifest(folder, manifest)
    return manifest


def source_of(path: Path) -> SourceFile:
    """A file's path, size and hash. Raises `DataError`: it cannot be read."""
    try:
        return SourceFile(path=str(path.resolve()), bytes=path.stat().st_size, sha256=sha256_of(path))
    except OSError as error:
        raise DataError(f"the file cannot be read ({error.strerror or error}).", where=str(path),
                        remedy="Check its permissions.") from None


def _write_part(folder: Path, name: str, corpus: Corpus, encoder: DocumentEncoder, shard_tokens: int,
                on_progress: OnProgress | None) -> PreparedPart:
    begun = time.perf_counter()
    writer, done = ShardWriter(folder, name, encoder.tokenizer.vocab_size, shard_tokens), 0
    for row in encoder.rows(corpus):
        writer.add(row)
        done += int(row.byte_lengths.sum(dtype=np.int64))
        if on_progress is not None:
            on_progress(PreparationProgress(name, done, corpus.size_bytes, time.perf_counter() - begun))
    require_tokens(writer.tokens, writer.scored, corpus)
    writer.flush()
    return PreparedPart(corpus=corpus.name, corpus_sha256=corpus.sha256, documents=len(corpus.documents),
                        text_bytes=corpus.size_bytes, tokens=writer.tokens, shards=tuple(writer.shards),
                        scored_tokens=None if writer.scored == writer.tokens else writer.scored)
