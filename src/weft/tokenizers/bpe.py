"""Byte-level byte-pair encoding, learned from the training text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import tokenizers

from weft.core.errors import TokenizerError
from weft.tokenizers.library import LibraryTokenizer, require_size
from weft.tokenizers.specials import END_OF_DOCUMENT, require_ids
from weft.tokenizers.split_points import words_apart

SMALLEST_BPE = 257
"""The smallest vocabulary: the bytes, and the end of a document."""


class BPETokenizer(LibraryTokenizer):
    """Byte-level BPE: the most frequent pairs of the text's bytes are merged (Sennrich et al. 2016, algorithm 1; on
    bytes as in GPT-2, Radford et al. 2019, section 2.2), so any text can be expressed and decoded exactly."""

    kind: ClassVar[str] = "bpe"

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> BPETokenizer:
        """Byte-level BPE learned from ``texts``: the 256 bytes, the end of a document, and merges. Raises
        `TokenizerError`: a ``vocab_size`` below 257, or one that the text is too small or too uniform to fill."""
        require_ids(vocab_size, "vocab_size")
        if vocab_size < SMALLEST_BPE:
            raise TokenizerError(
                f"byte-level BPE needs at least {SMALLEST_BPE} ids (256 bytes and the end of a document), "
                f"received {vocab_size}.", where="vocab_size", remedy="Raise it, or use the tokenizer 'bytes'.")
        library = _train(texts, vocab_size)
        require_size(library.get_vocab_size(), vocab_size)
        return cls(library.to_str(), bos=END_OF_DOCUMENT, eos=END_OF_DOCUMENT)


def _train(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab_size, min_frequency=2, special_tokens=[END_OF_DOCUMENT],
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
                                             show_progress=False)
    library.train_from_iterator(words_apart(texts), trainer)
    return library
