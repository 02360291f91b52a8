"""How byte-level BPE splits text before it merges: the forms in ``tokenizer.json`` that llama.cpp has, by its names.

llama.cpp has the regular expressions in its code, each under several names that also differ in other respects; the name
given here is one that does not. A form that is missing has no name there, or none that is known to be equivalent.

A vocabulary that llama.cpp can hold: its tokens, and the algorithm that turns text into them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Literal

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*")
CASED_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = "|".join((CONTRACTIONS, WORDS, r"\p{N}{1,3}", SIGNS, SPACES))
QWEN2 = "|".join((CONTRACTIONS, WORDS, r"\p{N}", SIGNS, SPACES))
TEKKEN = "|".join((*CASED, r"\p{N}", CASED_SIGNS, SPACES))
GPT4O = "|".join((*(f"{each}{CONTRACTIONS}?" for each in CASED), r"\p{N}{1,3}", CASED_SIGNS, SPACES))
WHOLE = (GPT2, LLAMA3, QWEN2, TEKKEN, GPT4O)
"""Those that match all of any text, so that keeping the matches is the same as splitting by them."""
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"

DIGITS, NUMBERS, PUNCTUATION = "each digit", "runs of digits", "runs of punctuation"
"""Names of steps that have no regular expression."""

Key = tuple[tuple[str, ...], bool]
NAMES: Mapping[Key, str] = MappingProxyType({((GPT2,), False): "gpt-2", ((LLAMA3,), True): "llama-bpe",
                                             ((LLAMA3,), False): "dbrx", ((QWEN2,), False): "qwen2",
                                             ((TEKKEN,), True): "tekken", ((GPT4O,), False): "gpt-4o",
                                             ((DIGITS, GPT2), False): "smollm", ((BLOOM,), False): "bloom",
                                             ((PUNCTUATION, GPT2, NUMBERS, "[0-9][0-9][0-9]"), False): "falcon"})
"""Names by the expressions that split one after another, and whether a word that is a token skips the merges. Falcon's
splits a space from the number after it, which llama.cpp does not; its merges, learned that way, never join the two."""


def pre_tokenizer(declared: Mapping[str, Any] | None, *, ignore_merges: bool) -> str:
    """llama.cpp's name of a pre-tokenizer.

    Args:
        declared: as ``tokenizer.json`` has it.
        ignore_merges: whether a word that is a token skips the merges.

    Raises:
        Inexpressible: llama.cpp has no equivalent.
    """
    steps = list(_flat(declared))
    levels = [step for step in steps if step["type"] == "ByteLevel"]
    if len(levels) != 1:
        raise Inexpressible("its BPE is not on bytes, which llama.cpp's is.")
    if levels[0].get("add_prefix_space"):
        raise Inexpressible("it puts a space before a text, which llama.cpp's byte-level BPE does not.")
    cuts = tuple(cut for step in steps for cut in _cut(step))
    name = NAMES.get((cuts, ignore_merges))
    if name is None:
        habit = " and keeps words that are tokens whole" if ignore_merges else ""
        cutting = " then ".join(map(repr, cuts)) or "nothing"
        raise Inexpressible(f"it splits text by {cutting}{habit}, for which llama.cpp has no name.")
    return name


def _flat(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    return [step for each in part["pretokenizers"] for step in _flat(each)] if part["type"] == "Sequence" else [part]


def _cut(step: Mapping[str, Any]) -> list[str]:
    """The expressions by which one step splits, or the names of steps without one."""
    match step:
        case {"type": "ByteLevel"}:
            return [GPT2] if step.get("use_regex", True) else []
        case {"type": "Digits"}:
            return [DIGITS if step["individual_digits"] else NUMBERS]
        case {"type": "Punctuation", "behavior": "Contiguous"}:
            return [PUNCTUATION]
        case {"type": "Split", "pattern": pattern, "invert": False, "behavior": "Isolated"}:
            return [str(pattern.get("Regex") or re.escape(pattern["String"]))]
        case {"type": "Split", "pattern": {"Regex": str(cut)}, "invert": True, "behavior": "Removed"} if cut in WHOLE:
            return [cut]
    return [str(step["type"])]


class TokenType(IntEnum):
    """The kinds of tokens, as numbered by llama.cpp."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Token:
    """One id: its text as the file spells it, its kind, and its score (of SentencePiece)."""

    text: str
    type: TokenType = TokenType.NORMAL
    score: float = 0.0


@dataclass(frozen=True)
class GGUFVocabulary:
    """A vocabulary that llama.cpp can hold.

    Attributes:
        model: the algorithm: ``gpt2`` is byte-level BPE by merges, ``llama`` SentencePiece's BPE by scores.
        pre: llama.cpp's name of the pre-tokenizer.
        tokens: by id; there may be gaps.
        merges: in order, of ``gpt2``.
        space_first: whether a space is put before a text.
    """

    model: Literal["gpt2", "llama"]
    pre: str
    tokens: Mapping[int, Token]
    merges: tuple[str, ...] = ()
    space_first: bool = False
    notes: tuple[str, ...] = ()


class Inexpressible(Exception):
    """llama.cpp has no equivalent of this tokenizer; the message gives the reason."""
