"""The text of one source of a mixture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.core.errors import DataError
from weft.data.compression import content_suffix
from weft.data.corpus import Corpus, Split
from weft.data.places import files_of
from weft.data.records import RECORD_SUFFIXES
from weft.data.saved_datasets import is_saved_dataset, loaded_dataset, saved_dataset
from weft.data.settings import DataSettings
from weft.data.source_settings import TextSource
from weft.data.text import TEXT_SUFFIXES, read_like, read_text


def split_source(name: str, source: TextSource, data: DataSettings) -> Split:
    """The training text and the held-out text of a source that is no prepared folder.

    Args:
        data: the settings of all sources, for those that it does not give.

    Raises:
        DataError: it cannot be read, has no text, or is too small to split; ``where`` names the source.
        MissingExtra: a package that reads it is not installed.
    """
    with of_source(name):
        corpus = _read(source, data)
        if source.validation_path is not None:
            text, prompt = source.text_field or data.text_field, source.prompt_field or data.prompt_field
            return corpus, read_like(source.validation_path, text_field=text, prompt_field=prompt,
                                     documents=source.division or data.division)
        assert data.validation is not None, "there is a share where there is no path"
        return corpus.split(data.validation, seed=data.split_seed, by=data.split_by)


@contextmanager
def of_source(name: str) -> Iterator[None]:
    """A context that adds the name of a source to the place of an error of its data."""
    try:
        yield
    except DataError as error:
        place = f"data.sources.{name}"
        where = place if error.where in (None, name) else f"{place}: {error.where}"
        raise DataError(error.what, where=where, remedy=error.remedy) from error


def _read(source: TextSource, data: DataSettings) -> Corpus:
    text, prompt = source.text_field or data.text_field, source.prompt_field or data.prompt_field
    fields = ({} if prompt is None else {"prompt_field": prompt}) | {"text_field": text}
    limit, whole = source.max_bytes or data.max_bytes, prompt is not None
    if source.dataset is not None:
        hub = source.dataset
        corpus = loaded_dataset(hub.name, fields, config=hub.subset, split=hub.split, revision=hub.revision,
                                whole=whole, max_bytes=limit)
    elif isinstance(source.path, str) and is_saved_dataset(Path(source.path)):
        corpus = saved_dataset(Path(source.path), fields, whole=whole)
    else:
        corpus = _of_files(source, data)
    return corpus if limit is None else corpus.limited(limit, seed=data.split_seed)


def _of_files(source: TextSource, data: DataSettings) -> Corpus:
    """The text of files. What the source says itself must apply to one of them; what is said for all sources applies
    where it can."""
    assert source.path is not None, "a source has a path or a data set"
    kinds = {content_suffix(path) in RECORD_SUFFIXES for path in files_of(source.path, TEXT_SUFFIXES).paths}
    common = DataSettings() if True not in kinds else data
    return read_text(source.path, text_field=source.text_field or common.text_field,
                     prompt_field=source.prompt_field or common.prompt_field,
                     documents=source.division or (data.division if False in kinds else "file"))
