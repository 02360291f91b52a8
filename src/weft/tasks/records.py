"""Functions for tasks on records: reading, splitting and encoding them by a run's settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from weft.core.errors import ConfigError, DataError
from weft.data.aligned import read_aligned
from weft.data.corpus import Corpus
from weft.data.duplicates import Repeated, repeated
from weft.data.manifest import is_prepared
from weft.data.places import Where
from weft.data.records import TEXT_FIELD, Fields
from weft.data.rows import Values
from weft.data.settings import DataSettings
from weft.tasks.base import HeldOut
from weft.tasks.material import Material, Texts, split_texts
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig

E = TypeVar("E")
Encode = Callable[[Corpus, Tokenizer, Repeated | None], E]
"""Converts records to examples."""


def read_parts(settings: DataSettings, fields: Fields, keep: Values) -> Texts:
    """The records in ``path``, limited and split like texts, and those of ``test_path``.

    Raises:
        DataError: there is no path, it is a prepared folder, or records cannot be used.
        ConfigError: a setting for running text is given.
    """
    if settings.path is None:
        raise DataError("this task reads records, and there is no path to them.", where="data.path",
                        remedy="Give a file or folder of JSONL, CSV, TSV or Parquet, or text files as data/{}.txt.")
    given = {"text_field": settings.text_field != TEXT_FIELD, "prompt_field": settings.prompt_field is not None,
             "documents": settings.documents != "file"}
    problems = [f"data.{name}: {getattr(settings, name)!r}, while this task names the fields of records itself. Leave "
                f"it out, and see the fields of the task: {', '.join(fields)}." for name, is_given in given.items()
                if is_given]
    if problems:
        raise ConfigError(problems)

    def read(path: Where) -> Corpus:
        if isinstance(path, str) and is_prepared(Path(path)):
            raise DataError("the folder holds prepared tokens of running text, while this task reads records.",
                            where=path, remedy="Give the records themselves.")
        return read_aligned(path, fields, keep)

    corpus = read(settings.path)
    limited = corpus if settings.max_bytes is None else corpus.limited(settings.max_bytes, seed=settings.split_seed)
    return split_texts(settings, limited, read)


def record_material(parts: Texts, tokenizer: TokenizerConfig, texts: Callable[[Corpus], Iterable[str]],
                    encode: Encode[E]) -> Material[E]:
    """Examples to train on and held-out ones; the tokenizer learns from the training records alone.

    Args:
        parts: from `read_parts`.
        tokenizer: that encodes them.
        texts: returns all texts of a corpus.
        encode: converts records to examples.
    """
    train = parts.parts["train"]
    made = tokenizer.fit(Reread(lambda: texts(train)))
    return Material(parts.corpus, parts.corpus_sha256, made, encode(train, made, None),
                    held_out_records(parts, made, "validation", encode))


def held_out_records(parts: Texts, tokenizer: Tokenizer, part: HeldOut, encode: Encode[E]) -> E:
    """The examples of a held-out part.

    Raises:
        DataError: the run has no such part.
    """
    held = held_out_part(parts, part)
    return encode(held, tokenizer, repeated(held, parts.parts["train"]))


def held_out_part(parts: Texts, part: HeldOut) -> Corpus:
    """The records of a held-out part.

    Raises:
        DataError: the run has no such part.
    """
    if part not in parts.parts:
        raise DataError("the run has no test records.", where="data.test_path",
                        remedy="Name them in the run's configuration.")
    return parts.parts[part]


class Reread(Collection[str]):
    """Texts that are read again in each iteration."""

    def __init__(self, texts: Callable[[], Iterable[str]]) -> None:
        self._texts = texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, text: object) -> bool:
        return any(each == text for each in self)
