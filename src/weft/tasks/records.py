"""Tasks on records of texts: reading, splitting and encoding them by a run's settings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from weft.core.errors import ConfigError, DataError
from weft.data.corpus import Corpus, repeated
from weft.data.duplicates import Repeated
from weft.data.pairs import read_aligned
from weft.data.places import Where
from weft.data.prepared_manifest import is_prepared
from weft.data.records import TEXT_FIELD, Fields, TextRecord
from weft.data.rows import Values
from weft.data.settings import DataSettings
from weft.tasks.base import C, E, Task, TaskConfig
from weft.tasks.protocols import OwnTexts
from weft.tasks.token_streams import HeldOut, Material, Texts, split_texts
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig

R = TypeVar("R", bound="RecordTaskConfig")


class RecordTaskConfig(TaskConfig, OwnTexts):
    """Base of the configurations of tasks on records that hold texts."""

    @abstractmethod
    def fields(self) -> Fields:
        """The fields of a record, by the settings that name them."""

    @abstractmethod
    def keep(self, record: TextRecord) -> tuple[Any, ...]:
        """The fields that are kept of a record. Raises `DataError`: its values cannot be used."""

    @abstractmethod
    def texts_of(self, corpus: Corpus) -> Iterator[str]:
        """All texts of records."""

    def parts(self, data: DataSettings) -> Texts:
        """The records of a run."""
        return read_parts(data, self.fields(), self.keep)

    def texts(self, data: DataSettings) -> Iterable[str]:
        train = self.parts(data).parts["train"]
        return Reread(lambda: self.texts_of(train))


class RecordTask(Task[R, E, C]):
    """Base of tasks on records that hold texts. R: the configuration, which reads them."""

    @abstractmethod
    def encode(self, corpus: Corpus, tokenizer: Tokenizer, repeated: Repeated | None) -> E:
        """The examples of records.

        Args:
            repeated: of held-out records: how many are also trained on; None: unknown.
        """

    def material(self, data: DataSettings, tokenizer: TokenizerConfig) -> Material[E]:
        parts = self.config.parts(data.model_copy(update={"test_path": None}))
        train = parts.parts["train"]
        made = tokenizer.fit(Reread(lambda: self.config.texts_of(train)))
        return Material(parts.corpus, parts.corpus_sha256, made, self.encode(train, made, None),
                        self._held_out(parts, made, "validation"))

    def held_out(self, data: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> E:
        return self._held_out(self.config.parts(data), tokenizer, part)

    def _held_out(self, parts: Texts, tokenizer: Tokenizer, part: HeldOut) -> E:
        held = held_out_part(parts, part)
        return self.encode(held, tokenizer, repeated(held, parts.parts["train"]))


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


def held_out_part(parts: Texts, part: HeldOut) -> Corpus:
    """The records of a held-out part. Raises `DataError`: the run has no such part."""
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
