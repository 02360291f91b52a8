"""Pairs of a source and a target as tokens.

Text files of which line i of one belongs to line i of the others, as records.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from weft.core.errors import DataError
from weft.data.corpus import Corpus
from weft.data.document import Document
from weft.data.document_buffer import Documents
from weft.data.duplicates import Repeated
from weft.data.layout import NO_IDS, layout_of
from weft.data.places import Where
from weft.data.records import Fields, TextRecord
from weft.data.rows import Values, json_table, read_rows, values_of
from weft.data.sequences import Sequences, SequenceWriter, encoded_texts
from weft.data.text import read_document
from weft.tokenizers import Tokenizer
from weft.tokenizers.lost import lost_nats


def texts_of(corpus: Corpus) -> Iterator[str]:
    """Sources and targets alternately."""
    return (text for row in corpus.documents for text in values_of(row))


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sources and targets as tokens. A source is followed by a closing token; a target is between an opening and a
    closing token.

    Attributes:
        sources: their tokens.
        targets: their tokens.
        target_bytes: bytes of text of each target's tokens.
        cut: number of pairs whose source or target was longer than the context.
        corpus: name of the records.
        repeated: see `weft.tasks.base.Examples`.
        lost: nats for text that each target's tokens do not tell, see `weft.tokenizers.lost`.
    """

    sources: Sequences
    targets: Sequences
    target_bytes: Sequences
    cut: int
    corpus: str
    repeated: Repeated | None
    lost: Float64[np.ndarray, " P"]

    def __len__(self) -> int:
        """Tokens to predict."""
        return len(self.targets.ids) - len(self.targets)


def encode_pairs(corpus: Corpus, tokenizer: Tokenizer, source_context: int, context: int, repeated: Repeated | None, *,
                 cut: bool) -> Pairs:
    """Encode every record's source and target.

    Args:
        corpus: of records that hold a source and a target.
        source_context: tokens of a source at most; fewer than ``context`` where the encoder has no more positions.
        context: tokens of a target without its opening token at most.
        repeated: see `weft.tasks.base.Examples`.
        cut: whether longer ones are cut at their ends.

    Raises:
        TokenizerError: the tokenizer cannot express a text; ``where`` names the record, or the text's file and line.
        DataError: a source or a target is longer, and ``cut`` is False.
    """
    opening, closing = ends_of(tokenizer)
    sources, targets, sizes = (SequenceWriter(corpus.name, most) for most in
                               (tokenizer.vocab_size - 1, tokenizer.vocab_size - 1, 1 << 31))
    named = ((corpus.place_of(row, value), text) for row in corpus.documents for value, text in
             enumerate(values_of(row)))
    encoded, longer, lost = encoded_texts(named, tokenizer), 0, list[float]()
    for row, source, target in zip(corpus.documents, encoded, encoded, strict=True):
        whole = np.concatenate([source.ids, closing])
        ids = np.concatenate([opening, target.ids, closing])
        lengths = np.concatenate([np.zeros_like(opening), target.byte_lengths, np.zeros_like(closing)])
        if len(whole) > source_context or len(ids) > context + 1:
            if not cut:
                raise _too_long(corpus, row, len(whole), len(ids) - 1, source_context, context)
            longer += 1
        untold = lost_nats(tokenizer, values_of(row)[1], target) if len(target.ids) else None
        lost.append(0.0 if untold is None else float(untold[:context].sum(dtype=np.float64)))
        sources.add(whole[:source_context])
        targets.add(ids[:context + 1])
        sizes.add(lengths[:context + 1])
    return Pairs(sources.done(), targets.done(), sizes.done(), longer, corpus.name, repeated, np.array(lost))


def ends_of(tokenizer: Tokenizer) -> tuple[Int64[np.ndarray, " o"], Int64[np.ndarray, " c"]]:
    """The token before each target, and the one after each source and each target; empty where there is none."""
    layout = layout_of(tokenizer)
    opening, closing = (NO_IDS if token is None else np.array([token], dtype=np.int32)
                        for token in (layout.opening, layout.final if layout.closing is None else layout.closing))
    return opening, closing


def _too_long(corpus: Corpus, row: Document, source: int, target: int, source_context: int, context: int) -> DataError:
    """The error about a pair of which one side has more tokens than it may."""
    side, length = ("source", source) if source > source_context else ("target", target)
    limit, raised = (f"the encoder has positions for {source_context}", "Give the encoder more positions") if (
        side == "source" and source_context < context) else (f"the context is {context}", "Raise training.context")
    return DataError(f"the {side} has {length} tokens with the one that ends it, and {limit}.",
                     where=corpus.place_of(row, ("source", "target").index(side)),
                     remedy=f"{raised}, remove that pair, or set task.cut: true, and all such pairs are cut and "
                     "counted.")


PLACE = "{}"
"""Stands in a path for the name of a field, so that the path names a file for each field."""

LINE = re.compile(rb"[^\n]*\n|[^\n]+")


def read_aligned(path: Where, fields: Fields, keep: Values) -> Corpus:
    """Records from one text file for each field, or from files of records.

    A path with ``{}`` names text files: the name of each field stands there, so that ``corpus.{}.gz`` and the fields
    ``en`` and ``de`` mean ``corpus.en.gz`` and ``corpus.de.gz``. Record i consists of line i of each. Lines end at line
    feeds alone, before which a carriage return is left out. Any other path is read by `weft.data.rows.read_rows`.

    Args:
        path: with or without ``{}``.
        fields: whose names stand in the path, by the setting that gives each.
        keep: checks a record's lines, in the order of the fields, and returns what is kept of them.

    Raises:
        DataError: as `read_rows`; the files have different numbers of lines; or a line is empty.
        MissingExtra: as `read_rows`.
    """
    if not isinstance(path, str | Path) or PLACE not in str(path):
        return read_rows(path, fields, keep)
    files = [Path(str(path).replace(PLACE, name)) for name in fields.values()]
    for file, (setting, name) in zip(files, fields.items(), strict=True):
        if not file.is_file():
            raise DataError("no such file.", where=str(file),
                            remedy=f"The path is {path}, and {setting} is {name!r}; correct one of them.")
    name = Path(path).name
    return Corpus(name, Documents([json_table(name, name, _kept(name, files, keep))]), whole=True,
                  files=tuple(map(str, files)))


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a text file, compressed or not, without their ends. Raises `DataError`: the file cannot be read, or
    is damaged, binary or not UTF-8."""
    whole = (str(found[0], "utf-8") for found in LINE.finditer(read_document(path)))
    return (line.removesuffix("\n").removesuffix("\r") for line in whole)


def _kept(name: str, files: list[Path], keep: Values) -> Iterator[tuple[int, str, Any]]:
    """The number of each line, its place, and what is kept of the lines of that number."""
    number = 0
    for number, lines in enumerate(zip_longest(*map(lines_of, files)), 1):
        _require_lines(files, lines, number)
        place = f"{name}, line {number}"
        yield number, place, keep(TextRecord(number, place, lines))
    if not number:
        raise DataError("the file is empty.", where=str(files[0]), remedy="Give files that have text.")


def _require_lines(files: list[Path], lines: tuple[str | None, ...], number: int) -> None:
    for file, line in zip(files, lines, strict=True):
        if line is None:
            other = files[next(place for place, each in enumerate(lines) if each is not None)]
            raise DataError(f"the file has {number - 1:,} lines, and {other} has more; line i of one belongs to line i "
                            "of the other.", where=str(file),
                            remedy="Give files with the same number of lines, from the same corpus.")
        if not line.strip():
            raise DataError("the line is empty.", where=f"{file}, line {number}",
                            remedy=f"Fill it in, or remove line {number} from every file.")
