"""The tokenizer that lies in a foreign folder: read, and carried over into one that is written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from weft.interop.huggingface.stored import lawful_link
from weft.tokenizers import Tokenizer
from weft.tokenizers.declared import CHAT_TEMPLATE, DEFAULT_TEMPLATE, MORE_TEMPLATES
from weft.tokenizers.library import LIBRARY_FILE
from weft.tokenizers.published import read_tokenizer

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "encoder.json", "vocab.txt",
                "rwkv_vocab_v20230424.txt")
"""Files any one of which makes a tokenizer."""

BESIDE = ("merges.txt", "vocab.bpe", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
          "chat_template.jinja", "chat_template.json")
"""Files that belong to one."""

SETTINGS = "tokenizer_config.json"


def folder_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer of a folder; None where it has none.

    Raises:
        TokenizerError: its files are damaged, or it gives ids that the model does not have.
    """
    if not any((folder / name).is_file() for name in VOCABULARIES):
        return None
    tokenizer = read_tokenizer(folder)
    tokenizer.require_fits(vocab_size, where=str(folder))
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer | None, source: Path | None, draft: Path, context: int) -> list[str]:
    """Put the tokenizer's files into a folder that is being written.

    Args:
        source: the foreign folder that the model came from, whose files are copied as they are; None for Weft's own.
        context: tokens of a document, which `transformers` wants to know.

    Returns:
        What the user should know: a tokenizer that cannot be written.
    """
    if source is not None:
        for name in (*VOCABULARIES, *BESIDE):
            file = source / name
            if file.is_file() and (not file.is_symlink() or lawful_link(file)):
                shutil.copyfile(file, draft / name)
        for file in sorted((source / MORE_TEMPLATES).glob("*.jinja")):
            if not file.is_symlink() or lawful_link(file):
                (draft / MORE_TEMPLATES).mkdir(exist_ok=True)
                shutil.copyfile(file, draft / MORE_TEMPLATES / file.name)
        return []
    if tokenizer is None:
        return []
    files = tokenizer.files()
    if LIBRARY_FILE not in files:
        return [f"the tokenizer {tokenizer.name!r} has no tokenizer.json, so none was written; give rows of token ids."]
    for name, content in files.items():
        (draft / name).write_bytes(content)
    names = {place: token for token, place in tokenizer.special_tokens.items()}
    roles = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context,
                **{role: names[place] for role, place in roles.items() if place in names}, **_adds(tokenizer)}
    (draft / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    _write_templates(tokenizer, draft)
    return []


def _adds(tokenizer: Tokenizer) -> dict[str, bool]:
    """Whether texts get an opening and a closing token, where the tokenizer says."""
    said = {"add_bos_token": tokenizer.conventions.adds_bos, "add_eos_token": tokenizer.conventions.adds_eos}
    return {key: value for key, value in said.items() if value is not None}


def _write_templates(tokenizer: Tokenizer, draft: Path) -> None:
    for name, template in tokenizer.conventions.chat_templates.items():
        path = draft / (CHAT_TEMPLATE if name == DEFAULT_TEMPLATE else f"{MORE_TEMPLATES}/{name}.jinja")
        path.parent.mkdir(exist_ok=True)
        path.write_text(template, encoding="utf-8")
