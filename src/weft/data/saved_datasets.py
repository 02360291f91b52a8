"""Data sets in the format of the package `datasets`: what its ``save_to_disk`` wrote, and those that it loads.

Whether the batches of an Arrow stream are compressed, which pyarrow unpacks whatever their size.

The head of a message is a FlatBuffer (Apache Arrow, ``Message.fbs``): Message 1 header_type, 2 header; a header of type
3, RecordBatch, has compression as field 3, and one of type 2, DictionaryBatch, has such a batch as field 1. A field
lies where the table at the beginning of its object says, or is missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import DataError, MissingExtra
from weft.data.corpus import Corpus
from weft.data.document_buffer import Documents
from weft.data.records import Fields, TextRecord
from weft.data.text import record_table
from weft.disk.documents import read_json, require_regular

STATE, SPLITS = "state.json", "dataset_dict.json"


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder holds what ``save_to_disk`` wrote: one split, or several."""
    return (path / STATE).is_file() or (path / SPLITS).is_file()


def saved_dataset(path: Path, fields: Fields, *, whole: bool) -> Corpus:
    """The texts of a data set on disk, each record a document. The package `datasets` is not needed for it.

    Args:
        path: the folder that ``save_to_disk`` wrote.
        fields: of its records that are read.
        whole: see `Corpus`.

    Raises:
        DataError: the folder is damaged or holds several splits; or as `weft.data.read_text`.
        MissingExtra: the package `pyarrow` is not installed.
    """
    state = _json(path / STATE) if (path / STATE).is_file() else None
    if state is None:
        splits = _json(path / SPLITS).get("splits")
        splits = splits if isinstance(splits, list) else []
        raise DataError(f"the data set has several splits: {', '.join(map(str, splits))}.", where=str(path),
                        remedy=f"Name the folder of one, such as {path / str((splits or ['train'])[0])}.")
    names = list(_names(state, path))
    tables = [record_table(name, str(path / name), _arrow(path / name, fields), fields) for name in names]
    found = Documents(tables)
    if not found:
        raise DataError("the data set has no text.", where=str(path), remedy="Give one that has text.")
    return Corpus(path.resolve().name, found, whole=whole)


def loaded_dataset(name: str, fields: Fields, *, config: str | None, split: str, revision: str | None, whole: bool,
                   max_bytes: int | None) -> Corpus:
    """The texts of a data set of the Hub, or of a local folder of that name, read as a stream.

    Args:
        name: such as ``org/name``.
        fields: of its records that are read.
        config: see `weft.data.source_settings.HubDataset`, and so for ``split`` and ``revision``.
        whole: see `Corpus`.
        max_bytes: no record is read once there are so many bytes of text; None: all are.

    Raises:
        DataError: it cannot be loaded, or has no text.
        MissingExtra: the package `datasets` is not installed.
    """
    if is_saved_dataset(Path(name)):
        raise DataError("the folder is one that save_to_disk wrote, which is not loaded by name.", where=name,
                        remedy="Name it with path in place of dataset.")
    try:
        import datasets  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise MissingExtra("datasets", "datasets", "reading data sets of the Hub") from None
    try:
        rows = datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)
        if set(fields.values()) <= set(rows.column_names or ()):
            rows = rows.select_columns(list(dict.fromkeys(fields.values())))  # images and sound would be decoded
        table = record_table(name, name, _rows(name, rows, fields), fields, max_bytes)
    except DataError:
        raise
    except Exception as error:  # any of the package, the network or the Hub
        what = " ".join(str(error).split())
        raise DataError(f"the data set cannot be loaded ({what}).", where=name,
                        remedy="Check name, config and split, and the network.") from error
    if not len(table):
        raise DataError("the data set has no text.", where=name, remedy="Give one that has text.")
    return Corpus(name, Documents([table]), version=revision or "", whole=whole)


def _names(state: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """The files of a data set, which lie in its folder."""
    files = state.get("_data_files") or []
    for each in files if isinstance(files, list) else [files]:
        name = each.get("filename") if isinstance(each, dict) else each
        if not isinstance(name, str) or Path(name).name != name or name in (".", ".."):
            raise DataError(f"{str(name)[:80]!r} is no name of a file in the folder.", where=str(folder / STATE),
                            remedy="Save the data set again, or copy it again, whole.")
        yield name


def _arrow(path: Path, fields: Fields) -> Iterator[TextRecord]:
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtra("pyarrow", "data", "reading data sets on disk") from None
    try:
        require_regular(path)
        with arrow.memory_map(str(path)) as file:
            if packed_batches(file):
                raise DataError("its batches are compressed, which those of save_to_disk are not.", where=str(path),
                                remedy="Save the data set again with save_to_disk, or as Parquet.")
        with arrow.memory_map(str(path)) as file, arrow.ipc.open_stream(file) as stream:
            yield from _rows(str(path), (row for batch in stream for row in _plain(batch, fields, str(path))), fields)
    except (arrow.ArrowException, OSError, ValueError, KeyError) as error:
        what = f"the file is not an Arrow stream, or is truncated or damaged ({' '.join(str(error).split())})."
        raise DataError(what, where=str(path), remedy="Save the data set again, or copy it again, whole.") from None


def _plain(batch: Any, fields: Fields, where: str) -> Iterator[Mapping[str, Any]]:
    """The rows of a batch, with the fields that are read where it has them. Texts that share their characters, as
    places in a dictionary do, may be gigabytes of which the file has one: they are refused. Raises `DataError`: a field
    holds something else than plain text."""
    from pyarrow import types

    if not batch.num_rows:
        return
    if not set(fields.values()) <= set(batch.schema.names):
        yield dict.fromkeys(batch.schema.names)
        return
    found = batch.select(list(dict.fromkeys(fields.values())))
    found.validate(full=True)  # places that lie outside the file would end the process
    for setting, field in fields.items():
        kind = found.schema.field(field).type
        if not (types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind)):
            raise DataError(f"the field {field!r} holds {kind}, not text.", where=where,
                            remedy=f"Name another field with {setting}.")
    yield from found.to_pylist()


def _rows(where: str, rows: Iterable[Mapping[str, Any]], fields: Fields) -> Iterator[TextRecord]:
    for number, row in enumerate(rows, 1):
        if missing := [(setting, field) for setting, field in fields.items() if field not in row]:
            setting, field = missing[0]
            raise DataError(f"no field {field!r}; the fields are: {', '.join(map(repr, row))}.",
                            where=f"{where}, row {number}", remedy=f"Name the one that is read with {setting}.")
        yield TextRecord(number, f"{where}, row {number}", tuple(row[field] for field in fields.values()))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"the file is damaged ({error}).", where=str(path), remedy="Save the data set again, or copy "
                        "it again, whole.") from None
    return found if isinstance(found, dict) else {}


DICTIONARY, BATCH = 2, 3
HEADER_TYPE, HEADER, DATA, COMPRESSION = 1, 2, 1, 3


def packed_batches(file: Any) -> bool:
    """Whether a batch of an open stream is compressed. Raises `ValueError`: the head of a message is damaged."""
    from pyarrow import ipc

    for message in ipc.MessageReader.open_stream(file):
        try:
            if _is_packed(message.metadata.to_pybytes()):
                return True
        except (struct.error, IndexError) as error:
            raise ValueError(f"the head of a message is damaged: {error}") from None
    return False


def _is_packed(head: bytes) -> bool:
    message = _pointer(head, 0)
    kind, header = _field(head, message, HEADER_TYPE), _field(head, message, HEADER)
    if not kind or not header or head[kind] not in (DICTIONARY, BATCH):
        return False
    found = _pointer(head, header)
    if head[kind] == DICTIONARY:
        data = _field(head, found, DATA)
        if not data:
            return False
        found = _pointer(head, data)
    return bool(_field(head, found, COMPRESSION))


def _pointer(head: bytes, place: int) -> int:
    """Where an object lies whose distance stands at ``place``."""
    (distance,) = struct.unpack_from("<I", head, place)
    return place + int(distance)


def _field(head: bytes, table: int, number: int) -> int:
    """Where a field of an object lies; 0 where it is missing."""
    (back,) = struct.unpack_from("<i", head, table)
    first = table - int(back)
    if first < 0:
        raise IndexError("a table before its beginning")
    (size,) = struct.unpack_from("<H", head, first)
    if 4 + 2 * number >= size:
        return 0
    (offset,) = struct.unpack_from("<H", head, first + 4 + 2 * number)
    return table + int(offset) if offset else 0
