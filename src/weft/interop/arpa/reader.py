"""Reading ARPA files: all common forms are accepted, and errors give the line.

From the sections of an ARPA file to a table in which every n-gram's context is listed.
"""

from __future__ import annotations

import gzip
import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from weft.core.errors import DataError
from weft.data.compression import ALWAYS_EXPANDED, MOST_TIMES
from weft.disk.documents import Unreadable, require_regular
from weft.interop.arpa.writer import LOG_ZERO, check_names
from weft.ngram.table import NgramTable, TableLevel, chain, spell

MENDING = "Write the file again; it may have been cut off or edited."


class NgramSection(NamedTuple):
    """The n-grams of one length in the order of the file, in nats."""

    words: Int[np.ndarray, "G k"]
    log_prob: Float[np.ndarray, "G"]
    backoff: Float[np.ndarray, "G"]
    lines: Int[np.ndarray, "G"]


def build_table(sections: list[NgramSection], vocab_size: int, bos: int, path: str) -> NgramTable:
    """Sort the sections into a table that also lists the context of every n-gram."""
    base, order = vocab_size + 1, len(sections)
    prefixes = [section.words[:, 0] for section in sections]
    levels = [_unigram_level(sections[0], base, bos, order, path)]
    for length in range(2, order + 1):
        needed = [p * base + s.words[:, length - 1] for p, s in zip(prefixes[1:], sections[length - 1 :], strict=True)]
        keys = np.unique(np.concatenate(needed))
        levels.append(_level(sections[length - 1], needed[0], keys, (vocab_size, bos), levels, length == order, path))
        prefixes = [np.searchsorted(keys, each) for each in needed]
    return NgramTable(order, vocab_size, bos, tuple(levels))


def _place(section: NgramSection, places: Int[np.ndarray, "G"], size: int, path: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (NaN where the file has none) and back-off weights at their places."""
    by_place = np.argsort(places, kind="stable")
    twice = np.flatnonzero(np.diff(places[by_place]) == 0)
    if len(twice):
        first, again = section.lines[by_place[twice[0]]], section.lines[by_place[twice[0] + 1]]
        raise DataError(f"the n-gram of line {first} is repeated here.", where=f"{path}, line {again}", remedy=MENDING)
    log_prob, backoff = np.full(size, np.nan), np.zeros(size)
    log_prob[places], backoff[places] = section.log_prob, section.backoff
    return log_prob, backoff


def _unigram_level(section: NgramSection, base: int, bos: int, order: int, path: str) -> TableLevel:
    log_prob, backoff = _place(section, section.words[:, 0], base, path)
    log_prob[np.isnan(log_prob)] = -np.inf
    log_prob[bos] = -np.inf
    return TableLevel(np.arange(base), log_prob, np.empty(0) if order == 1 else backoff)


def _level(section: NgramSection, listed: Int[np.ndarray, "G"], keys: Int[np.ndarray, "K"], symbols: tuple[int, int],
           below: list[TableLevel], last: bool, path: str) -> TableLevel:
    vocab_size, bos = symbols
    base = vocab_size + 1
    log_prob, backoff = _place(section, np.searchsorted(keys, listed), len(keys), path)
    missing = np.flatnonzero(np.isnan(log_prob))
    if len(missing):
        contexts = spell(below, keys[missing] // base, len(below), base)
        shorter = NgramTable(len(below), vocab_size, bos, tuple(below))
        log_prob[missing] = _backed_off(shorter, contexts, keys[missing] % base)
    return TableLevel(keys, log_prob, np.empty(0) if last else backoff)


def _backed_off(shorter: NgramTable, contexts: Int[np.ndarray, "M k"],
                words: Int[np.ndarray, "M"]) -> Float[np.ndarray, "M"]:
    """p of n-grams that are not listed after their context, from the orders below."""
    ids = chain(shorter.levels, contexts, shorter.base)
    safe = np.where(words < shorter.vocab_size, words, 0)
    prob = shorter.levels[-1].backoff[ids] + shorter.log_prob(contexts, safe)
    return np.where(words < shorter.vocab_size, prob, -np.inf)


GZIP = b"\x1f\x8b"
"""The first bytes of a gzipped file."""
MOST_LINE = 1 << 20
"""Bytes of a line."""

_COUNT = re.compile(r"ngram\s+(\d{1,4})\s*=\s*(\d{1,18})")
_SECTION = re.compile(r"\\(\d+)-grams:")


class ArpaModel(NamedTuple):
    """The content of an ARPA file: the table, and the words in the order of the table's ids."""

    table: NgramTable
    vocabulary: tuple[str, ...]


def read_arpa(path: Path, vocabulary: Sequence[str] | None = None, start: str = "<s>") -> ArpaModel:
    """Read ARPA text. It may be gzipped under any name, and must be where the name ends in ``.gz``.

    Also accepted: text before ``\\data\\``, blank lines, spaces for tabs, Windows line ends, n-grams in any order,
    missing back-off weights (1), -99 or -inf for zero, and files of pruned models in which an n-gram's context is not
    listed itself (it is added with the probability that backing off gives it, which changes no probability).

    Args:
        vocabulary: the words in id order; None: the order of the file's unigrams, without the start symbol. Words
            of the vocabulary that the file lacks have probability 0.
        start: the file's start symbol; its probability is 0 even if the file has another (some write 0 for log10 p).

    Raises:
        DataError: file missing, not UTF-8, truncated, wrong counts, malformed numbers, unknown words, n-grams listed
            twice; with the line.
        InputError: a vocabulary with words that ARPA files cannot hold.
    """
    reader = _Reader(path)
    counts = reader.header()
    names = None if vocabulary is None else _index(vocabulary, start)
    names, first = reader.unigrams(counts[0], len(counts) == 1, names, start)
    sections = [first]
    for length in range(2, len(counts) + 1):
        sections.append(reader.section(length, counts[length - 1], length == len(counts), names))
    reader.expect("\\end\\")
    words = sorted(names, key=names.__getitem__)
    words = words if vocabulary is not None and start in vocabulary else words[:-1]
    table = build_table(sections, len(words), names[start], str(path))
    return ArpaModel(table, tuple(words))


def read_words(path: Path) -> tuple[str, ...]:
    """The words of an ARPA file in the order of its unigrams, the start symbol among them where it is listed. Raises
    `DataError`: as `read_arpa`, for as much of the file as holds the unigrams."""
    reader = _Reader(path)
    counts = reader.header()
    return reader.words(counts[0], len(counts) == 1)


def _index(vocabulary: Sequence[str], start: str) -> dict[str, int]:
    inside = start in vocabulary
    names = check_names(vocabulary, len(vocabulary), None if inside else start)
    return {name: place for place, name in enumerate(names)}


def _open_bytes(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        compressed = path.suffix == ".gz" or file.read(2) == GZIP
    return gzip.GzipFile(path, "rb") if compressed else path.open("rb")  # type: ignore[return-value]


class _Reader:
    """The lines of the file that are not blank, with their numbers; errors give the current line."""

    def __init__(self, path: Path) -> None:
        self.path, self.number = path, 0
        self._lines = self._read()

    def _read(self) -> Iterator[str]:
        try:
            most = max(ALWAYS_EXPANDED, MOST_TIMES * require_regular(self.path))
            with _open_bytes(self.path) as lines:
                for self.number, line in enumerate(iter(lambda: lines.readline(MOST_LINE + 1), b""), start=1):
                    most -= len(line)
                    if len(line) > MOST_LINE or most < 0:
                        raise self.error(f"a line of more than {MOST_LINE:,} bytes" if most >= 0 else
                                         f"it unpacks to more than {MOST_TIMES} times its size")
                    text = line.decode("utf-8").strip(" \t\r\n")
                    if text:
                        yield text
        except UnicodeDecodeError:
            raise self.error("the text is not UTF-8", "Convert the file to UTF-8.") from None
        except (OSError, EOFError, zlib.error, Unreadable) as problem:
            raise self.error(f"the file cannot be read ({problem})", "Check the path and the file.") from None

    def error(self, what: str, remedy: str = MENDING) -> DataError:
        return DataError(f"{what}.", where=f"{self.path}, line {self.number}", remedy=remedy)

    def next(self, expected: str) -> str:
        line = next(self._lines, None)
        if line is None:
            raise self.error(f"the file ends where {expected} should follow")
        return line

    def expect(self, expected: str) -> None:
        line = self.next(expected)
        if line != expected:
            raise self.error(f"by the header's counts {expected} should stand here; got {line[:60]!r}")

    def header(self) -> list[int]:
        """Read the counts of each length and the first section's name."""
        while self.next("\\data\\") != "\\data\\":
            continue
        counts: list[int] = []
        while match := _COUNT.fullmatch(line := self.next("\\1-grams:")):
            if int(match[1]) != len(counts) + 1:
                raise self.error(f"the count of {len(counts) + 1}-grams should stand here; got {line!r}")
            counts.append(int(match[2]))
        if not counts or line != "\\1-grams:":
            raise self.error(f"'ngram N=COUNT' or \\1-grams: should stand here; got {line[:60]!r}")
        return counts

    def unigrams(self, count: int, last: bool, names: dict[str, int] | None,
                 start: str) -> tuple[dict[str, int], NgramSection]:
        """Read the first section; its words become the vocabulary where none is given."""
        given = names is not None
        known: dict[str, int] = {} if names is None else names
        rows = array("q")
        columns = _Columns()
        for _ in range(count):
            (word,) = self._entry(1, count, last, columns)
            if given and word not in known:
                raise self.error(f"the word {word!r} is not in the given vocabulary", "Give the model's vocabulary.")
            if not given and word != start:
                known.setdefault(word, len(known))
            rows.append(-1 if word == start else known[word])
        if not given:
            known[start] = len(known)
        words = np.frombuffer(rows, dtype=np.int64) if count else np.empty(0, dtype=np.int64)
        words = np.where(words < 0, known[start], words)
        return known, columns.section(words[:, None])

    def words(self, count: int, last: bool) -> tuple[str, ...]:
        """Read the words of the first section."""
        columns = _Columns()
        return tuple(self._entry(1, count, last, columns)[0] for _ in range(count))

    def section(self, length: int, count: int, last: bool, names: dict[str, int]) -> NgramSection:
        """Read a further section, its name included."""
        self.expect(f"\\{length}-grams:")
        rows = array("q")
        columns = _Columns()
        for _ in range(count):
            for word in self._entry(length, count, last, columns):
                if word not in names:
                    raise self.error(f"the word {word!r} is not among the unigrams")
                rows.append(names[word])
        words = np.frombuffer(rows, dtype=np.int64) if count else np.empty(0, dtype=np.int64)
        return columns.section(words.reshape(count, length))

    def _entry(self, length: int, count: int, last: bool, columns: _Columns) -> list[str]:
        """Read one line; return its words, and append its numbers to ``columns``."""
        line = self.next(f"the next of {count} {length}-grams")
        fields = line.split()
        if line == "\\end\\" or _SECTION.fullmatch(line):
            raise self.error(f"the header gives {count} {length}-grams, but the section ends after {len(columns)}")
        if len(fields) != length + 1 and (last or len(fields) != length + 2):
            weight = "" if last else " and perhaps a back-off weight"
            raise self.error(f"a {length}-gram is log10 p, {length} word(s){weight}; got {line[:60]!r}")
        columns.add(self._number(fields[0], probability=True), self.number)
        columns.backoff.append(0.0 if len(fields) == length + 1 else self._number(fields[-1], probability=False))
        return fields[1 : length + 1]

    def _number(self, text: str, *, probability: bool) -> float:
        """Parse a log10 and convert it to nats."""
        try:
            value = float(text)
        except ValueError:
            raise self.error(f"a number should stand here; got {text!r}") from None
        if np.isnan(value) or value == np.inf or (probability and value > 0):
            rule = "log10 of a probability must be at most 0" if probability else "a back-off weight must be finite"
            raise self.error(f"{rule}; got {text}")
        return -np.inf if value <= LOG_ZERO else float(value * np.log(10))


class _Columns:
    """The numbers of a section while it is read, eight bytes each."""

    def __init__(self) -> None:
        self.log_prob, self.backoff, self.lines = array("d"), array("d"), array("q")

    def __len__(self) -> int:
        return len(self.lines)

    def add(self, log_prob: float, line: int) -> None:
        self.log_prob.append(log_prob)
        self.lines.append(line)

    def section(self, words: Int[np.ndarray, "G k"]) -> NgramSection:
        return NgramSection(words, np.array(self.log_prob), np.array(self.backoff),
                            np.array(self.lines, dtype=np.int64))
