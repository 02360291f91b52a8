"""Writing ARPA files, the exchange format of SRILM, KenLM and others."""

from __future__ import annotations

import gzip
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
from jaxtyping import Float, Int

from weft.core.errors import InputError
from weft.ngram.table import NgramTable, spell

LOG_ZERO = -99.0
"""The value for log10(0) in ARPA files; all values up to it are read as zero probability."""

_LINES_AT_ONCE = 100_000


def write_arpa(table: NgramTable, path: Path, vocabulary: Sequence[str], start: str = "<s>", *,
               compress: bool | None = None) -> None:
    """Write the table as ARPA text.

    A line holds log10 p, the words, and log10 of the back-off weight (not at the highest order), with 17 significant
    digits, so that reading gives the same values to a rounding of the last. Zero is written as -99.

    Args:
        table: the table of any estimator.
        vocabulary: the V words in id order: distinct, not empty, without white space.
        start: spelling of a start symbol that is outside the vocabulary.
        compress: whether to use gzip; None: if the name ends in ``.gz``.

    Raises:
        InputError: a vocabulary of another size, or words that ARPA cannot hold.
        FileExistsError: ``path`` exists.
    """
    names = check_names(vocabulary, table.vocab_size, None if table.bos < table.vocab_size else start)
    with _open_text(path, path.suffix == ".gz" if compress is None else compress) as out:
        out.write("\\data\\\n")
        ids = [_written_ids(table, length) for length in range(1, table.order + 1)]
        out.writelines(f"ngram {length}={len(rows)}\n" for length, rows in enumerate(ids, start=1))
        for length, rows in enumerate(ids, start=1):
            out.write(f"\n\\{length}-grams:\n")
            for begin in range(0, len(rows), _LINES_AT_ONCE):
                out.writelines(_lines(table, length, rows[begin : begin + _LINES_AT_ONCE], names))
        out.write("\n\\end\\\n")


def check_names(vocabulary: Sequence[str], size: int, start: str | None) -> list[str]:
    """The words in id order, followed by the start symbol where it is not one of them. Raises `InputError`: not
    ``size`` words, or words that are empty, repeated or hold white space."""
    if len(vocabulary) != size:
        raise InputError(f"vocabulary must have {size} words; got {len(vocabulary)}.", where="vocabulary")
    names = [*vocabulary] if start is None else [*vocabulary, start]
    for place, name in enumerate(names):
        if not name or len(name.split()) != 1 or name.split()[0] != name:
            raise InputError(f"words in ARPA files cannot be empty or hold white space; got {name!r}.",
                             where=f"vocabulary[{place}]", remedy="Write such words in an escaped form.")
    word, times = Counter(names).most_common(1)[0] if names else ("", 0)
    if times > 1:
        raise InputError(f"words must be distinct; {word!r} occurs {times} times.", where="vocabulary")
    return names


def _open_text(path: Path, compress: bool) -> TextIO:
    if compress:
        return io.TextIOWrapper(gzip.open(path, "xb"), encoding="utf-8", newline="\n")
    return path.open("x", encoding="utf-8", newline="\n")


def _written_ids(table: NgramTable, length: int) -> Int[np.ndarray, "G"]:
    """The ids to write: all, but for unigrams without the last where the start symbol lies in the vocabulary."""
    ids = np.arange(len(table.levels[length - 1].keys))
    return ids[: table.vocab_size] if length == 1 and table.bos < table.vocab_size else ids


def _lines(table: NgramTable, length: int, ids: Int[np.ndarray, "M"], names: list[str]) -> Iterator[str]:
    level = table.levels[length - 1]
    words = spell(table.levels, ids, length, table.base).tolist()
    probs = _log10(level.log_prob[ids])
    if length == table.order:
        for prob, row in zip(probs, words, strict=True):
            yield f"{prob:.17g}\t{' '.join([names[word] for word in row])}\n"
        return
    for prob, row, backoff in zip(probs, words, _log10(level.backoff[ids]), strict=True):
        yield f"{prob:.17g}\t{' '.join([names[word] for word in row])}\t{backoff:.17g}\n"


def _log10(nats: Float[np.ndarray, "M"]) -> list[float]:
    written: list[float] = np.where(np.isneginf(nats), LOG_ZERO, nats / np.log(10)).tolist()
    return written
