"""Streams of tokens by a run's data settings, from text or from a prepared folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import ValidationError

from weft.core.errors import ConfigError, DataError
from weft.data import Corpus, TokenStream, embedded_corpus, encode_corpus, read_text, repeated
from weft.data.corpus import Split
from weft.data.division import divide
from weft.data.document_buffer import Documents
from weft.data.prepared import PreparedData, open_prepared
from weft.data.prepared_manifest import is_prepared
from weft.data.settings import DataSettings
from weft.data.text import read_like
from weft.tasks.mixed_material import mixed_held_out, mixed_material, mixed_texts
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig

HeldOut: TypeAlias = Literal["validation", "test"]

E = TypeVar("E")


@dataclass(frozen=True, eq=False)
class Material(Generic[E]):
    """The data that a run trains on and is measured on.

    Attributes:
        corpus: name, version, size and hash of the whole, in one line.
        tokenizer: trained on the training text alone, if it is trained.
        train: the examples to train on, such as a stream of tokens.
    """

    corpus: str
    corpus_sha256: str
    tokenizer: Tokenizer
    train: E
    validation: E


class Texts(NamedTuple):
    """The texts of a run by part, with a line that describes train and validation together, and their hash."""

    parts: Mapping[str, Corpus]
    corpus: str
    corpus_sha256: str


def read_corpus(settings: DataSettings) -> Corpus:
    """The text in ``path``, up to the limit.

    Raises:
        DataError: it cannot be read.
        ConfigError: there are several texts, a mixture.
    """
    if settings.sources is not None:
        raise ConfigError(["data.sources: a mixture, while one text is read here. Give data.path."])
    corpus = _embedded(settings) if settings.path is None else _read(settings, settings.path)
    return corpus if settings.max_bytes is None else corpus.limited(settings.max_bytes, seed=settings.split_seed)


def split_corpus(settings: DataSettings) -> Split:
    """The training text and the held-out text. Raises `DataError`: it cannot be read, or is too small to split."""
    parts = read_texts(settings).parts
    return parts["train"], parts["validation"]


def read_texts(settings: DataSettings) -> Texts:
    """The texts of train and validation, and of test if there is one. Raises `DataError`: as `split_corpus`."""
    return split_texts(settings, read_corpus(settings), lambda path: _read(settings, path))


def split_texts(settings: DataSettings, corpus: Corpus, read: Callable[[str], Corpus]) -> Texts:
    """Split a corpus, or read the held-out parts that have paths of their own.

    Args:
        settings: which give the split.
        corpus: the text in ``path``, up to the limit.
        read: reads the text of another path.

    Raises:
        DataError: as `split_corpus`.
    """
    line, digest = corpus.describe(), corpus.sha256
    if settings.validation_path is not None:
        train, held = corpus, read(settings.validation_path)
        line = f"{line}; validation {held.describe()}"
        digest = hashlib.sha256(f"{corpus.sha256}\0{held.sha256}".encode()).hexdigest()
    else:
        assert settings.validation is not None, "there is a share where there is no path"
        train, held = corpus.split(settings.validation, seed=settings.split_seed, by=settings.split_by)
    test = {} if settings.test_path is None else {"test": read(settings.test_path)}
    return Texts({"train": train, "validation": held, **test}, line, digest)


def training_texts(settings: DataSettings) -> Iterable[str]:
    """The training text of a run, or those of all its sources, from which a tokenizer learns. Raises `DataError`: as
    `split_corpus`."""
    return split_corpus(settings)[0].texts() if settings.sources is None else mixed_texts(settings)


def text_material(data: DataSettings, tokenizer: TokenizerConfig) -> Material[TokenStream]:
    """A text as streams of tokens: read, split and encoded, or from the prepared folder that ``data.path`` names.

    Raises:
        DataError: the text or the folder cannot be used.
        TokenizerError: the tokenizer cannot be made, or cannot express the text.
        ConfigError: the settings do not agree with the folder.
    """
    if data.sources is not None:
        mixed = mixed_material(data, tokenizer)
        return Material(*mixed)
    folder = data.prepared
    if folder is not None:
        opened = open_prepared(folder)
        _require_agreement(data, tokenizer, opened)
        return Material(opened.manifest.corpus, opened.manifest.corpus_sha256, opened.tokenizer(),
                        opened.stream("train"), opened.stream("validation"))
    parts, corpus, digest = read_texts(data.model_copy(update={"test_path": None}))
    made = tokenizer.fit(parts["train"].texts())
    return Material(corpus, digest, made, encode_corpus(parts["train"], made), _encoded(parts, made))


def held_out_text(settings: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> TokenStream:
    """The tokens of a run's held-out text. Raises `DataError`: it cannot be read, there is none, or the prepared folder
    has another tokenizer."""
    folder = settings.prepared
    if folder is not None:
        return prepared_stream(folder, tokenizer, part)
    if part == "test" and settings.test_path is None:
        raise DataError("the run has no test text.", where="data.test_path",
                        remedy="Name one in the run's configuration, or give the path of a text.")
    if settings.sources is not None:
        text = settings.test_path if part == "test" else settings.validation_path
        return mixed_held_out(settings, tokenizer) if text is None else text_stream(text, tokenizer, settings)
    return _encoded(read_texts(settings).parts, tokenizer, part)


def _encoded(parts: Mapping[str, Corpus], tokenizer: Tokenizer, part: HeldOut = "validation") -> TokenStream:
    return encode_corpus(parts[part], tokenizer, repeated=repeated(parts[part], parts["train"]))


def training_text(data: Mapping[str, Any]) -> Corpus | None:
    """The training text of a run by its recorded data settings, where it still lies where it was; None otherwise, and
    for a mixture."""
    try:
        settings = DataSettings.model_validate(data)
        if settings.prepared is not None:
            recipe = open_prepared(settings.prepared, check="size").manifest.recipe
            settings = DataSettings.model_validate({**recipe.data, "path": recipe.path})
        return None if settings.sources is not None else split_corpus(settings)[0]
    except (DataError, ConfigError, ValidationError):
        return None


def text_stream(path: str | Path, tokenizer: Tokenizer, settings: DataSettings | None = None) -> TokenStream:
    """The tokens of a text, or of the validation part of a prepared folder.

    Args:
        path: of the text or folder.
        tokenizer: that encodes the text.
        settings: of the run that trained the model, for the fields of records and the division into documents; None:
            defaults. Its training text, where it is known, is compared with the text.

    Raises:
        DataError: it cannot be read, or the prepared folder has another tokenizer.
    """
    if is_prepared(Path(path)):
        return prepared_stream(Path(path), tokenizer, "validation")
    like = DataSettings() if settings is None else settings
    corpus = read_like(path, text_field=like.text_field, prompt_field=like.prompt_field, documents=like.division)
    train = None if settings is None else training_text(settings.model_dump())
    return encode_corpus(corpus, tokenizer, repeated=None if train is None else repeated(corpus, train))


def prepared_stream(folder: Path, tokenizer: Tokenizer, part: str) -> TokenStream:
    """A part of a prepared folder, for a model with that tokenizer. Raises `DataError`: the folder cannot be used, or
    another tokenizer made its tokens."""
    data = open_prepared(folder)
    if data.manifest.tokenizer.fingerprint != tokenizer.fingerprint():
        raise DataError(f"the tokens were made with another tokenizer ({data.manifest.tokenizer.name}) than the "
                        f"model's ({tokenizer.name}).", where=str(folder),
                        remedy="Give the text itself, or data prepared with the model's tokenizer.")
    return data.stream(part)


def _require_agreement(settings: DataSettings, tokenizer: TokenizerConfig, data: PreparedData) -> None:
    """Refuse settings of text or tokenizer that contradict the folder's."""
    recipe, held = data.manifest.recipe, tokenizer.from_file()
    given = {"data": settings.recipe(), "tokenizer": {"tokenizer": tokenizer.dump()}}
    made = {"data": recipe.data, "tokenizer": {"tokenizer": recipe.tokenizer}}
    if held is not None and held.fingerprint() == data.manifest.tokenizer.fingerprint:
        made["tokenizer"] = given["tokenizer"]  # the same tokenizer under another name
    problems = [f"{'data.' if section == 'data' else ''}{key}: {value!r}, while {data.path} was prepared with "
                f"{made[section].get(key)!r}. Leave it out, or prepare the data again."
                for section, values in given.items() for key, value in values.items()
                if value != made[section].get(key)]
    if problems:
        raise ConfigError(problems)


def _embedded(settings: DataSettings) -> Corpus:
    corpus, how = embedded_corpus(), settings.division
    if how == "file":
        return corpus
    return Corpus(corpus.name, Documents([divide(document, how) for document in corpus.documents]),
                  version=corpus.version)


def _read(settings: DataSettings, path: str | tuple[str, ...]) -> Corpus:
    """The text at ``path``, read by the settings."""
    if isinstance(path, str) and is_prepared(Path(path)):
        raise DataError("the folder holds prepared tokens, not text.", where=path,
                        remedy="Give the text, or name the folder as data.path alone.")
    return read_text(path, text_field=settings.text_field, prompt_field=settings.prompt_field,
                     documents=settings.division)
