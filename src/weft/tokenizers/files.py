"""Tokenizers as Weft saves them, inside a checkpoint's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.core.errors import CheckpointError, nearest
from weft.disk.documents import read_json
from weft.tokenizers.base import FORMAT_VERSION, SETTINGS_FILE, Tokenizer
from weft.tokenizers.bpe import BPETokenizer
from weft.tokenizers.byte import ByteTokenizer, NoTokenizer
from weft.tokenizers.character import CharacterTokenizer
from weft.tokenizers.library import FileTokenizer
from weft.tokenizers.rwkv_world import RWKVWorldTokenizer
from weft.tokenizers.sentence_piece import SentencePieceTokenizer
from weft.tokenizers.specials import Conventions
from weft.tokenizers.unigram import UnigramTokenizer
from weft.tokenizers.wordpiece import WordPieceTokenizer
from weft.tokenizers.words import WordTokenizer

KINDS: Mapping[str, type[Tokenizer]] = MappingProxyType({cls.kind: cls for cls in (
    ByteTokenizer, CharacterTokenizer, WordTokenizer, BPETokenizer, WordPieceTokenizer, UnigramTokenizer,
    SentencePieceTokenizer, RWKVWorldTokenizer, FileTokenizer, NoTokenizer)})
"""Weft's own classes of tokenizers by kind."""


APART = "weft_tokenizer"
"""The folder within a folder of `transformers` for a tokenizer in Weft's format: files of both have the same names."""


def folder_of_own(folder: Path) -> Path | None:
    """Where a folder has a tokenizer in Weft's format; None where it has none."""
    return next((place for place in (folder / APART, folder) if (place / SETTINGS_FILE).is_file()), None)


def load_tokenizer(folder: str | Path, *, kinds: Mapping[str, type[Tokenizer]] = KINDS) -> Tokenizer:
    """The tokenizer that ``Tokenizer.save`` wrote into ``folder``. Raises `CheckpointError`: a file is missing,
    damaged, of another format version, or changed since it was saved."""
    path = Path(folder) / SETTINGS_FILE
    content = _read_json(path)
    if content.get("format") != FORMAT_VERSION:
        raise CheckpointError(
            f"the tokenizer's format is {content.get('format')!r}, this Weft reads format {FORMAT_VERSION}.",
            where=str(path), remedy="Load it with the version of Weft that wrote it.")
    kind = str(content.get("kind"))
    if kind not in kinds:
        raise CheckpointError(f"unknown kind of tokenizer {kind!r}.", where=str(path), remedy=nearest(kind, kinds))
    try:
        tokenizer = kinds[kind].from_settings(content["settings"], Path(folder))
        if "conventions" in content:
            tokenizer = tokenizer.with_conventions(Conventions.from_json(content["conventions"]))
    except (OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"the tokenizer's files are damaged ({error!r}).", where=str(folder),
                              remedy="Copy the folder again, whole.") from error
    if tokenizer.fingerprint() != content.get("fingerprint"):
        raise CheckpointError(
            "the tokenizer's files have changed since they were saved (their fingerprint differs).", where=str(folder),
            remedy="Copy the folder again, whole; a model is only right with the tokenizer it was trained with.")
    return tokenizer


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the tokenizer's settings cannot be read ({error}).", where=str(path),
                              remedy="Give the folder of a checkpoint that was saved whole.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"the tokenizer's settings are a {type(content).__name__}, not an object.",
                              where=str(path), remedy="Give the folder of a checkpoint that was saved whole.")
    return content
