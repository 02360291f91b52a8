"""Tokenizers in files: inside a checkpoint folder, or a foreign ``tokenizer.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import CheckpointError, TokenizerError, nearest
from weft.tokenizers.base import FORMAT_VERSION, SETTINGS_FILE, Tokenizer
from weft.tokenizers.bpe import LIBRARY_FILE, BPETokenizer
from weft.tokenizers.byte import ByteTokenizer
from weft.tokenizers.character import CharacterTokenizer

KINDS: Mapping[str, type[Tokenizer]] = {cls.kind: cls for cls in (ByteTokenizer, CharacterTokenizer, BPETokenizer)}
FOREIGN_SETTINGS_FILE = "tokenizer_config.json"


def load_tokenizer(folder: str | Path, *, kinds: Mapping[str, type[Tokenizer]] = KINDS) -> Tokenizer:
    """The tokenizer that ``Tokenizer.save`` wrote into ``folder``.

    Raises:
        CheckpointError: a file is missing, damaged, of another format version, or changed since it was saved.
    """
    path = Path(folder) / SETTINGS_FILE
    content = _read_json(path)
    if content.get("format") != FORMAT_VERSION:
        raise CheckpointError(
            f"the tokenizer's format is {content.get('format')!r}, this Weft reads format {FORMAT_VERSION}.",
            where=str(path),
            remedy="Load it with the version of Weft that wrote it.",
        )
    kind = str(content.get("kind"))
    if kind not in kinds:
        raise CheckpointError(f"unknown kind of tokenizer {kind!r}.", where=str(path), remedy=nearest(kind, kinds))
    try:
        tokenizer = kinds[kind].from_settings(content["settings"], Path(folder))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the tokenizer's files are damaged ({error!r}).", where=str(folder), remedy="Copy the folder again, whole."
        ) from error
    if tokenizer.fingerprint() != content.get("fingerprint"):
        raise CheckpointError(
            "the tokenizer's files have changed since they were saved (their fingerprint differs).",
            where=str(folder),
            remedy="Copy the folder again, whole; a model is only right with the tokenizer it was trained with.",
        )
    return tokenizer


def read_tokenizer_json(path: str | Path, *, bos: str | None = None, eos: str | None = None) -> BPETokenizer:
    """The tokenizer of a ``tokenizer.json``, or of a folder that has one.

    Tokens that are not named are taken from the ``tokenizer_config.json`` beside it, where there is one; the rest are
    None.

    Raises:
        TokenizerError: no such file, or not a tokenizer of the library.
    """
    path = Path(path)
    path = path / LIBRARY_FILE if path.is_dir() else path
    try:
        source = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TokenizerError(
            f"the tokenizer cannot be read ({error}).",
            where=str(path),
            remedy="Give the path of a tokenizer.json, or of a folder that has one.",
        ) from None
    beside = path.parent / FOREIGN_SETTINGS_FILE
    foreign = _read_json(beside) if beside.exists() else {}
    return BPETokenizer(
        source, bos=bos or _token(foreign.get("bos_token")), eos=eos or _token(foreign.get("eos_token"))
    )


def _token(declared: Any) -> str | None:
    text = declared.get("content") if isinstance(declared, dict) else declared
    return str(text) if text else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the tokenizer's settings cannot be read ({error}).",
            where=str(path),
            remedy="Give the folder of a checkpoint that was saved whole.",
        ) from None
    if not isinstance(content, dict):
        raise CheckpointError(
            f"the tokenizer's settings are a {type(content).__name__}, not an object.",
            where=str(path),
            remedy="Give the folder of a checkpoint that was saved whole.",
        )
    return content
