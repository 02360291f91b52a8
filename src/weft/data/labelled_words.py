"""Texts of words with a class each: which token stands for a word, and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from weft.core.errors import DataError
from weft.data.corpus import Corpus
from weft.data.duplicates import Repeated
from weft.data.labelled import class_id, class_names, label_of
from weft.data.pairs import ends_of
from weft.data.records import text_of
from weft.data.rows import values_of
from weft.data.sequences import Sequences, SequenceWriter, encoded_texts
from weft.tokenizers import Tokenizer


def words_of(value: Any, setting: str, field: str, where: str) -> list[str]:
    """A record's words: a list of them, or a text (in tables) whose words stand between white space. Raises
    `DataError`: it is neither, there is no word, or a word is no text or empty."""
    listed = _listed(value, "words", setting, field, where)
    if not listed:
        raise DataError(f"the field {field!r} has no words.", where=where, remedy="Fill it in, or remove that record.")
    words = [text_of(word, setting, field, f"{where}, word {place}") for place, word in enumerate(listed, 1)]
    empty = next((place for place, word in enumerate(words, 1) if not word.strip()), None)
    if empty is not None:
        raise DataError(f"the word of the field {field!r} is empty.", where=f"{where}, word {empty}",
                        remedy="Remove that word and its label.")
    return words


def labels_of(value: Any, setting: str, field: str, where: str, count: int) -> list[str]:
    """The names of the classes of a record's ``count`` words: a list of names or whole numbers, or a text (in tables)
    whose names stand between white space. Raises `DataError`: it is neither, there are not ``count`` of them, or one is
    missing."""
    labels = _listed(value, "labels", setting, field, where)
    if len(labels) != count:
        raise DataError(f"{count} words, and the field {field!r} has {len(labels)} labels.", where=where,
                        remedy="Give each word one label, or remove that record.")
    return [label_of(label, field, f"{where}, word {place}") for place, label in enumerate(labels, 1)]


def texts_of(corpus: Corpus) -> Iterator[str]:
    """The text of each record: its words with a space between them."""
    return (" ".join(values_of(row)[0]) for row in corpus.documents)


def word_classes(corpus: Corpus) -> tuple[str, ...]:
    """The names of all classes of words, in the order of `weft.data.labelled.class_names`."""
    return class_names((str(label) for row in corpus.documents for label in values_of(row)[1]), "words", corpus.name)


def first_tokens(words: Sequence[str], byte_lengths: Integer[np.ndarray, " T"], where: str) -> Int64[np.ndarray, " W"]:
    """The place of each word's first token: the first one that has a byte of the word.

    Args:
        words: of the text, in which a space stands between them.
        byte_lengths: bytes of the text that each token represents; white space that no token has counts with the next.

    Raises:
        DataError: a word has no first token of its own, because the tokenizer has a token for more than one word or
            none for a word.
    """
    sizes = np.array([len(word.encode()) for word in words], dtype=np.int64)
    behind = np.cumsum(sizes + 1) - 1
    stops = np.cumsum(byte_lengths, dtype=np.int64)
    first: np.ndarray = np.searchsorted(stops, behind - sizes, side="right")
    if not len(stops):
        raise DataError("the tokenizer has no token for any word.", where=where, remedy="Remove that record.")
    # A token that begins before the end of the word before has bytes of that word. So has, by the way bytes are
    # counted, the token next to a word that gives none (a character that the tokenizer drops).
    shared = np.flatnonzero((stops - byte_lengths)[first][1:] < behind[:-1])
    if len(shared):
        place = int(shared[0])
        raise DataError(f"the words {place + 1} and {place + 2}, {words[place]!r} and {words[place + 1]!r}, share a "
                        "token, or the tokenizer has none for one of them.", where=where,
                        remedy="Remove the word that is no text and its label, or give a tokenizer that separates "
                               "words.")
    return first


@dataclass(frozen=True, eq=False)
class LabelledWords:
    """Texts as tokens, with the classes of their words.

    Attributes:
        rows: tokens of each example: opening token, text, closing token.
        classes: for each of these tokens 1 + the class of the word whose first token it is; 0 for all others.
        cut: examples that were longer than the context.
        left_out: words of these whose first token is beyond the context.
        corpus: name of the records.
        repeated: of held-out records: how many are also trained on; None: unknown.
    """

    rows: Sequences
    classes: Sequences
    cut: int
    left_out: int
    corpus: str
    repeated: Repeated | None

    def __len__(self) -> int:
        """Tokens."""
        return len(self.rows.ids)


def encode_words(corpus: Corpus, tokenizer: Tokenizer, names: Sequence[str], context: int, repeated: Repeated | None, *,
                 cut: bool) -> LabelledWords:
    """Encode every record's words as one text, and find the token that has each word's class.

    Args:
        corpus: of records that hold words and the names of their classes.
        context: tokens of an example at most.
        repeated: see `LabelledWords`.
        cut: whether longer texts are cut at the end.

    Raises:
        DataError: a label is none of ``names``; a word has no first token of its own, see `first_tokens`; a text is
            longer than the context, and ``cut`` is False, or no word of it fits.
        TokenizerError: the tokenizer cannot express a text; ``where`` names the record.
    """
    known, (opening, closing) = {name: place for place, name in enumerate(names)}, ends_of(tokenizer)
    rows, classes = (SequenceWriter(corpus.name, most) for most in (tokenizer.vocab_size - 1, len(names)))
    encoded = encoded_texts(((row.name, " ".join(values_of(row)[0])) for row in corpus.documents), tokenizer)
    room, longer, left_out = max(0, context - len(opening) - len(closing)), 0, 0
    for row, text in zip(corpus.documents, encoded, strict=True):
        where, (words, labels) = f"{corpus.name}, {row.name}", values_of(row)
        first = first_tokens(words, text.byte_lengths, where)
        kept = first[first < room]
        if len(text.ids) > room and (not cut or not len(kept)):
            raise _too_long(where, len(text.ids) + context - room, context, fits=len(kept) > 0)
        longer, left_out = longer + (len(text.ids) > room), left_out + len(first) - len(kept)
        ids = np.concatenate([opening, text.ids[:room], closing])
        found = np.zeros(len(ids), dtype=np.int64)
        found[len(opening) + kept] = [1 + class_id(known, label, where) for label in labels[:len(kept)]]
        rows.add(ids)
        classes.add(found)
    return LabelledWords(rows.done(), classes.done(), longer, left_out, corpus.name, repeated)


def _too_long(where: str, tokens: int, context: int, *, fits: bool) -> DataError:
    cutting = ", or set task.cut: true, and the words beyond it are left out and counted" if fits else ""
    return DataError(f"the text has {tokens} tokens with those around it, and the context is {context}"
                     f"{'' if fits else ', in which no word has room'}.", where=where,
                     remedy=f"Raise training.context, remove that record{cutting}.")


def _listed(value: Any, what: str, setting: str, field: str, where: str) -> list[Any]:
    listed = value.split() if isinstance(value, str) else value
    if not isinstance(listed, list):
        held = "null" if value is None else f"a {type(value).__name__}"
        raise DataError(f"the field {field!r} holds {held}, neither a list of {what} nor a text.", where=where,
                        remedy=f"Correct or remove that record, or name another field with {setting}.")
    return listed
