"""The files of a foreign folder's tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, TypeGuard

from weft.core.model import LanguageModel, Model
from weft.data.layout import layout_of
from weft.disk.documents import lawful_link
from weft.tokenizers import Tokenizer
from weft.tokenizers.base import require_fits
from weft.tokenizers.declared import CHAT_TEMPLATE, DEFAULT_TEMPLATE, MORE_TEMPLATES
from weft.tokenizers.library import LIBRARY_FILE
from weft.tokenizers.library_pieces import with_frame
from weft.tokenizers.published import read_tokenizer

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "encoder.json", "vocab.txt",
                "rwkv_vocab_v20230424.txt")
"""Files each of which is enough for a tokenizer."""

BESIDE = ("merges.txt", "vocab.bpe", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
          "chat_template.jinja", "chat_template.json")
"""Further files of a tokenizer."""

SETTINGS = "tokenizer_config.json"


def folder_tokenizer(folder: Path, vocab_size: int) -> Tokenizer | None:
    """The tokenizer of a folder; None where it has none. Raises `TokenizerError`: its files are damaged, or it gives
    ids that the model does not have."""
    if not any((folder / name).is_file() for name in VOCABULARIES):
        return None
    tokenizer = read_tokenizer(folder)
    require_fits(tokenizer, vocab_size, where=str(folder))
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer | None, source: Path | None, draft: Path, model: Model) -> list[str]:
    """Put the tokenizer's files into a folder that is being written.

    Args:
        source: the foreign folder that the model came from, whose files are copied unchanged; None for Weft's own.
        model: that the tokenizer belongs to, which says what stands around a text.

    Returns:
        Notes for the user: a tokenizer that cannot be written.
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
    frame = framing(tokenizer, model)
    files = {**files, LIBRARY_FILE: with_frame(files[LIBRARY_FILE], *frame, pairs=reads_whole(model))}
    for name, content in files.items():
        (draft / name).write_bytes(content)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.config.context,
                **_roles(tokenizer, model, *frame), **_adds(tokenizer)}
    (draft / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    _write_templates(tokenizer, draft)
    return []


def reads_whole(model: Model) -> bool:
    """Whether what a model predicts is of whole rows, and not of the next token."""
    return not isinstance(model, LanguageModel) or model.head is not None


def takes_source(model: Model) -> TypeGuard[LanguageModel]:
    """Whether a model decodes a target from a source."""
    return isinstance(model, LanguageModel) and model.takes_source


def framing(tokenizer: Tokenizer, model: Model) -> tuple[int | None, int | None]:
    """The ids before and after a text that the model is given: those of a document where it is read whole, the closing
    one for the source of an encoder-decoder (and the opening one if the vocabulary declares it), and for a model of the
    next token the opening one, unless the vocabulary declares that it adds none."""
    layout, adds = layout_of(tokenizer), tokenizer.conventions.adds_bos
    closing = layout.final if layout.closing is None else layout.closing
    if reads_whole(model):
        return layout.opening, closing
    if takes_source(model):
        return (tokenizer.bos_id if adds else None), closing
    return (None if adds is False else layout.opening), None


def _roles(tokenizer: Tokenizer, model: Model, opening: int | None, closing: int | None) -> dict[str, Any]:
    """The settings of `transformers` that name special tokens by their roles. Rows that an encoder reads are padded, by
    the closing token where the vocabulary has none for that; attention leaves it out."""
    names = {place: token for token, place in tokenizer.special_tokens.items()}
    roles = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
    if reads_whole(model) or takes_source(model):
        known = tokenizer.special_tokens
        usual = {role: next((known[name] for name in spelled if name in known), None)
                 for role, spelled in USUAL_ROLES.items()}
        roles |= {**usual, "pad_token": closing if usual["pad_token"] is None else usual["pad_token"],
                  **({"cls_token": opening, "sep_token": closing} if reads_whole(model) else {})}
    inputs = ["input_ids", *(["token_type_ids"] if model.reads().get("types", 0) > 1 else []), "attention_mask"]
    return {**{role: names[place] for role, place in roles.items() if place in names}, "model_input_names": inputs}


USUAL_ROLES = {"pad_token": ("[PAD]", "<pad>"), "unk_token": ("[UNK]", "<unk>"), "mask_token": ("[MASK]", "<mask>")}
"""Spellings of tokens whose role no other setting names."""


def _adds(tokenizer: Tokenizer) -> dict[str, bool]:
    """Whether texts get an opening and a closing token, where the conventions declare it."""
    declared = {"add_bos_token": tokenizer.conventions.adds_bos, "add_eos_token": tokenizer.conventions.adds_eos}
    return {key: value for key, value in declared.items() if value is not None}


def _write_templates(tokenizer: Tokenizer, draft: Path) -> None:
    for name, template in tokenizer.conventions.chat_templates.items():
        path = draft / (CHAT_TEMPLATE if name == DEFAULT_TEMPLATE else f"{MORE_TEMPLATES}/{name}.jinja")
        path.parent.mkdir(exist_ok=True)
        path.write_text(template, encoding="utf-8")
