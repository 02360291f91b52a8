"""Parquet files: every kind of value comes back, and files of some hundred bytes that hold gigabytes are refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet

from bounded import memory
from weft.core.errors import DataError
from weft.data import parquet as reader
from weft.data.parquet import groups, longest_text, pages
from weft.data.records import records, whole_records

MEBIBYTE = 1 << 20
ROOM = 400 * MEBIBYTE
"""What reading may take at its largest: batches of 64 MiB, as Arrow's and as Python's, and a thread's stack or two."""


def texts(path: Path) -> list[str]:
    with memory(ROOM):
        return [record.values[0] for record in records(path, ".parquet", {"text_field": "text"})]


@pytest.mark.parametrize("settings", [{}, {"use_dictionary": False}, {"compression": "gzip"}, {"compression": "none"},
                                      {"compression": "zstd", "data_page_version": "2.0"}, {"compression": "lz4"},
                                      {"dictionary_pagesize_limit": 64}], ids=str)
def test_every_value_comes_back(settings: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"text": ["ab", None, "c" * 999][i % 3], "number": i, "flags": [True, None], "raw": b"\0\xff",
             "talk": [{"role": "user", "content": f"{i}"}] * (i % 3), "deep": {"a": {"b": [[i]]}}}
            for i in range(1_500)]
    table = arrow.Table.from_pylist(rows)
    pairs = arrow.array([[("k", f"{i}")] for i in range(1_500)], arrow.map_(arrow.string(), arrow.string()))
    table = table.append_column("pairs", pairs)
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=400, **settings)
    assert [row for _, _, row in whole_records(tmp_path / "a.parquet", ".parquet")] == table.to_pylist()
    numbered = list(records(tmp_path / "a.parquet", ".parquet", {"text_field": "text", "prompt_field": "number"}))
    assert [each.values for each in numbered] == [(row["text"], row["number"]) for row in rows]
    assert numbered[-1].number == 1_500 and numbered[-1].where.endswith("a.parquet, row 1500")


def test_a_text_that_a_dictionary_holds_once_and_thousands_of_rows_name(tmp_path: Path) -> None:
    for count, sound in ((40, True), (300, False)):
        held = arrow.DictionaryArray.from_arrays(arrow.array([0] * count, arrow.int32()),
                                                 arrow.array(["a" * MEBIBYTE]))
        path = tmp_path / f"{count}.parquet"
        parquet.write_table(arrow.table({"text": held}), path, compression="zstd", store_schema=False)
        assert path.stat().st_size < 400
        if sound:
            assert texts(path) == ["a" * MEBIBYTE] * count
            continue
        with pytest.raises(DataError, match=r"the file of \d+ bytes unpacks to more than 67,108,864; what is read has "
                                            r"at most 100 times its size\. If that is right, write the rows as JSON"):
            texts(path)


def test_lists_of_such_a_text(tmp_path: Path) -> None:
    """Nothing says how long the list of a row is, so all is counted at once."""
    held = arrow.ListArray.from_arrays([0, 4_096], arrow.DictionaryArray.from_arrays(
        arrow.array([0] * 4_096, arrow.int32()), arrow.array(["a" * MEBIBYTE])))
    parquet.write_table(arrow.table({"text": held}), tmp_path / "a.parquet", compression="zstd", store_schema=False)
    with pytest.raises(DataError, match="unpacks to more than"), memory(ROOM):
        list(whole_records(tmp_path / "a.parquet", ".parquet"))


def test_pages_that_unpack_to_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with parquet.ParquetWriter(path, arrow.schema([("text", arrow.string())]), compression="zstd",
                               use_dictionary=False) as writer:
        for _ in range(5):
            writer.write_table(arrow.table({"text": ["a" * (16 * MEBIBYTE)]}))
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match="unpacks to more than"):
        texts(path)
    content = path.read_bytes()
    with pytest.raises(DataError, match="unpacks to more than"):  # before a page is unpacked
        reader._batch_rows(content, reader._opened(content), {"text"}, 80 * MEBIBYTE - 1, path)


def test_values_count_however_small_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    numbers = arrow.DictionaryArray.from_arrays(arrow.array(bytes(5_000_000), arrow.int8()), arrow.array([""]))
    parquet.write_table(arrow.table({"text": numbers}), path, store_schema=False)
    assert path.stat().st_size < 20_000
    with pytest.raises(DataError, match="unpacks to more than"):
        texts(path)


def number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


@pytest.mark.parametrize(("columns", "depth"), [(150_000, 1), (1, 5_000)])
def test_a_description_of_many_columns_or_deep_ones(columns: int, depth: int, tmp_path: Path) -> None:
    group = b"\x35\x02\x18\x01a\x15" + number(2 * columns) + b"\0"
    elements = [group] * depth + [b"\x15\x0c\x25\x02\x18\x01t\0"] * columns
    description = (b"\x15\x02\x19\xfc" + number(len(elements)) + b"".join(elements) + b"\x16\0\x19\x0c\0")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1" + description + struct.pack("<I", len(description)) + b"PAR1")
    with pytest.raises(DataError, match="the file is not Parquet, or is truncated or damaged"):
        texts(path)


def test_sizes_of_pages_that_are_negative_or_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": ["abc"] * 9}), path, compression="none", use_dictionary=False)
    content = path.read_bytes()
    assert content[4:7] == b"\x15\0\x15"
    assert [each.values for _, chunks in groups(content) for each in pages(content, chunks[0])] == [9]
    for lie in (number(2**32 - 1), number(2**31), b"\xff" * 9 + b"\1"):
        path.write_bytes(content[:7] + lie + content[7 + len(lie):])
        with pytest.raises(DataError):
            texts(path)


def test_the_longest_text_of_a_dictionary() -> None:
    held = b"".join(struct.pack("<I", size) + b"x" * size for size in (3, 70, 0))
    assert longest_text(held) == 70 and longest_text(b"") == 0
    assert longest_text(struct.pack("<I", 2**32 - 1) + b"ab") == 6


def test_batches_have_as_few_rows_as_their_texts_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "BATCH_BYTES", 1_000)
    rows = ["ab" * 50, "c"] * 500
    for dictionary in (True, False):
        parquet.write_table(arrow.table({"text": rows}), tmp_path / "a.parquet", use_dictionary=dictionary)
        sizes: list[int] = []
        opened = reader._opened

        def followed(content: Any, opened: Any = opened, sizes: list[int] = sizes) -> Any:
            file = opened(content)
            sizes.append(reader._batch_rows(content, file, {"text"}, 1 << 30, tmp_path))
            return file

        monkeypatch.setattr(reader, "_opened", followed)
        assert texts(tmp_path / "a.parquet") == rows
        monkeypatch.setattr(reader, "_opened", opened)
        assert sizes == ([10] if dictionary else [18])
