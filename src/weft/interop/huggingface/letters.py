"""Small files of a foreign folder that are written back to the letter where what they say has not changed: settings for
generating text, the chat template, special tokens.

A checkpoint of Weft keeps their text among its facts, so that a folder that is written from it has them too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.core.strict_json import plain
from weft.disk.documents import lawful_link, read_document
from weft.interop.huggingface.generation import GENERATION_FILE
from weft.tokenizers import Tokenizer
from weft.tokenizers.declared import CHAT_TEMPLATE
from weft.tokenizers.library import LIBRARY_FILE

LETTERS = "letters"
"""The key of a checkpoint's facts for these files."""
SETTINGS = "tokenizer_config.json"
TOKENIZER_FILES = (SETTINGS, "special_tokens_map.json", "added_tokens.json", CHAT_TEMPLATE, "chat_template.json")
MOST_BYTES = 2**20
"""Of a file. Larger ones (an added_tokens.json of a whole vocabulary) are left to the folder they are in."""


def letters_of(folder: Path, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The facts that hold the texts of a foreign folder's small files, and what its tokenizer is; none where it has no
    such files."""
    texts = {name: text for name in (GENERATION_FILE, *TOKENIZER_FILES) if (text := _text(folder / name)) is not None}
    return {LETTERS: {"texts": texts, "tokenizer": _said(tokenizer)}} if texts else {}


def write_letters(facts: Mapping[str, Any], tokenizer: Tokenizer | None, generation: Mapping[str, Any],
                  draft: Path) -> None:
    """Put the files of a checkpoint's facts into a folder that is being written, in place of those that say the same:
    the tokenizer's where it is the one that was read, and the settings for generating where they are.

    Args:
        facts: of the checkpoint, see `letters_of`.
        tokenizer: the model's.
        generation: the content of generation_config.json that is to be written.
        draft: the folder, with its tokenizer.
    """
    kept = facts.get(LETTERS)
    if not isinstance(kept, Mapping):
        return
    texts: Mapping[str, str] = kept.get("texts") or {}
    if GENERATION_FILE in texts and json.loads(texts[GENERATION_FILE]) == dict(generation):
        _write(draft / GENERATION_FILE, texts[GENERATION_FILE])
    if tokenizer is not None and kept.get("tokenizer") == _said(tokenizer) and _unframed(tokenizer, draft):
        for name in TOKENIZER_FILES:
            if name in texts:
                _write(draft / name, texts[name])
        if SETTINGS in texts and CHAT_TEMPLATE not in texts:  # the settings hold it
            (draft / CHAT_TEMPLATE).unlink(missing_ok=True)


def _unframed(tokenizer: Tokenizer, draft: Path) -> bool:
    """Whether the written vocabulary is that of the tokenizer. Around texts of another model another class of
    `transformers`, which the settings may name, would put other tokens than the file says."""
    file = draft / LIBRARY_FILE
    return not file.is_file() or file.read_bytes() == tokenizer.files().get(LIBRARY_FILE)


def _said(tokenizer: Tokenizer | None) -> Any:
    """The behaviour and declarations of a tokenizer, as plain data."""
    return None if tokenizer is None else {"fingerprint": tokenizer.fingerprint(),
                                           "conventions": plain(tokenizer.conventions)}


def _text(file: Path) -> str | None:
    """The text of a small regular file, its line ends as they are; None where there is none that can be read."""
    if file.is_symlink() and not lawful_link(file):
        return None
    try:
        return read_document(file, most=MOST_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return None


def _write(file: Path, text: str) -> None:
    file.write_bytes(text.encode("utf-8"))
