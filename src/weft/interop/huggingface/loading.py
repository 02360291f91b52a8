"""Loading a model from an opened folder: tensors are mapped from its files, and copied only where they change.

Small files of a foreign folder that are written back to the letter where what they say has not changed: settings for
generating text, the chat template, special tokens.

A checkpoint of Weft keeps their text among its facts, so that a folder that is written from it has them too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.checkpoints.load import Loaded
from weft.core.model import Model
from weft.core.strict_json import plain
from weft.disk.documents import lawful_link, read_document
from weft.interop.huggingface.folder import Opened, open_folder, refuse
from weft.interop.huggingface.generation import GENERATION_FILE
from weft.interop.huggingface.text import folder_tokenizer
from weft.interop.huggingface.with_code import has_code, load_with_code
from weft.interop.pooling import place, settle
from weft.tokenizers import Tokenizer
from weft.tokenizers.declared import CHAT_TEMPLATE
from weft.tokenizers.library import LIBRARY_FILE


def load_folder(folder: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None,
                strict: bool = False) -> Loaded:
    """The model and tokenizer of a folder that `transformers` wrote, or `weft.interop.huggingface.with_code` for it.

    Args:
        device: where the model goes.
        dtype: of the weights; None: as they are stored.
        strict: refuse unknown keys too (see `open_folder`), and tensors that hold NaN, for which every file is read
            once more.

    Raises:
        CheckpointError: listing everything that is wrong.
    """
    if has_code(folder):
        return load_with_code(folder, device=device, dtype=dtype, strict=strict)
    opened = open_folder(folder, strict=strict)
    model = load_model(opened, device=device, dtype=dtype, strict=strict)
    tokenizer = folder_tokenizer(folder, opened.config.vocab_size)
    facts = {"family": opened.family.name, "kept": dict(opened.kept), **letters_of(folder, tokenizer),
             **opened.generation}
    return Loaded(model, tokenizer, opened.config, None, facts, folder)


def load_model(opened: Opened, *, device: torch.device | str = "cpu",
               dtype: torch.dtype | None = None, strict: bool = False) -> Model:
    """The model, in evaluation mode. Tensors are read one rule at a time, so that there are never two copies of more
    than one rule's tensors.

    Args:
        device: where the model goes.
        dtype: of the weights; None: as they are stored.
        strict: look for NaN, for which every tensor is read once more.

    Raises:
        CheckpointError: listing every tensor that is missing, unexpected or of another shape, and with ``strict``
            every one that holds NaN.
    """
    problems = [*opened.problems, *(_spoilt(opened) if strict else ()), *_untied(opened)]
    if problems:
        raise refuse(opened, problems)
    target = stored_dtype(opened) if dtype is None else dtype
    place(opened.model, dict(_produced(opened, target, torch.device(device))))
    settle(opened.model, torch.device(device))
    return opened.model.eval()


def stored_dtype(opened: Opened) -> torch.dtype:
    """The dtype of the weights; where files mix several, the one that config.json names, else the widest."""
    kinds = {entry.dtype for name in opened.places.values()
             if isinstance((entry := opened.stored.entries[name]).dtype, torch.dtype)}
    found = [kind for kind in kinds if isinstance(kind, torch.dtype)]
    named = next((kind for kind in found if str(kind) == f"torch.{opened.kept.get('dtype')}"), None)
    widest = found[0]
    for kind in found[1:]:
        widest = torch.promote_types(widest, kind)
    return widest if named is None else named


def _produced(opened: Opened, dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    for rule in opened.account.rules:
        found = rule.read([opened.stored.get(opened.places[name]) for name in rule.theirs])
        for name, tensor in zip(rule.ours, found, strict=True):
            yield name, tensor.to(device, dtype).contiguous()


def _spoilt(opened: Opened) -> Iterator[str]:
    """A line for each tensor that holds NaN."""
    for name in opened.places.values():
        entry = opened.stored.entries[name]
        if isinstance(entry.dtype, torch.dtype) and 0 not in entry.shape:
            tensor = opened.stored.get(name)
            # `aminmax` reads the tensor once without a temporary, and propagates NaN.
            if bool(torch.aminmax(tensor).min.isnan()):
                yield f"{name}: holds NaN."


def _untied(opened: Opened) -> Iterator[str]:
    """A line for each tensor that should repeat another and does not."""
    for copy, source in opened.account.tied.items():
        if copy in opened.places and source in opened.places:
            first, second = (opened.stored.get(opened.places[name]) for name in (copy, source))
            if first.shape == second.shape and not torch.equal(first, second):
                yield f"{copy}: differs from {source}, though the configuration ties them."


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
