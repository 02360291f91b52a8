"""What the ids of a byte-level ``tokenizer.json`` stand for, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary, and the byte.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the characters from U+0100 on
    (GPT-2, Radford et al. 2019, released ``encoder.py``).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + place): b for place, b in enumerate(others)}


def id_bytes(library: tokenizers.Tokenizer, declared: Mapping[str, Any], vocab_size: int) -> tuple[bytes, ...] | None:
    """The bytes of each id, or None when the file's decoder is not byte-level.

    Special tokens are no bytes, other added tokens are their own text, ids that the file leaves out are no bytes.
    """
    if (declared.get("decoder") or {}).get("type") != "ByteLevel":
        return None
    alphabet = byte_alphabet()
    table = [b""] * vocab_size
    for token, place in library.get_vocab(with_added_tokens=False).items():
        known = all(character in alphabet for character in token)
        table[place] = bytes(alphabet[c] for c in token) if known else token.encode()
    for place, added in library.get_added_tokens_decoder().items():
        table[place] = b"" if added.special else added.content.encode()
    return tuple(table)


def lengths_are_exact(declared: Mapping[str, Any]) -> bool:
    """Whether the ids of a text are exactly its bytes: nothing normalised, nothing added or stripped."""
    added = (token for token in declared.get("added_tokens") or () if not token["special"])
    stripping = any(token["lstrip"] or token["rstrip"] for token in added)
    return declared.get("normalizer") is None and not stripping and not _prefixes(declared.get("pre_tokenizer"))


def _prefixes(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return False
    inner = any(_prefixes(part) for part in pre_tokenizer.get("pretokenizers", ()))
    removes = pre_tokenizer.get("behavior") == "Removed"
    known = pre_tokenizer["type"] in ("ByteLevel", "Split", "Digits", "Sequence", "Punctuation")
    return inner or removes or not known or bool(pre_tokenizer.get("add_prefix_space", False))
