"""The material of a run, and folders of prepared tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weft.core.errors import ConfigError, DataError
from weft.data.conversations import texts_in
from weft.data.prepared import (
    DocumentEncoder,
    EncodingTexts,
    OnProgress,
    PreparedData,
    TextEncoder,
    by_prepared_manifest,
    open_prepared,
    source_of,
    write_prepared,
)
from weft.data.prepared_manifest import PreparationRecipe, SourceFile, is_prepared, read_prepared_manifest
from weft.data.settings import DataSettings
from weft.data.shards import SHARD_TOKENS
from weft.data.text import source_files
from weft.disk.atomic import recover, replacing
from weft.disk.ownership import require_free
from weft.tasks.conversations import ConversationConfig
from weft.tasks.protocols import MakesIds
from weft.tasks.records import Reread
from weft.tasks.token_streams import Material, Texts, read_texts
from weft.tokenizers.config import TokenizerConfig
from weft.training.config import RunConfig
from weft.training.filling import ids_added, task_of, tokenizer_of


def prepare(config: RunConfig) -> Material[Any]:
    """The examples that the run's task trains on and those that it is measured on.

    Raises:
        DataError: the data cannot be used.
        TokenizerError: the tokenizer cannot be made, or cannot express the text.
        ConfigError: the model's vocabulary is smaller than the tokenizer's, or the configuration does not agree with a
            prepared folder.
    """
    material = config.made_task().material(config.data, config.tokenizer)
    known, more = material.tokenizer.vocab_size, ids_added(config.task, config.tokenizer)
    own = config.task.vocabulary(config.data) if isinstance(config.task, MakesIds) else None
    if own is not None and config.model.vocab_size < own:
        raise ConfigError([f"model.vocab_size: {config.model.vocab_size}, while the rows of {config.task.kind!r} have "
                           f"{own:,} ids. Leave it out, and it is filled in."])
    if config.model.vocab_size < known + more:
        also = f" and the task {config.task.kind!r} needs {more} more" if more else ""
        raise ConfigError([f"model.vocab_size: {config.model.vocab_size}, while the tokenizer has "
                           f"{known} ids{also}. Leave it out, and it is filled in."])
    return material


def with_prepared(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A run's plain configuration whose ``data.path``, or one of whose sources, names a prepared folder, with the
    folder's tokenizer and its vocabulary size wherever none are given; any other configuration unchanged. Raises
    `DataError`: the folder's manifest is damaged."""
    filled = dict(plain)
    data = filled.get("data")
    path = data.get("path") if isinstance(data, Mapping) else None
    if isinstance(data, Mapping) and isinstance(data.get("sources"), Mapping):
        places = [each.get("path") for each in data["sources"].values() if isinstance(each, Mapping)]
        path = next((each for each in places if isinstance(each, str) and is_prepared(Path(each))), None)
    if not isinstance(path, str) or not is_prepared(Path(path)):
        return filled
    manifest = read_prepared_manifest(Path(path))
    filled.setdefault("tokenizer", manifest.recipe.tokenizer)
    model = filled.get("model")
    model = {"kind": model} if isinstance(model, str) else model
    if isinstance(model, Mapping):
        filled["model"] = {"vocab_size": manifest.tokenizer.vocab_size + _extra_ids(filled), **model}
    return filled


def _extra_ids(plain: Mapping[str, Any]) -> int:
    try:
        return ids_added(task_of(plain), tokenizer_of(plain))
    except ConfigError:
        return 0  # parsing the whole reports the problem of the task or the tokenizer


class Preparation(NamedTuple):
    """Prepared data, and whether they were in the folder already, unchanged."""

    data: PreparedData
    reused: bool


def prepare_folder(settings: DataSettings, tokenizer: TokenizerConfig, out: str | Path, *, replace: bool = False,
                   shard_tokens: int = SHARD_TOKENS, on_progress: OnProgress | None = None,
                   task: ConversationConfig | None = None) -> Preparation:
    """Tokenise a text, or the conversations of a task, into a folder, which is complete or absent afterwards.

    Prepared data that are there already are kept if they were made from the same text in the same way.

    Args:
        settings: the text and its split.
        tokenizer: what encodes it, trained on the training text if it learns anything.
        replace: write the folder again, in place of prepared data that have not changed since they were written.
        shard_tokens: see `ShardWriter`.
        on_progress: called after each batch of documents.
        task: whose conversations are read; None: running text.

    Raises:
        DataError: the text cannot be used, the folder cannot be written to, or holds data that were prepared from
            another text or in another way.
        OccupiedError: the folder holds something else, or data that are not as they were written.
        TokenizerError: the tokenizer cannot be made, or cannot express the text.
    """
    folder, recipe = Path(out), PreparationRecipe(path=_absolute(settings.path), data=settings.recipe(),
                                                  tokenizer=tokenizer.dump(),
                                                  task=None if task is None else task.recipe())
    try:
        recover(folder)
        sources = _sources(settings)
        if is_prepared(folder) and not replace:
            return Preparation(_kept(folder, recipe, sources, settings, tokenizer), reused=True)
        require_free(folder, proof=by_prepared_manifest, replace=replace)
        read = read_texts(settings) if task is None else task.parts(settings)
        texts = EncodingTexts(read.parts, read.corpus, read.corpus_sha256, sources, recipe)
        encoder = _encoder(read, tokenizer, task)
        with replacing(folder, proof=by_prepared_manifest if replace else None) as draft:
            write_prepared(draft, texts, encoder, shard_tokens=shard_tokens, on_progress=on_progress)
    except OSError as error:
        raise DataError(f"the prepared data cannot be written ({error.strerror or error}).", where=str(folder), remedy=(
            "Free space or correct the permissions, or choose another folder; no incomplete folder is left.")) from None
    return Preparation(open_prepared(folder, check="size"), reused=False)


def _encoder(texts: Texts, tokenizer: TokenizerConfig, task: ConversationConfig | None) -> DocumentEncoder:
    """The encoder of texts, or of a task's conversations."""
    train = texts.parts["train"]
    if task is None:
        return TextEncoder(tokenizer.fit(train.texts()))
    return task.encoder(tokenizer.fit(Reread(lambda: texts_in(train))))


def _kept(folder: Path, recipe: PreparationRecipe, sources: tuple[SourceFile, ...], settings: DataSettings,
          tokenizer: TokenizerConfig) -> PreparedData:
    """The prepared data of a folder, if preparing them again would give the same. Raises `DataError`: it would not; the
    message lists the differences."""
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
    """Whether the file of a tokenizer that is read from one has changed since the data were prepared."""
    held = tokenizer.from_file()
    now = before if held is None else held.fingerprint()
    return [] if now == before else [f"the tokenizer's file has changed (SHA-256 {before[:12]}, now {now[:12]})"]


def _changed(before: PreparationRecipe, now: PreparationRecipe) -> list[tuple[str, Any, Any]]:
    pairs = [("path", before.path, now.path), ("tokenizer", before.tokenizer, now.tokenizer),
             ("task", before.task, now.task),
             *((f"data.{key}", before.data.get(key), now.data.get(key)) for key in sorted({*before.data, *now.data}))]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _sources(settings: DataSettings) -> tuple[SourceFile, ...]:
    paths = [path for path in (settings.path, settings.validation_path, settings.test_path) if path is not None]
    return tuple(source_of(file) for path in paths for file in source_files(path))


def _absolute(path: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    if isinstance(path, tuple):
        return tuple(str(Path(each).resolve()) for each in path)
    return None if path is None else str(Path(path).resolve())
