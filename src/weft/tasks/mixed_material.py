"""Streams of tokens of a mixture: each source read, split and encoded by itself, and joined."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from weft.core.errors import ConfigError, DataError
from weft.data import TokenStream, repeated
from weft.data.joining import joined
from weft.data.prepared import PreparedData, open_prepared
from weft.data.settings import DataSettings
from weft.data.source_settings import TextSource
from weft.data.source_texts import of_source, split_source
from weft.data.spooled import spooled_corpus
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig
from weft.tokenizers.split_points import PartedTexts

OF_TEXT = ("max_bytes", "validation_path", "text_field", "prompt_field", "documents")
"""Settings of a source that decide its text, and so cannot be given for one that is prepared."""


class Mixed(NamedTuple):
    """The two streams of a mixture or of one source, the description and hash of its text, and its tokenizer."""

    corpus: str
    corpus_sha256: str
    tokenizer: Tokenizer
    train: TokenStream
    validation: TokenStream


def mixed_material(data: DataSettings, config: TokenizerConfig) -> Mixed:
    """The streams of the sources of ``data``, joined.

    Of texts, one source at a time is in memory, and its tokens are on disk from 64 MiB on. A tokenizer that learns
    learns from the training texts of all sources, each once, whatever their weights; the texts are read a second time
    then.

    Raises:
        DataError: a source cannot be read, has no text, or was prepared with another tokenizer.
        TokenizerError: the tokenizer cannot be made, or cannot express a text.
        ConfigError: the tokenizer is not that of prepared sources, or a setting does not apply to one.
    """
    sources = data.mixed
    prepared = _prepared(sources)
    tokenizer = _tokenizer(data, config, prepared)
    found = {name: _streams(name, source, data, tokenizer, prepared.get(name)) for name, source in sources.items()}
    lines = "; ".join(f"{name} {each.corpus}" for name, each in found.items())
    hashes = "\0".join(f"{name}\0{each.corpus_sha256}" for name, each in found.items())
    digest = hashlib.sha256(hashes.encode()).hexdigest()
    weights = {name: source.weight or 0.0 for name, source in sources.items()}
    caps = {name: source.max_epochs for name, source in sources.items()}
    train = joined({name: each.train for name, each in found.items()}, weights, caps, when_capped=data.when_capped)
    held = joined({name: each.validation for name, each in found.items()}, weights, when_capped=data.when_capped)
    return Mixed(f"mixture of {len(found)} sources: {lines}", digest, tokenizer, train, held)


def mixed_held_out(data: DataSettings, tokenizer: Tokenizer) -> TokenStream:
    """The held-out tokens of all sources, joined. Raises `DataError`: as `mixed_material`."""
    sources = data.mixed
    prepared = _prepared(sources)
    _require_made_by(prepared, tokenizer)
    found = {name: _held(name, source, data, tokenizer, prepared.get(name)) for name, source in sources.items()}
    return joined(found, {name: source.weight or 0.0 for name, source in sources.items()})


def mixed_texts(data: DataSettings) -> PartedTexts:
    """The training texts of all sources, each source read when it is reached."""
    return _MixedTexts(data)


def _streams(name: str, source: TextSource, data: DataSettings, tokenizer: Tokenizer,
             folder: PreparedData | None) -> Mixed:
    """The streams of one source."""
    if folder is not None:
        manifest = folder.manifest
        return Mixed(manifest.corpus, manifest.corpus_sha256, tokenizer, folder.stream("train"),
                     folder.stream("validation"))
    train, held = split_source(name, source, data)
    with of_source(name):
        streams = spooled_corpus(train, tokenizer), spooled_corpus(held, tokenizer, repeated=repeated(held, train))
    digest = hashlib.sha256(f"{train.sha256}\0{held.sha256}".encode()).hexdigest()
    return Mixed(train.describe(), digest, tokenizer, *streams)


def _held(name: str, source: TextSource, data: DataSettings, tokenizer: Tokenizer,
          folder: PreparedData | None) -> TokenStream:
    if folder is not None:
        return folder.stream("validation")
    train, held = split_source(name, source, data)
    with of_source(name):
        return spooled_corpus(held, tokenizer, repeated=repeated(held, train))


def _prepared(sources: dict[str, TextSource]) -> dict[str, PreparedData]:
    """The sources that are prepared folders.

    Raises:
        ConfigError: a setting of text is given for one.
        DataError: a folder is damaged.
    """
    found, problems = dict[str, PreparedData](), list[str]()
    for name, source in sources.items():
        if source.prepared is None:
            continue
        given = [field for field in OF_TEXT if getattr(source, field) is not None]
        problems += [f"data.sources.{name}.{field}: {getattr(source, field)!r}, while {source.path} holds prepared "
                     "tokens. Leave it out, or prepare the data again." for field in given]
        found[name] = open_prepared(source.prepared)
    if problems:
        raise ConfigError(problems)
    return found


def _tokenizer(data: DataSettings, config: TokenizerConfig, prepared: dict[str, PreparedData]) -> Tokenizer:
    """That of the prepared sources, if there is one; otherwise the configuration's, which may learn.

    Raises:
        ConfigError: the configuration asks for another than that of the prepared sources.
        DataError: prepared sources have different ones.
    """
    if not prepared:
        return config.fit(mixed_texts(data))
    name, first = next(iter(prepared.items()))
    tokenizer, held = first.tokenizer(), config.from_file()
    _require_made_by(prepared, tokenizer, name)
    same = config.dump() == first.manifest.recipe.tokenizer if held is None else (
        held.fingerprint() == tokenizer.fingerprint())
    if not same:
        raise ConfigError([f"tokenizer: {config.dump()!r}, while data.sources.{name} was prepared with "
                           f"{first.manifest.recipe.tokenizer!r}. Leave it out, or prepare the data again."])
    return tokenizer


def _require_made_by(prepared: dict[str, PreparedData], tokenizer: Tokenizer, first: str | None = None) -> None:
    whose = "the model" if first is None else f"data.sources.{first}"
    for name, folder in prepared.items():
        made = folder.manifest.tokenizer
        if made.fingerprint != tokenizer.fingerprint():
            raise DataError(f"its tokens were made with another tokenizer ({made.name}) than that of {whose} "
                            f"({tokenizer.name}).", where=f"data.sources.{name}",
                            remedy="Prepare all sources with one tokenizer, or give their texts.")


class _MixedTexts(PartedTexts):
    """The training texts of all sources one after another; a source is read whenever it is reached, and not kept."""

    def __init__(self, data: DataSettings) -> None:
        self._data = data

    def _corpora(self) -> Iterator[Any]:
        for name, source in self._data.mixed.items():
            yield split_source(name, source, self._data)[0]

    def __iter__(self) -> Iterator[str]:
        return (text for corpus in self._corpora() for text in corpus.texts())

    def parted(self) -> Iterator[Iterator[str]]:
        return (document.parts() for corpus in self._corpora() for document in corpus.documents)

    def __len__(self) -> int:
        return sum(len(corpus.documents) for corpus in self._corpora())

    def __getitem__(self, place: Any) -> Any:
        return list(self)[place]
