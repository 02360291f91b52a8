"""Rows of token ids as users give them: lists of different lengths, checked before the model runs.

    [[5, 3, 9], {"tokens": [5]}, {"source": [4, 4], "target": [1]}]
    [{"tokens": [5, 3, 9], "types": [0, 0, 1], "global": [1, 0, 0]}]       for encoders that read them
    [{"tokens": [5, 3, 9], "prefix": 2}]                                   for masks that have a prefix
    [{"words": ["Ada", "Lovelace"]}]                                       for models that give each word a class
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np

from weft.core.declarations import Trait
from weft.core.errors import InputError, nearest
from weft.core.layer import traits_of
from weft.core.model import LanguageModel
from weft.data.text import read_text
from weft.disk.documents import Unreadable, parse_json

KEYS = ("tokens", "source", "target", "types", "global", "prefix")


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        tokens: ids; those of the target if there is a source.
        source: ids of the encoder's input in an encoder-decoder, else None.
        types: the segment id of each token, for an encoder that reads them; None: not given.
        globals_: 1 for each token that is global, else 0, for an encoder whose masks read them; None: not given.
        prefix: how many of the first tokens attend to one another in both directions, for masks that have a prefix.
    """

    tokens: tuple[int, ...]
    source: tuple[int, ...] | None = None
    types: tuple[int, ...] | None = None
    globals_: tuple[int, ...] | None = None
    prefix: int = 0


@dataclass(frozen=True)
class WordsRow:
    """A row of words, each of which gets a class.

    Attributes:
        words: in their order; the text is that of all of them, with a space between two.
    """

    words: tuple[str, ...]


RowLike: TypeAlias = Row | Sequence[int] | np.ndarray | Mapping[str, Any]


def read_rows(path: str | Path) -> list[Row]:
    """Read the rows of a JSON file.

    Raises:
        DataError: the file is missing, empty or not UTF-8.
        InputError: the path is a folder, or the file is not JSON or not a list of rows; the message names the row.
    """
    return parse_rows(_read(path), where=str(path))


def read_rows_or_words(path: str | Path) -> list[Row | WordsRow]:
    """`read_rows` of a file whose rows may be of words.

    Raises:
        DataError: as `read_rows`.
        InputError: as `read_rows`, or a row has words beside ids, none, or something that is no word.
    """
    return [words_row(row, place) if has_words(row) else _parsed(row, place)
            for row, place in _placed(_read(path), str(path))]


def has_words(row: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a row, as plain data, is of words."""
    return isinstance(row, Mapping) and "words" in row


def words_row(row: Mapping[str, Any], where: str) -> WordsRow:
    """A row of words from plain data. Raises `InputError`: it has other keys too, no words, or something that is no
    word."""
    beside = next((key for key in row if key != "words"), None)
    if beside is not None:
        raise InputError(f"the row has both 'words' and {beside!r}.", where=where, remedy="Leave one of them out.")
    words = row["words"]
    if not isinstance(words, list | tuple) or not words:
        raise InputError(f"{_kind(words)} where a list of words is expected." if words != [] else "there are no words.",
                         where=f"{where}.words", remedy='Give words, such as ["Ada", "Lovelace"].')
    for place, word in enumerate(words):
        if not isinstance(word, str) or not word.strip():
            raise InputError(f"{_kind(word)} where a word is expected.", where=f"{where}.words[{place}]",
                             remedy="Give texts that are not empty.")
    return WordsRow(tuple(words))


def _read(path: str | Path) -> object:
    if Path(path).is_dir():
        raise InputError("the path is a folder.", where=str(path), remedy="Give the path of a JSON file.")
    try:
        data: object = parse_json(read_text(path).documents[0].text)
    except Unreadable as error:
        raise InputError(f"the file cannot be read ({error}).", where=str(path),
                         remedy="Give a list of rows, such as [[1, 2, 3], [4, 5]].") from None
    return data


def parse_rows(data: object, *, where: str = "rows") -> list[Row]:
    """Parse rows from plain data: a list of lists of ids, or of objects with ``tokens``, or ``source`` and ``target``.
    Raises `InputError`: the data is none of these; the message names the row and the place in it."""
    return [_parsed(row, place) for row, place in _placed(data, where)]


def _placed(data: object, where: str) -> list[tuple[object, str]]:
    """The rows of plain data, each with its place for messages."""
    if not isinstance(data, list | tuple):
        raise InputError(f"{_kind(data)} where a list of rows is expected.", where=where,
                         remedy="Give a list of rows, such as [[1, 2, 3], [4, 5]].")
    if not data:
        raise InputError("the list of rows is empty.", where=where, remedy="Give at least one row.")
    return [(row, f"{where}[{index}]") for index, row in enumerate(data)]


def _parsed(row: object, where: str) -> Row:
    return row if isinstance(row, Row) else _row(row, where)


def check_rows(rows: Sequence[Row], model: LanguageModel, *, where: str = "rows") -> None:
    """Refuse rows that the model cannot take. Raises `InputError`: an id outside the vocabulary, a source for a model
    that takes none, or no source for one that needs it."""
    for index, row in enumerate(rows):
        place = f"{where}[{index}]"
        name = place if row.source is None else f"{place}.target"
        for position, token in enumerate(row.tokens):
            require_token(token, model.vocab_size, f"{name}[{position}]")
        _check_source(row, model, place)
        if row.prefix:
            _check_prefix(row, model, place)


def require_token(token: int, vocab_size: int, where: str) -> None:
    """Refuse an id outside the vocabulary. Raises `InputError`: the id is negative or not below ``vocab_size``."""
    if not 0 <= token < vocab_size:
        raise InputError(f"id {token} is outside the vocabulary of {vocab_size} ids.", where=where,
                         remedy=f"Give ids from 0 to {vocab_size - 1}.")


def with_start(rows: Sequence[Row], start: int | None, model: LanguageModel, *, only_empty: bool) -> list[Row]:
    """Put a start token before every row, or only before empty rows. Raises `InputError`: the start token is outside
    the vocabulary."""
    if start is None:
        return list(rows)
    require_token(start, model.vocab_size, "start")
    return [row if only_empty and row.tokens else
            Row((start, *row.tokens), row.source, prefix=row.prefix + (row.prefix > 0)) for row in rows]


def _check_prefix(row: Row, model: LanguageModel, place: str) -> None:
    if not 0 <= row.prefix <= len(row.tokens):
        raise InputError(f"a prefix of {row.prefix} in a row of {len(row.tokens)} tokens.", where=f"{place}.prefix",
                         remedy="Give the number of its first tokens that are read in both directions.")
    if Trait.PREFIX_FIRST not in traits_of(model):
        raise InputError("a prefix, and no mask of this model has one.", where=f"{place}.prefix",
                         remedy="Leave it out, or give a model with mask: causal | prefix.")


def _check_source(row: Row, model: LanguageModel, place: str) -> None:
    beside = [name for name, given in (("types", row.types), ("global", row.globals_)) if given is not None]
    if beside:
        raise InputError(f"a language model reads no {beside[0]}.", where=f"{place}.{beside[0]}",
                         remedy="Leave them out, or give an encoder that reads them.")
    if row.source is None and model.takes_source:
        raise InputError("the row has no source, and this model decodes from one.", where=place,
                         remedy='Give {"source": [...], "target": [...]}; weft translate takes sources as text.')
    if row.source is None:
        return
    if not model.takes_source:
        raise InputError("the row has a source, and this model takes none.", where=f"{place}.source",
                         remedy='Give a list of ids, or {"tokens": [...]}.')
    if not row.source:
        raise InputError("the source is empty.", where=f"{place}.source", remedy="Give at least one id.")
    limit = model.source_limit()
    if limit is not None and len(row.source) > limit:
        raise InputError(f"{len(row.source)} tokens, and the encoder has positions for {limit}.",
                         where=f"{place}.source", remedy="Shorten the source.")
    for position, token in enumerate(row.source):
        require_token(token, model.source_vocab_size, f"{place}.source[{position}]")


def _row(data: object, where: str) -> Row:
    if not isinstance(data, Mapping):
        return Row(_ids(data, where))
    for key in data:
        if key not in KEYS:
            raise InputError(f"unknown key {key!r}.", where=where, remedy=nearest(str(key), KEYS))
    if "source" in data:
        if "tokens" in data:
            raise InputError("the row has both 'source' and 'tokens'.", where=where,
                             remedy="Name the ids that follow a source 'target'.")
        for name in ("types", "global", "prefix"):
            if name in data:
                raise InputError(f"the row has both 'source' and {name!r}.", where=where,
                                 remedy="Leave one of them out.")
        return Row(_ids(data.get("target", []), f"{where}.target"), _ids(data["source"], f"{where}.source"))
    if "target" in data:
        raise InputError("the row has a 'target' and no 'source'.", where=where,
                         remedy="Add the source, or name the ids 'tokens'.")
    if "tokens" not in data:
        raise InputError("the row has no ids.", where=where, remedy="Give 'tokens', or 'source' and 'target'.")
    types, marks = (None if data.get(name) is None else _ids(_numbers(data[name]), f"{where}.{name}")
                    for name in ("types", "global"))
    prefix, = _ids([data.get("prefix", 0)], f"{where}.prefix")
    return Row(_ids(data["tokens"], f"{where}.tokens"), types=types, globals_=marks, prefix=prefix)


def _numbers(data: object) -> object:
    """A list with 1 for true and 0 for false; anything else as it is."""
    return [int(each) if isinstance(each, bool) else each for each in data] if isinstance(data, list | tuple) else data


def _ids(data: object, where: str) -> tuple[int, ...]:
    if not isinstance(data, list | tuple | np.ndarray):
        raise InputError(f"{_kind(data)} where a list of ids is expected.", where=where,
                         remedy="Give token ids, such as [1, 2, 3].")
    for position, token in enumerate(data):
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise InputError(f"{_kind(token)} where a token id is expected.", where=f"{where}[{position}]",
                             remedy="Give whole numbers.")
    return tuple(int(token) for token in data)


def _kind(value: object) -> str:
    """Describe a value for a message, in the terms of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float | str):
        shown = json.dumps(value)
        return f"the {type(value).__name__} {shown if len(shown) <= 40 else shown[:37] + '...'}"
    names: dict[type, str] = {list: "a list", tuple: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
