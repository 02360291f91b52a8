"""Tokenizers: text to ids and back, with exact counts of bytes. They do not depend on models."""

from __future__ import annotations

from weft.tokenizers.base import Encoded, Tokenizer
from weft.tokenizers.bpe import BPETokenizer
from weft.tokenizers.byte import ByteTokenizer
from weft.tokenizers.character import CharacterTokenizer
from weft.tokenizers.files import load_tokenizer
from weft.tokenizers.library import FileTokenizer
from weft.tokenizers.pieces import Ids, IdsLike
from weft.tokenizers.published import read_tokenizer, read_tokenizer_json
from weft.tokenizers.rwkv_world import RWKVWorldTokenizer
from weft.tokenizers.sentence_piece import SentencePieceTokenizer, train_sentence_piece
from weft.tokenizers.specials import AddedToken, Conventions
from weft.tokenizers.streaming import StreamDecoder
from weft.tokenizers.unigram import UnigramTokenizer
from weft.tokenizers.wordpiece import WordPieceTokenizer
from weft.tokenizers.words import WordTokenizer

__all__ = ["AddedToken", "BPETokenizer", "ByteTokenizer", "CharacterTokenizer", "Conventions", "Encoded",
           "FileTokenizer", "Ids", "IdsLike", "RWKVWorldTokenizer", "SentencePieceTokenizer", "StreamDecoder",
           "Tokenizer", "UnigramTokenizer", "WordPieceTokenizer", "WordTokenizer", "load_tokenizer", "read_tokenizer",
           "read_tokenizer_json", "train_sentence_piece"]
