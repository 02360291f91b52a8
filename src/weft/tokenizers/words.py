"""Words as tokens: text split at white space, as in the classical language-model benchmarks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import TokenizerError
from weft.tokenizers.base import Encoded, Tokenizer, TokenizerFacts, setting, utf8
from weft.tokenizers.pieces import Ids, IdsLike, check_ids
from weft.tokenizers.specials import read_vocabulary
from weft.tokenizers.split_points import words_apart
from weft.tokenizers.streaming import StreamDecoder, byte_spans, code_points

END, UNKNOWN = "<eos>", "<unk>"
END_ID, UNKNOWN_ID = 0, 1
VOCABULARY_FILE = "words.txt"
LINE_END = ord("\n")
WORDS_AND_LINE_ENDS = re.compile(r"\n|\S+")
LARGEST_SPACE = 0x3000
"""The last white-space character of Unicode."""


class WordTokenizer(Tokenizer):
    """One id per white-space-separated word; ``<eos>`` is 0 and ``<unk>``, for every other word, is 1.

    A text that contains the word ``<unk>``, as the Penn Treebank's files do, uses it for the unknown word. Decoding
    puts one space between words, so it restores a text of known words with single spaces; ``measure`` counts the
    bytes of any text exactly: a word's own and those of the white space before it.

    Args:
        words: the vocabulary, in the order of its ids from 2 on.
        end_of_line: every line end is the token ``<eos>``, as in the Penn Treebank protocol (Mikolov et al. 2010);
            without it a line end is white space, and ``<eos>`` only stands between documents.

    Raises:
        TokenizerError: no words, a word twice, one with white space in it, or ``<unk>``, which is always present.
    """

    kind: ClassVar[str] = "words"

    def __init__(self, words: Sequence[str], *, end_of_line: bool = False) -> None:
        self._words, self._end_of_line = tuple(words), end_of_line
        self._ids = {word: place for place, word in enumerate(words, start=2)}
        _check_words(self._words)
        self._ids[UNKNOWN] = UNKNOWN_ID
        if end_of_line:
            self._ids["\n"] = END_ID
        self._texts = ("\n" if end_of_line else "", UNKNOWN, *self._words)
        super().__init__(TokenizerFacts(len(self._texts), END_ID, END_ID, {END: END_ID}))

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int | None = None, min_count: int = 1,
              end_of_line: bool = False) -> WordTokenizer:
        """The words of ``texts``, the most frequent first, equally frequent ones in the order of their characters.

        Args:
            vocab_size: ids at most, ``<eos>`` and ``<unk>`` among them; None: no limit.
            end_of_line: see the class.

        Raises:
            TokenizerError: no word is frequent enough, or ``vocab_size`` leaves room for none.
        """
        counts: Counter[str] = Counter()
        for part in words_apart(texts):
            counts.update(part.split())
        del counts[UNKNOWN]
        frequent = [item for item in counts.items() if item[1] >= min_count]
        ordered = [word for word, _ in sorted(frequent, key=lambda item: (-item[1], item[0]))]
        return cls(ordered[: None if vocab_size is None else max(0, vocab_size - 2)], end_of_line=end_of_line)

    @property
    def words(self) -> tuple[str, ...]:
        """The vocabulary, in the order of its ids from 2 on."""
        return self._words

    @property
    def unknown_id(self) -> int:
        """The id of words outside the vocabulary."""
        return UNKNOWN_ID

    def spellings(self) -> Sequence[bytes]:
        return [text.encode() if place == END_ID else f" {text}".encode() for place, text in enumerate(self._texts)]

    def encode_array(self, text: str) -> Ids:
        utf8(text)
        words = WORDS_AND_LINE_ENDS.findall(text) if self._end_of_line else text.split()
        known, unknown = self._ids.get, UNKNOWN_ID
        return np.array([known(word, unknown) for word in words], dtype=np.int32)

    def measure(self, text: str) -> Encoded:
        return Encoded(self.encode_array(text), byte_spans(text, self._ends(text)))

    def decode(self, ids: IdsLike, *, specials: bool = False) -> str:
        stream = self.stream(specials=specials)
        return "".join([stream.push(token) for token in check_ids(ids, self.vocab_size).tolist()])

    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        check_ids(ids, self.vocab_size)
        raise TokenizerError(
            "words do not determine how many bytes of text they stand for: they lack white space and unknown words.",
            where="ids", remedy="Measure the text itself, with measure(text).")

    def stream(self, *, specials: bool = False) -> StreamDecoder:
        shown = END if specials and not self._end_of_line else self._texts[END_ID]
        return _WordStream((shown, *self._texts[1:]))

    def may_join(self, before: str, separator: str) -> bool:
        return False  # no word has white space in it

    def settings(self) -> dict[str, Any]:
        return {"end_of_line": self._end_of_line}

    def files(self) -> dict[str, bytes]:
        return {VOCABULARY_FILE: "".join(f"{word}\n" for word in self._words).encode()}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> WordTokenizer:
        words = read_vocabulary(folder / VOCABULARY_FILE).decode("utf-8").split("\n")[:-1]
        return cls(words, end_of_line=setting(settings, "end_of_line", bool))

    def _ends(self, text: str) -> NDArray[np.intp]:
        """The character before which each token ends."""
        points = code_points(text)
        word = ~_is_space()[np.minimum(points, LARGEST_SPACE + 1)]
        last = word & ~np.append(word[1:], False)
        return 1 + np.flatnonzero(last | (points == LINE_END) if self._end_of_line else last)


class _WordStream(StreamDecoder):
    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._spaced = texts, False

    def push(self, token: int) -> str:
        check_ids([token], len(self._texts))
        text = self._texts[token]
        if text in ("", "\n"):
            self._spaced = self._spaced and not text
            return text
        piece = f" {text}" if self._spaced else text
        self._spaced = True
        return piece

    def finish(self) -> str:
        self._spaced = False
        return ""


@cache
def _is_space() -> NDArray[np.bool_]:
    """Whether a code point is white space, up to the last that is; one entry more stands for all others."""
    return np.array([chr(point).isspace() for point in range(LARGEST_SPACE + 2)])


def _check_words(words: Sequence[str]) -> None:
    if not words:
        raise TokenizerError("the vocabulary has no words.", where="words",
                             remedy="Train it on text that is not empty, lower min_count or raise vocab_size.")
    counts = Counter(words)
    wrong = [word for word in words if word.split() != [word] or counts[word] > 1 or word == UNKNOWN]
    if wrong:
        raise TokenizerError(
            f"{wrong[0]!r} cannot be a word of the vocabulary: each occurs once, has no white space and is not "
            f"{UNKNOWN}.", where="words", remedy="Remove it.")
