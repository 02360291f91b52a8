"""A vocabulary that llama.cpp can hold: its tokens, and the algorithm that makes them of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, final


class TokenType(IntEnum):
    """What kind of token an id is, as llama.cpp numbers them."""

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
class Pieces:
    """A vocabulary that llama.cpp can hold.

    Attributes:
        model: the algorithm: ``gpt2`` is byte-level BPE by merges, ``llama`` SentencePiece's BPE by scores.
        pre: how llama.cpp cuts text before it merges.
        tokens: by id; there may be gaps.
        merges: in order, of ``gpt2``.
        space_first: a space is put before a text.
        notes: what the user should know.
    """

    model: Literal["gpt2", "llama"]
    pre: str
    tokens: Mapping[int, Token]
    merges: tuple[str, ...] = ()
    space_first: bool = False
    notes: tuple[str, ...] = ()


class Inexpressible(Exception):
    """llama.cpp has no tokenizer that does what this one does; the message says why."""
