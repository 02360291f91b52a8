"""Texts with classes or values: labels and tokens."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from weft.core.errors import DataError, nearest
from weft.data.corpus import Corpus
from weft.data.duplicates import Repeated
from weft.data.layout import NO_IDS, layout_of
from weft.data.rows import values_of
from weft.data.sequences import Sequences, SequenceWriter, encoded_texts
from weft.tokenizers import Encoded, Tokenizer

MOST_NAMED = 20
"""Number of classes that an error message lists."""


def label_of(value: Any, field: str, where: str, otherwise: str = "") -> str:
    """The name of a class: text, or a whole number as text.

    Args:
        field: its name, for messages.
        otherwise: what else may be done about a number that is not whole, for the message.

    Raises:
        DataError: the value is missing, or is neither.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, str) and value.strip()):
        return str(value)
    if value is None or isinstance(value, str):
        raise DataError(f"the label is missing: the field {field!r} holds {'null' if value is None else 'no text'}.",
                        where=where, remedy="Label that record, or remove it.")
    raise DataError(f"the field {field!r} holds a {type(value).__name__}, while a class is a name or a whole number.",
                    where=where, remedy=f"Correct that record{otherwise}.")


def values_from(value: Any, field: str, where: str, count: int) -> list[float]:
    """A record's values: a number, text that spells a number (in tables), or a list of numbers. Raises `DataError`:
    they are missing or not finite numbers, or there are not ``count`` of them."""
    given = value if isinstance(value, list) else [value]
    found = [_number(each) for each in given]
    if len(found) != count or not all(each is not None and math.isfinite(each) for each in found):
        asked = "a number" if count == 1 else f"a list of {count} numbers"
        raise DataError(f"the field {field!r} holds {value!r}, not {asked}.", where=where,
                        remedy="Correct or remove that record.")
    return [each for each in found if each is not None]


def names_in(corpus: Corpus) -> tuple[str, ...]:
    """The names of the classes in records whose last value is one, see `class_names`."""
    return class_names((str(values_of(row)[-1]) for row in corpus.documents), "records", corpus.name)


def class_names(labels: Iterable[str], what: str, where: str) -> tuple[str, ...]:
    """The different names among labels: in numerical order if all are whole numbers, otherwise in alphabetical order.

    Args:
        labels: of everything to train on.
        what: has a label each, for messages.
        where: the data's name, for messages.

    Raises:
        DataError: there are fewer than two.
    """
    names = set(labels)
    if len(names) < 2:
        raise DataError(f"all {what} to train on have the label {next(iter(names))!r}, so there is nothing to tell "
                        "apart.", where=where, remedy=f"Give {what} of at least two classes.")
    if all(name.removeprefix("-").isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Texts as tokens, with their classes or values.

    Attributes:
        rows: tokens of each example: opening token, text, closing token; and, of a pair, the second text and another
            closing token.
        second: tokens of each example that belong to its second text.
        labels: the class of each, or its values [n,C].
        cut: examples that were longer than the context.
        corpus: name of the records.
        repeated: of held-out records: how many are also trained on; None: unknown.
    """

    rows: Sequences
    second: Int64[np.ndarray, " n"]
    labels: Shaped[np.ndarray, "n ..."]
    cut: int
    corpus: str
    repeated: Repeated | None

    def __len__(self) -> int:
        """Tokens."""
        return len(self.rows.ids)


def encode_labelled(corpus: Corpus, tokenizer: Tokenizer, names: Sequence[str] | None, context: int,
                    repeated: Repeated | None) -> LabelledTexts:
    """Records of one or two texts and a label as tokens.

    Texts that do not fit into the context are cut at the end: of a pair, first the longer one, until both are equally
    long.

    Args:
        tokenizer: that encodes their texts.
        names: of the classes; None: labels are values.
        context: tokens of an example at most.
        repeated: see `LabelledTexts`.

    Raises:
        DataError: a label is none of ``names``.
        TokenizerError: the tokenizer cannot express a text; ``where`` names the record.
    """
    known = None if names is None else {name: place for place, name in enumerate(names)}
    writer, labels, second, cut = SequenceWriter(corpus.name, tokenizer.vocab_size - 1), list[Any](), list[int](), 0
    frame = Frame(tokenizer, context)
    encoded = encoded_texts(((row.name, text) for row in corpus.documents for text in values_of(row)[:-1]), tokenizer)
    for row in corpus.documents:
        *texts, label = values_of(row)
        tokens, behind, shorter = frame.around(list(islice(encoded, len(texts))))
        writer.add(tokens)
        second.append(behind)
        cut += shorter
        labels.append(label if known is None else class_id(known, str(label), f"{corpus.name}, {row.name}"))
    return LabelledTexts(writer.done(), np.array(second, dtype=np.int64),
                         np.array(labels, dtype=np.float64 if known is None else np.int64), cut, corpus.name, repeated)


class Frame:
    """The tokens around the texts of an example, and how texts are cut.

    Args:
        tokenizer: whose tokens open and close documents.
        context: tokens of an example at most; None: no limit.
    """

    def __init__(self, tokenizer: Tokenizer, context: int | None = None) -> None:
        layout = layout_of(tokenizer)
        closing = layout.final if layout.closing is None else layout.closing
        self._opening, self._closing = (NO_IDS if token is None else np.array([token], dtype=np.int32)
                                        for token in (layout.opening, closing))
        self._context = sys.maxsize if context is None else context

    def around(self, texts: list[Encoded]) -> tuple[np.ndarray, int, bool]:
        """The tokens of an example, how many of them belong to its second text, and whether any were cut."""
        room = max(0, self._context - len(self._opening) - len(texts) * len(self._closing))
        sizes = _fitted([len(text.ids) for text in texts], room)
        pieces = [np.concatenate([text.ids[:size], self._closing]) for text, size in zip(texts, sizes, strict=True)]
        behind = sum(len(piece) for piece in pieces[1:])
        tokens = np.concatenate([self._opening, *pieces])[:self._context]
        return tokens, min(behind, len(tokens)), sum(sizes) < sum(len(text.ids) for text in texts)


def _fitted(sizes: list[int], room: int) -> list[int]:
    """How many tokens of one or two texts fit into ``room``; the longer text is cut first."""
    if len(sizes) == 1 or sum(sizes) <= room:
        return [min(size, room) for size in sizes]
    least = min(*sizes, room // 2)
    return [least, min(sizes[1], room - least)] if sizes[0] <= sizes[1] else [min(sizes[0], room - least), least]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def class_id(known: Mapping[str, int], name: str, where: str) -> int:
    """The id of a class.

    Args:
        known: the ids of the model's classes by name.

    Raises:
        DataError: it is none of them.
    """
    if name not in known:
        listed = ", ".join(islice(known, MOST_NAMED)) + (", ..." if len(known) > MOST_NAMED else "")
        raise DataError(f"the label {name!r} is none of the model's {len(known)} classes: {listed or 'none'}.",
                        where=where, remedy=f"{nearest(name, known)} Correct the record, give records of that class to "
                                            "train on, or name it in model.head.labels.")
    return known[name]

