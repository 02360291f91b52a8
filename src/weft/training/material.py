"""From a run's data settings to streams of tokens: straight from text, or from a prepared folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, final

from weft.core.errors import ConfigError, DataError
from weft.data import Corpus, TokenStream, embedded_corpus, encode_corpus, read_text, repeated
from weft.data.corpus import Split
from weft.data.division import divide
from weft.data.manifest import Recipe, Source, is_prepared, read_manifest
from weft.data.prepared import (
    EncodingTexts,
    OnProgress,
    PreparedData,
    by_prepared_manifest,
    open_prepared,
    source_of,
    write_prepared,
)
from weft.data.settings import DataSettings, full_recipe
from weft.data.shards import SHARD_TOKENS
from weft.data.text import source_files
from weft.disk.atomic import recover, replacing
from weft.disk.ownership import require_free
from weft.tokenizers import Tokenizer
from weft.tokenizers.config import TokenizerConfig
from weft.training.config import RunConfig

HeldOut: TypeAlias = Literal["validation", "test"]


@final
@dataclass(frozen=True, eq=False)
class Material:
    """What a run trains on and is measured by.

    Attributes:
        corpus: name, version, size and hash of the whole text, in one line.
        corpus_sha256: hash of the whole text.
        tokenizer: trained on the training text alone, if it learns anything.
        train: tokens of the training text.
        validation: tokens of the text held out.
    """

    corpus: str
    corpus_sha256: str
    tokenizer: Tokenizer
    train: TokenStream
    validation: TokenStream


@final
class Texts(NamedTuple):
    """The texts of a run, and the whole of train and validation in one line and as a hash."""

    parts: Mapping[str, Corpus]
    corpus: str
    corpus_sha256: str


def read_corpus(settings: DataSettings) -> Corpus:
    """The text in ``path``, limited.

    Raises:
        DataError: it cannot be read.
    """
    corpus = _embedded(settings) if settings.path is None else _read(settings, settings.path)
    return corpus if settings.max_bytes is None else corpus.limited(settings.max_bytes, seed=settings.split_seed)


def split_corpus(settings: DataSettings) -> Split:
    """The training text and the text held out.

    Raises:
        DataError: it cannot be read, or is too small to split.
    """
    parts = read_texts(settings).parts
    return parts["train"], parts["validation"]


def read_texts(settings: DataSettings) -> Texts:
    """Train and validation, and the test where there is one.

    Raises:
        DataError: as `split_corpus`.
    """
    corpus = read_corpus(settings)
    line, digest = corpus.describe(), corpus.sha256
    if settings.validation is None:
        train, held = corpus, _read(settings, settings.validation_path)
        line = f"{line}; validation {held.describe()}"
        digest = hashlib.sha256(f"{corpus.sha256}\0{held.sha256}".encode()).hexdigest()
    else:
        train, held = corpus.split(settings.validation, seed=settings.split_seed, by=settings.split_by)
    test = {} if settings.test_path is None else {"test": _read(settings, settings.test_path)}
    return Texts({"train": train, "validation": held, **test}, line, digest)


def prepare(config: RunConfig) -> Material:
    """The run's text as tokens: read, split and encoded, or from the prepared folder that ``data.path`` names.

    Raises:
        DataError: the text or the folder cannot be used.
        TokenizerError: the tokenizer cannot be made, or cannot express the text.
        ConfigError: the model's vocabulary is smaller than the tokenizer's, or the configuration does not agree with
            the folder.
    """
    folder = config.data.prepared
    if folder is not None:
        return _from_folder(config, folder)
    parts, corpus, digest = read_texts(config.data.model_copy(update={"test_path": None}))
    tokenizer = config.tokenizer.fit(parts["train"].texts())
    _require_vocabulary(config, tokenizer.vocab_size)
    return Material(corpus, digest, tokenizer, encode_corpus(parts["train"], tokenizer), _encoded(parts, tokenizer))


def held_out(settings: DataSettings, tokenizer: Tokenizer, part: HeldOut = "validation") -> TokenStream:
    """The tokens of a run's held-out text.

    Raises:
        DataError: it cannot be read, there is none, or the prepared folder has another tokenizer.
    """
    folder = settings.prepared
    if folder is not None:
        return prepared_stream(folder, tokenizer, part)
    if part == "test" and settings.test_path is None:
        raise _no_test()
    return _encoded(read_texts(settings).parts, tokenizer, part)


def _encoded(parts: Mapping[str, Corpus], tokenizer: Tokenizer, part: HeldOut = "validation") -> TokenStream:
    return encode_corpus(parts[part], tokenizer, repeated=repeated(parts[part], parts["train"]))


def text_stream(path: str | Path, tokenizer: Tokenizer) -> TokenStream:
    """The tokens of a text, or of the validation part of a prepared folder.

    Raises:
        DataError: it cannot be read, or the prepared folder has another tokenizer.
    """
    if is_prepared(Path(path)):
        return prepared_stream(Path(path), tokenizer, "validation")
    return encode_corpus(read_text(path), tokenizer)


def prepared_stream(folder: Path, tokenizer: Tokenizer, part: str) -> TokenStream:
    """A part of a prepared folder, for a model with that tokenizer.

    Raises:
        DataError: the folder cannot be used, or its tokens are another tokenizer's.
    """
    data = open_prepared(folder)
    if data.manifest.tokenizer.fingerprint != tokenizer.fingerprint():
        raise DataError(f"the tokens were made with another tokenizer ({data.manifest.tokenizer.name}) than the "
                        f"model's ({tokenizer.name}).", where=str(folder),
                        remedy="Give the text itself, or data prepared with the model's tokenizer.")
    return data.stream(part)


def with_prepared(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A run's plain configuration whose ``data.path`` names a prepared folder, with the folder's tokenizer, its
    vocabulary size and its data settings wherever nothing is given; any other configuration as it is.

    Raises:
        DataError: the folder's manifest is damaged.
    """
    filled = dict(plain)
    data = filled.get("data")
    path = data.get("path") if isinstance(data, Mapping) else None
    if not isinstance(path, str) or not is_prepared(Path(path)):
        return filled
    manifest = read_manifest(Path(path))
    filled.setdefault("tokenizer", manifest.recipe.tokenizer)
    model = filled.get("model")
    model = {"kind": model} if isinstance(model, str) else model
    if isinstance(model, Mapping):
        filled["model"] = {"vocab_size": manifest.tokenizer.vocab_size, **model}
    return filled


def _from_folder(config: RunConfig, folder: Path) -> Material:
    data = open_prepared(folder)
    _require_agreement(config, data)
    _require_vocabulary(config, data.manifest.tokenizer.vocab_size)
    return Material(data.manifest.corpus, data.manifest.corpus_sha256, data.tokenizer(), data.stream("train"),
                    data.stream("validation"))


def _require_agreement(config: RunConfig, data: PreparedData) -> None:
    """Refuse a configuration that says of text or tokenizer what is not so in the folder."""
    recipe = data.manifest.recipe
    given = {"data": config.data.recipe(), "tokenizer": {"tokenizer": config.tokenizer.dump()}}
    made = {"data": full_recipe(recipe.data), "tokenizer": {"tokenizer": recipe.tokenizer}}
    problems = [f"{'data.' if section == 'data' else ''}{key}: {value!r}, while {data.path} was prepared with "
                f"{made[section].get(key)!r}. Leave it out, or prepare the data again."
                for section, values in given.items() for key, value in values.items()
                if value != made[section].get(key)]
    if problems:
        raise ConfigError(problems)


def _require_vocabulary(config: RunConfig, needed: int) -> None:
    if config.model.vocab_size < needed:
        raise ConfigError([f"model.vocab_size: {config.model.vocab_size}, while the tokenizer has "
                           f"{needed} ids. Leave it out, and it is filled in."])


def _embedded(settings: DataSettings) -> Corpus:
    corpus, how = embedded_corpus(), settings.division
    if how == "file":
        return corpus
    documents = tuple(piece for document in corpus.documents for piece in divide(document, how))
    return Corpus(corpus.name, documents, version=corpus.version)


def _read(settings: DataSettings, path: str | None) -> Corpus:
    """A text that the settings name, read as they say."""
    if path is None:
        raise _no_test()
    if is_prepared(Path(path)):
        raise DataError("the folder holds prepared tokens, not text.", where=path,
                        remedy="Give the text, or name the folder as data.path alone.")
    return read_text(path, text_field=settings.text_field, documents=settings.division)


def _no_test() -> DataError:
    return DataError("the run has no test text.", where="data.test_path",
                     remedy="Name one in the run's configuration, or give the path of a text.")


@final
class Preparation(NamedTuple):
    """Prepared data, and whether they stood there already, unchanged."""

    data: PreparedData
    reused: bool


def prepare_folder(settings: DataSettings, tokenizer: TokenizerConfig, out: str | Path, *, replace: bool = False,
                   shard_tokens: int = SHARD_TOKENS, on_progress: OnProgress | None = None) -> Preparation:
    """Tokenise a text once, into a folder that is whole or absent.

    What stands there already is kept if it was made from the same text in the same way.

    Args:
        settings: the text and its split.
        tokenizer: what encodes it, trained on the training text if it learns anything.
        out: the folder.
        replace: make it anew, in place of prepared data that stand there as they were written.
        shard_tokens: see `ShardWriter`.
        on_progress: called after each batch of documents.

    Raises:
        DataError: the text cannot be used, the folder cannot be written to, or holds data that were prepared from
            another text or in another way.
        OccupiedError: the folder holds something else, or data that are not as they were written.
        TokenizerError: the tokenizer cannot be made, or cannot express the text.
    """
    folder, recipe = Path(out), Recipe(path=_absolute(settings.path), data=settings.recipe(),
                                       tokenizer=tokenizer.dump())
    try:
        recover(folder)
        sources = _sources(settings)
        if is_prepared(folder) and not replace:
            return Preparation(_kept(folder, recipe, sources, settings, tokenizer), reused=True)
        require_free(folder, proof=by_prepared_manifest, replace=replace)
        parts, corpus, digest = read_texts(settings)
        texts = EncodingTexts(parts, corpus, digest, sources, recipe)
        made = tokenizer.fit(parts["train"].texts())
        with replacing(folder, proof=by_prepared_manifest if replace else None) as draft:
            write_prepared(draft, texts, made, shard_tokens=shard_tokens, on_progress=on_progress)
    except OSError as error:
        raise DataError(f"the prepared data cannot be written ({error.strerror or error}).", where=str(folder),
                        remedy="Make room or correct the permissions, or choose another folder; nothing half-made is "
                               "left.") from None
    return Preparation(open_prepared(folder, check="size"), reused=False)


def _kept(folder: Path, recipe: Recipe, sources: tuple[Source, ...], settings: DataSettings,
          tokenizer: TokenizerConfig) -> PreparedData:
    """What stands there, if preparing again would make the same."""
    data = open_prepared(folder)
    manifest = data.manifest
    before = {source.path: source.sha256 for source in manifest.sources}
    now = {source.path: source.sha256 for source in sources}
    differences = [f"the source {path} has changed" for path in sorted({*before, *now})
                   if before.get(path) != now.get(path)]
    differences += [f"{name} was {old!r} and is now {new!r}" for name, old, new in _changed(manifest.recipe, recipe)]
    if not differences and not sources and read_texts(settings).corpus_sha256 != manifest.corpus_sha256:
        differences = [f"the text was {manifest.corpus}"]
    if not differences:
        differences = _changed_tokenizer(manifest.tokenizer.fingerprint, tokenizer)
    if differences:
        raise DataError(f"other data have been prepared there: {'; '.join(differences)}.", where=str(folder),
                        remedy="Prepare again with --replace, or choose another folder.")
    return data


def _changed_tokenizer(before: str, tokenizer: TokenizerConfig) -> list[str]:
    """What a file that holds the tokenizer, if there is one, says of the fingerprint of the one used then."""
    held = tokenizer.from_file()
    now = before if held is None else held.fingerprint()
    return [] if now == before else [f"the tokenizer's file has changed (SHA-256 {before[:12]}, now {now[:12]})"]


def _changed(before: Recipe, now: Recipe) -> list[tuple[str, Any, Any]]:
    old_data, new_data = full_recipe(before.data), full_recipe(now.data)
    pairs = [("path", before.path, now.path), ("tokenizer", before.tokenizer, now.tokenizer),
             *((f"data.{key}", old_data.get(key), new_data.get(key)) for key in sorted({*old_data, *new_data}))]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _sources(settings: DataSettings) -> tuple[Source, ...]:
    paths = [Path(path) for path in (settings.path, settings.validation_path, settings.test_path) if path is not None]
    return tuple(source_of(file) for path in paths for file in source_files(path))


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).resolve())
