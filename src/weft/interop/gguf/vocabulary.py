"""A tokenizer as the keys of a GGUF file, or the reason why llama.cpp has no equivalent tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from weft.interop.gguf.architecture import Value
from weft.interop.gguf.pieces import read_pieces
from weft.interop.gguf.pre_tokenizers import GGUFVocabulary, Inexpressible, Token, TokenType
from weft.tokenizers import Tokenizer


@final
@dataclass(frozen=True)
class Vocabulary:
    """The keys of a tokenizer, and notes for the user."""

    keys: Mapping[str, Value]
    notes: tuple[str, ...] = field(default=())


END_ROLES = ("eot", "eom")
"""Roles of further end tokens in llama.cpp: end of turn, and end of message."""

NO_VOCABULARY: Mapping[str, Value] = {"tokenizer.ggml.model": "no_vocab"}
"""The keys of a file without a tokenizer, which llama.cpp opens for token ids only."""


def vocabulary(tokenizer: Tokenizer | None, vocab_size: int, kept: Mapping[str, Any]) -> Vocabulary:
    """The keys of a tokenizer.

    Args:
        tokenizer: the model's; None: it has none.
        vocab_size: the model's; ids beyond the tokenizer's are written as unused tokens.
        kept: ids of special tokens from the model's configuration.
    """
    if tokenizer is None:
        return Vocabulary(NO_VOCABULARY, ("there is no tokenizer, so the file has none; give llama.cpp token ids.",))
    try:
        pieces = read_pieces(tokenizer)
    except Inexpressible as reason:
        return Vocabulary(NO_VOCABULARY, (f"the tokenizer {tokenizer.name!r} was not written: {reason} Give llama.cpp "
                                          "token ids.",))
    keys = {**_tokens(pieces, vocab_size), **_roles(tokenizer, pieces, kept), **_templates(tokenizer)}
    return Vocabulary(keys, (*pieces.notes, *_endless(tokenizer)))


def _tokens(pieces: GGUFVocabulary, vocab_size: int) -> dict[str, Value]:
    table = [pieces.tokens.get(place) or Token(f"[PAD{place}]", TokenType.UNUSED) for place in range(vocab_size)]
    keys: dict[str, Value] = {
        "tokenizer.ggml.model": pieces.model, "tokenizer.ggml.pre": pieces.pre,
        "tokenizer.ggml.tokens": [token.text for token in table],
        "tokenizer.ggml.token_type": [int(token.type) for token in table]}
    if pieces.model == "llama":
        keys["tokenizer.ggml.scores"] = [token.score for token in table]
        keys["tokenizer.ggml.add_space_prefix"] = pieces.space_first
    else:
        keys["tokenizer.ggml.merges"] = list(pieces.merges)
    return keys


def _roles(tokenizer: Tokenizer, pieces: GGUFVocabulary, kept: Mapping[str, Any]) -> dict[str, Value]:
    """Special tokens by their roles, and which of them are added to a text."""
    unknown = next((place for place, token in pieces.tokens.items() if token.type == TokenType.UNKNOWN), None)
    pad = kept.get("pad_token_id")
    further = _further_ends(tokenizer)
    ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, **dict(zip(END_ROLES, further, strict=False)),
           "unknown": unknown,
           "padding": pad if pad in pieces.tokens else None}
    found: dict[str, Value] = {f"tokenizer.ggml.{role}_token_id": place for role, place in ids.items()
                               if place is not None}
    adds = {"bos": tokenizer.conventions.adds_bos, "eos": tokenizer.conventions.adds_eos}
    return found | {f"tokenizer.ggml.add_{role}_token": bool(value) for role, value in adds.items()}


def _templates(tokenizer: Tokenizer) -> dict[str, Value]:
    templates = tokenizer.conventions.chat_templates
    named = sorted(set(templates) - {"default"})
    found: dict[str, Value] = {f"tokenizer.chat_template.{name}": templates[name] for name in named}
    if named:
        found["tokenizer.chat_templates"] = named
    return found | ({"tokenizer.chat_template": templates["default"]} if "default" in templates else {})


def _endless(tokenizer: Tokenizer) -> list[str]:
    left = _further_ends(tokenizer)[len(END_ROLES):]
    notes = [] if tokenizer.eos_id is not None else [
        "the tokenizer has no token that ends a document; llama.cpp then uses a fixed id: give it a stop string or "
        "token."]
    return notes + ([f"the file has room for {1 + len(END_ROLES)} ids that end a generation; configure llama.cpp to "
                     f"stop also at {', '.join(map(str, left))}."] if left else [])


def _further_ends(tokenizer: Tokenizer) -> list[int]:
    """The ids that end a generation besides the one that ends a document."""
    return [place for place in tokenizer.end_ids if place != tokenizer.eos_id]
