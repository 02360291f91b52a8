"""WordPiece with BERT's conventions, learned from the training text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import ClassVar

import tokenizers

from weft.tokenizers.library import LibraryTokenizer, require_size
from weft.tokenizers.specials import require_ids
from weft.tokenizers.split_points import words_apart

PAD, UNKNOWN, OPENING, CLOSING, MASK = SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_CHARACTERS = 100
"""Words with more characters are unknown, as in BERT's released code."""

MAX_ALPHABET = 1000
"""The number of most frequent characters in the vocabulary; others are unknown, as in the library's trainer."""


class WordPieceTokenizer(LibraryTokenizer):
    """Words split into the longest pieces that the vocabulary has, from the left; ``##`` marks a piece inside a word
    (Devlin et al. 2019, section 3; released ``tokenization.py``).

    Words end at white space and around punctuation. A word that cannot be split into pieces, or has over 100
    characters, is ``[UNK]``. White space is not kept, so decoding gives words with single spaces between them;
    ``measure`` counts the bytes of the source in any case. ``[CLS]`` opens a document and ``[SEP]`` closes it.

    The pieces are learned as the ``tokenizers`` library does, by merging frequent pairs; the likelihood criterion of
    Schuster and Nakajima (2012) was never released.
    """

    kind: ClassVar[str] = "wordpiece"

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, *, lowercase: bool = False) -> WordPieceTokenizer:
        """WordPiece learned from ``texts``: five special tokens, the characters, and pieces.

        Args:
            lowercase: convert capitals to small letters and drop accents, as BERT's uncased models do.

        Raises:
            TokenizerError: a ``vocab_size`` that the characters alone exceed, or that the text cannot fill.
        """
        require_ids(vocab_size, "vocab_size")
        library = _trained(texts if isinstance(texts, Collection) else list(texts), vocab_size, lowercase=lowercase)
        require_size(library.get_vocab_size(), vocab_size)
        return cls(library.to_str(), bos=OPENING, eos=CLOSING)


def word_piece_library(model: tokenizers.models.WordPiece, *, lowercase: bool, strip_accents: bool | None = None,
                       split_chinese: bool = True) -> tokenizers.Tokenizer:
    """A WordPiece model with BERT's normaliser, words and decoder.

    Args:
        lowercase: convert capitals to small letters.
        strip_accents: drop accents; None: if ``lowercase``.
        split_chinese: make every Chinese character a word.
    """
    library = tokenizers.Tokenizer(model)
    library.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=split_chinese, strip_accents=strip_accents, lowercase=lowercase)
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    library.decoder = tokenizers.decoders.WordPiece(prefix="##")
    return library


def _trained(texts: Collection[str], vocab_size: int, *, lowercase: bool) -> tokenizers.Tokenizer:
    """The pieces of single characters inside words, in order. The library numbers them in the order of its hash tables
    and breaks ties between pairs by number; given them as special tokens, it learns the same from the same text."""
    learner = _with_model({}, lowercase=lowercase)
    first, inner = _alphabet(learner, texts)
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[*SPECIALS, *(f"##{character}" for character in inner)],
        initial_alphabet=first,
        limit_alphabet=len(first),
        continuing_subword_prefix="##",
        show_progress=False,
    )
    learner.train_from_iterator(words_apart(texts), trainer)
    library = _with_model(learner.get_vocab(with_added_tokens=False), lowercase=lowercase)
    library.add_special_tokens(list(SPECIALS))
    return library


def _with_model(ids: dict[str, int], *, lowercase: bool) -> tokenizers.Tokenizer:
    model = tokenizers.models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=MAX_CHARACTERS)
    return word_piece_library(model, lowercase=lowercase)


def _alphabet(library: tokenizers.Tokenizer, texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """The characters of words, and those that occur inside one; at most the MAX_ALPHABET most frequent."""
    words: Counter[str] = Counter()
    for text in words_apart(texts):
        cut = library.pre_tokenizer.pre_tokenize_str(library.normalizer.normalize_str(text))
        words.update(word for word, _ in cut)
    counts: Counter[str] = Counter()
    for word, count in words.items():
        counts.update({character: count * word.count(character) for character in set(word)})
    kept = sorted(counts, key=lambda character: (-counts[character], character))[:MAX_ALPHABET]
    inner = {character for word in words for character in word[1:]}
    return sorted(kept), sorted(inner & set(kept))
