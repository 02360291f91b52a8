"""The manifest of a prepared folder: its sources, its recipe, and the sizes and hashes of its files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from weft.core.errors import LONGEST_NAME, DataError, shortened
from weft.core.strict_json import digest
from weft.data.duplicates import Repeated
from weft.disk.documents import read_json
from weft.disk.manifest import MANIFEST_FILE, FileEntry, differences, sha256_of

FORMAT_VERSION = 1
SAMPLE_BLOCKS, SAMPLE_BLOCK = 256, 1 << 16
AGAIN = "Prepare the data again, into another folder, or copy the folder again, whole."
Depth: TypeAlias = Literal["size", "sample", "full"]


class ManifestRecord(BaseModel):
    """Base of the records in a manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SourceFile(ManifestRecord):
    """A file that text was read from."""

    path: str
    bytes: int
    sha256: str


class ArrayFile(ManifestRecord):
    """A file that holds one array, little-endian.

    Attributes:
        sample_sha256: hash of a sample of the file, see `sample_hash`.
    """

    name: str = Field(pattern=r"^[a-z]+-\d{5}\.(tokens|begins|bytes|flags|lost)\.bin$")
    dtype: Literal["uint8", "uint16", "uint32", "bool", "float32"]
    bytes: int
    sha256: str
    sample_sha256: str


class Shard(ManifestRecord):
    """A stretch of the row of tokens with each array in a file: ids, document starts, bytes of each token, flags of one
    byte per token (see `weft.data.stream.SCORED`), and nats for text that the tokens do not tell. Without flags
    every token is scored; without nats the tokenizer keeps every text."""

    length: int
    tokens: ArrayFile
    begins: ArrayFile
    byte_lengths: ArrayFile
    flags: ArrayFile | None = None
    lost: ArrayFile | None = None

    @property
    def files(self) -> tuple[ArrayFile, ...]:
        """The files of all arrays."""
        files = self.tokens, self.begins, self.byte_lengths, self.flags, self.lost
        return tuple(file for file in files if file is not None)


class PreparedPart(ManifestRecord):
    """Train, validation or test: its text, and its row of tokens.

    Attributes:
        in_training: of a held-out part, documents that stand in the training text, see `weft.data.duplicates`; None:
            the part is the training text.
        searched: documents that were looked for; None: all.
        share_in_training: the part of the text that stands in the training text; None: the part is
            the training text.
        scored_tokens: tokens that are flagged as scored; None: all.
    """

    corpus: str
    corpus_sha256: str
    documents: int
    text_bytes: int
    tokens: int
    shards: tuple[Shard, ...]
    in_training: int | None = None
    scored_tokens: int | None = None
    searched: int | None = None
    share_in_training: float | None = None

    @property
    def repeated(self) -> Repeated | None:
        """How much of a held-out part stands in the training text; None if it is unknown."""
        return None if self.in_training is None else Repeated(
            self.in_training, self.documents if self.searched is None else self.searched, self.share_in_training)


class PreparationRecipe(ManifestRecord):
    """How a folder was made: the same text and the same recipe give the same folder.

    Attributes:
        path: of the text, or a list of several; None: the Python standard library's source.
        data: the data settings without the path.
        task: what the task decides of conversations, see `weft.tasks.conversations`; None: running text.
    """

    path: str | tuple[str, ...] | None
    data: dict[str, Any]
    tokenizer: dict[str, Any]
    task: dict[str, Any] | None = None


class TokenizerEntry(ManifestRecord):
    """The tokenizer whose files are in the folder."""

    name: str
    vocab_size: int
    fingerprint: str


class Manifest(ManifestRecord):
    """The manifest. ``corpus`` and ``corpus_sha256`` describe the whole text, before it was split."""

    purpose: Literal["prepared data"] = "prepared data"
    format: int = FORMAT_VERSION
    weft: str
    corpus: str
    corpus_sha256: str
    recipe: PreparationRecipe
    sources: tuple[SourceFile, ...]
    tokenizer: TokenizerEntry
    begins_scored: bool
    parts: dict[str, PreparedPart]

    @property
    def files(self) -> list[ArrayFile]:
        """Every array's file."""
        return [file for part in self.parts.values() for shard in part.shards for file in shard.files]


def is_prepared(path: Path) -> bool:
    """Whether a folder holds prepared data, damaged or not. Raises `DataError`: the system does not say, since the path
    is too long or lies in a folder that may not be entered."""
    try:
        return path.is_dir() and any(path.glob("train-[0-9]*.bin"))
    except OSError as error:
        raise DataError(f"{error.strerror}.", where=shortened(str(path), LONGEST_NAME),
                        remedy="Check the path.") from None


def write_prepared_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest with a digest of itself."""
    content = manifest.model_dump(mode="json")
    text = json.dumps({**content, "digest": digest(content)}, indent=1) + "\n"
    (folder / MANIFEST_FILE).write_text(text, encoding="utf-8")


def read_prepared_manifest(folder: Path) -> Manifest:
    """The manifest of a prepared folder. Raises `DataError`: it is missing, damaged, edited by hand, or of a newer
    format."""
    path = folder / MANIFEST_FILE
    try:
        content = read_json(path)
        version = content["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, str(error) if isinstance(error, ValueError) else repr(error)) from None
    if version != FORMAT_VERSION:
        raise DataError(f"the prepared data have format {version!r}, this Weft reads format {FORMAT_VERSION}.",
                        where=str(path), remedy="Upgrade Weft, or prepare the data again with this one.")
    found = content.pop("digest", None)
    if found != digest(content):
        raise _damaged(path, "its digest does not fit its content")
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        raise _damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def check_files(folder: Path, manifest: Manifest, depth: Depth) -> None:
    """Compare the arrays' files with the manifest: their sizes, samples of them too, or all their content. Raises
    `DataError`: files are missing, truncated or changed; all are listed."""
    sampled = depth == "sample"
    listed = {file.name: FileEntry(file.bytes, file.sample_sha256 if sampled else file.sha256)
              for file in manifest.files}
    what = differences(folder, listed, None if depth == "size" else sample_hash if sampled else sha256_of)
    if what:
        raise DataError(what, where=str(folder), remedy=AGAIN)


def sample_hash(path: Path) -> str:
    """SHA-256 of 256 blocks of 64 KiB, evenly spread from the first byte of the file to the last; of the whole file if
    it has at most 16 MiB."""
    size = path.stat().st_size
    if size <= SAMPLE_BLOCKS * SAMPLE_BLOCK:
        return sha256_of(path)
    found = hashlib.sha256()
    with path.open("rb") as file:
        for block in range(SAMPLE_BLOCKS):
            file.seek((size - SAMPLE_BLOCK) * block // (SAMPLE_BLOCKS - 1))
            found.update(file.read(SAMPLE_BLOCK))
    return found.hexdigest()


def _damaged(path: Path, why: str) -> DataError:
    return DataError(f"the manifest is damaged ({why}).", where=str(path), remedy=AGAIN)
