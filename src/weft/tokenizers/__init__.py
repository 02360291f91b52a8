"""Tokenizers: text to ids and back, with exact counts of bytes. They know nothing of models."""

from __future__ import annotations

from weft.tokenizers.base import Encoded, Ids, IdsLike, Tokenizer
from weft.tokenizers.bpe import BPETokenizer
from weft.tokenizers.byte import ByteTokenizer
from weft.tokenizers.character import CharacterTokenizer
from weft.tokenizers.files import load_tokenizer, read_tokenizer_json
from weft.tokenizers.streaming import StreamDecoder

__all__ = [
    "BPETokenizer",
    "ByteTokenizer",
    "CharacterTokenizer",
    "Encoded",
    "Ids",
    "IdsLike",
    "StreamDecoder",
    "Tokenizer",
    "load_tokenizer",
    "read_tokenizer_json",
]
