"""Data sets on disk that say other than they hold."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest

from bounded import memory
from weft.core.errors import DataError
from weft.data.saved_datasets import saved_dataset

FIELDS = {"text_field": "text"}


def folder(place: Path, *batches: arrow.RecordBatch, **options: Any) -> Path:
    with arrow.OSFile(str(place / "a.arrow"), "wb") as sink, arrow.ipc.new_stream(
            sink, batches[0].schema, options=arrow.ipc.IpcWriteOptions(**options)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))
    return place


def batch(text: arrow.Array) -> arrow.RecordBatch:
    return arrow.record_batch([text], ["text"])


def test_compressed_batches(tmp_path: Path) -> None:
    """8 MiB of one character take some hundred bytes; gigabytes would take a megabyte."""
    texts = batch(arrow.array(["a" * (8 << 20)]))
    assert len(saved_dataset(folder(tmp_path, texts), FIELDS, whole=True).documents) == 1
    for packed in ("zstd", "lz4"):
        folder(tmp_path, texts, texts, compression=packed)
        assert (tmp_path / "a.arrow").stat().st_size < 100_000
        with pytest.raises(DataError, match=r"a\.arrow: its batches are compressed, which those of save_to_disk"):
            saved_dataset(tmp_path, FIELDS, whole=True)
    named = arrow.DictionaryArray.from_arrays(arrow.array([0], arrow.int32()), arrow.array(["a" * (8 << 20)]))
    with pytest.raises(DataError, match="its batches are compressed"):
        saved_dataset(folder(tmp_path, batch(named), compression="zstd"), FIELDS, whole=True)


def test_texts_that_share_their_characters(tmp_path: Path) -> None:
    places = arrow.py_buffer(np.array([0, 1 << 20] * 2_048, np.int32))
    held = arrow.StringArray.from_buffers(4_095, places, arrow.py_buffer(b"a" * (1 << 20)))
    named = arrow.DictionaryArray.from_arrays(arrow.array([0] * 4_096, arrow.int32()), arrow.array(["a" * (1 << 20)]))
    for texts, what in ((held, "the file is not an Arrow stream, or is truncated or damaged"),
                        (named, "the field 'text' holds dictionary<.*not text")):
        folder(tmp_path, batch(texts))
        with pytest.raises(DataError, match=what), memory(256 << 20):
            saved_dataset(tmp_path, FIELDS, whole=True)


def test_places_beyond_the_file(tmp_path: Path) -> None:
    """Reading them would end the process."""
    places = arrow.py_buffer(np.array([0, 2**31 - 1, 1], np.int32))
    held = arrow.StringArray.from_buffers(2, places, arrow.py_buffer(b"a"))
    with pytest.raises(DataError, match="is truncated or damaged"):
        saved_dataset(folder(tmp_path, batch(held)), FIELDS, whole=True)


@pytest.mark.parametrize("name", ["../b.arrow", "/dev/zero", "..", 7, None, "a\0b"])
def test_files_lie_in_the_folder(name: Any, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(DataError, match=r"state\.json: .* is no name of a file in the folder|truncated or damaged"):
        saved_dataset(tmp_path, FIELDS, whole=True)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    folder(tmp_path, batch(arrow.array(["a"])))
    (tmp_path / "a.arrow").unlink()
    os.mkfifo(tmp_path / "a.arrow")
    with pytest.raises(DataError, match="it is a pipe, and only regular files are read"):
        saved_dataset(tmp_path, FIELDS, whole=True)
