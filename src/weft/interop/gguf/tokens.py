"""A vocabulary that llama.cpp can hold: its tokens, and the algorithm that turns text into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, final


class TokenType(IntEnum):
    """The kinds of tokens, as numbered by llama.cpp."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@final
@dataclass(frozen=True)
class Token:
    """One id: its text as the file spells it, its kind, and its score (of SentencePiece)."""

    text: str
    type: TokenType = TokenType.NORMAL
    score: float = 0.0


@final
@dataclass(frozen=True)
class GGUFVocabulary:
    """A vocabulary that llama.cpp can hold.

    Attributes:
        model: the algorithm: ``gpt2`` is byte-level BPE by merges, ``llama`` SentencePiece's BPE by scores.
        pre: llama.cpp's name of the pre-tokenizer.
        tokens: by id; there may be gaps.
        merges: in order, of ``gpt2``.
        space_first: whether a space is put before a text.
        notes: notes for the user.
    """

    model: Literal["gpt2", "llama"]
    pre: str
    tokens: Mapping[int, Token]
    merges: tuple[str, ...] = ()
    space_first: bool = False
    notes: tuple[str, ...] = ()


class Inexpressible(Exception):
    """llama.cpp has no equivalent of this tokenizer; the message gives the reason."""
