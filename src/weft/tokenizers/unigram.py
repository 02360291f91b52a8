"""The unigram language model over subwords, learned from the training text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, ClassVar

import tokenizers

from weft.core.errors import TokenizerError
from weft.tokenizers.library import LibraryTokenizer, require_size
from weft.tokenizers.library_pieces import SPACE
from weft.tokenizers.specials import require_ids
from weft.tokenizers.split_points import words_apart

UNKNOWN, OPENING, CLOSING = SPECIALS = ("<unk>", "<s>", "</s>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
SMALLEST_UNIGRAM = len(SPECIALS) + len(BYTES) + 32
"""The smallest vocabulary: special tokens, bytes, and a few characters to split words into."""

BYTE_SCORE = -1e4
"""Log-probability of a byte: so low that the text ``<0x0A>`` is never encoded as that byte, since characters can
always express its spelling."""

SCORE_DIGITS = 4
"""Decimals to which log-probabilities are rounded."""

SPACING = 1e-4
"""The difference between scores of characters that the library keeps without a learned score."""


class UnigramTokenizer(LibraryTokenizer):
    """The most probable of all ways to cut a text into pieces, each with a probability learned by
    expectation maximisation and pruning (Kudo 2018, section 3.2), with SentencePiece's conventions.

    A space is the mark U+2581 and belongs to the word after it; one is put before the text and removed again by
    decoding. A character that the vocabulary lacks becomes its UTF-8 bytes, and nothing is normalised, so any text is
    decoded exactly, except that a U+2581 in the text becomes a space. Pieces do not cross spaces or line
    ends.
    """

    kind: ClassVar[str] = "unigram"

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> UnigramTokenizer:
        """A unigram model learned from ``texts``: ``<unk>``, ``<s>``, ``</s>``, the 256 bytes, and pieces. Raises
        `TokenizerError`: a ``vocab_size`` below 291, or one that the characters alone exceed or the text cannot
        fill."""
        require_ids(vocab_size, "vocab_size")
        if vocab_size < SMALLEST_UNIGRAM:
            raise TokenizerError(
                f"a unigram vocabulary needs at least {SMALLEST_UNIGRAM} ids (256 bytes, special tokens, characters), "
                f"received {vocab_size}.", where="vocab_size", remedy="Raise it, or use the tokenizer 'bytes'.")
        library = _untrained()
        trainer = tokenizers.trainers.UnigramTrainer(vocab_size=vocab_size - len(BYTES), special_tokens=list(SPECIALS),
                                                     unk_token=UNKNOWN, initial_alphabet=list("<0x123456789ABCDEF>"),
                                                     show_progress=False)
        try:
            library.train_from_iterator(words_apart(texts, skip=True), trainer)
        except Exception as error:  # bare Exception where the characters alone take more ids
            if "not large enough" not in str(error):
                raise
            raise TokenizerError(
                f"the characters of the training text do not fit into {vocab_size} ids, {len(BYTES)} of which are "
                "bytes.", where="vocab_size", remedy="Request more ids, or use the tokenizer 'bytes'.") from None
        return cls(_with_bytes(library, vocab_size).to_str(), bos=OPENING, eos=CLOSING)


def _untrained() -> tokenizers.Tokenizer:
    parts, cuts = tokenizers.normalizers, tokenizers.pre_tokenizers
    library = tokenizers.Tokenizer(tokenizers.models.Unigram())
    library.normalizer = parts.Sequence([parts.Prepend(SPACE), parts.Replace(" ", SPACE)])
    library.pre_tokenizer = cuts.Sequence([cuts.Split("\n", "isolated"), cuts.Split(SPACE, "merged_with_next")])
    ends = tokenizers.decoders
    library.decoder = ends.Sequence([ends.Replace(SPACE, " "), ends.ByteFallback(), ends.Fuse(), ends.Strip(" ", 1, 0)])
    return library


def _with_bytes(library: tokenizers.Tokenizer, vocab_size: int) -> tokenizers.Tokenizer:
    """The trained model with a piece for each byte after the special tokens, where SentencePiece has them.

    The result of the library depends on the order of its hash tables, which changes from run to run: in the last digits
    of scores, in the order of equal scores, and in the characters that it keeps only so that all can be expressed,
    whose scores it spaces by 1e-4 above the lowest. So scores are rounded, these characters share the lowest score, and
    pieces are sorted by score and then by their characters.
    """
    learned: dict[str, Any] = json.loads(library.to_str())["model"]
    require_size(len(learned["vocab"]) + len(BYTES), vocab_size)
    at = len(SPECIALS)
    known = {piece: round(score, SCORE_DIGITS) for piece, score in learned["vocab"][at:]}
    lowest, single = min(known.values()), [piece for piece in known if len(piece) == 1]
    spaced = lowest + len(single) * SPACING
    known.update({piece: lowest for piece in single if known[piece] <= spaced})
    ordered = sorted(known.items(), key=lambda item: (-item[1], item[0]))
    pieces = [*((special, 0.0) for special in SPECIALS), *((byte, BYTE_SCORE) for byte in BYTES), *ordered]
    library.model = tokenizers.models.Unigram(pieces, unk_id=learned["unk_id"], byte_fallback=True)
    return library
