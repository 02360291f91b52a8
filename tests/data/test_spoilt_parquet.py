"""Parquet files whose description or pages' headers lie: pyarrow would end the process, or unpack what was not counted.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from data.spoilt_files import MEBIBYTE, refused, rows
from fresh import fresh
from weft.core.errors import DataError
from weft.data import parquet as reader
from weft.data.parquet import Chunk, Page, pages
from weft.data.records import records
from weft.data.thrift import I32, I64, Malformed, read_struct


def described(content: bytes, was: bytes, now: bytes) -> bytes:
    """A file with other bytes in its description, which has the old ones once."""
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    assert content[start:-8].count(was) == 1
    description = content[start:-8].replace(was, now)
    return content[:start] + description + struct.pack("<I", len(description)) + b"PAR1"


@pytest.mark.parametrize(("was", "now"), [
    (b"\x19\x26\x00\x12", b"\x19\x16\x00"),
    (b"\x19\x26\x00\x12", b"\x19\x36\x00\x12\x00"),
    (b"\x15\x0c\x25\x02\x18", b"\x15\x00\x25\x02\x18"),
    (b"\x12\x00\x00\x00\x16", b"\x12\x00\x00\x5c\x1c\x00\x00\x00\x16"),
], ids=["a histogram of one level for a column of two", "of three levels", "sizes of texts for a column of truths",
        "a column that is encrypted"])
def test_descriptions_by_which_pyarrow_ends_the_process(was: bytes, now: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"raw": [b"abc"] * 9}), path, use_dictionary=False, compression="none",
                        store_schema=False)
    path.write_bytes(described(path.read_bytes(), was, now))
    ended = fresh(refused, path, folder=tmp_path)
    assert (ended.returncode, ended.stderr, ended.stdout.count("\n")) == (0, "", 1)
    assert "is not Parquet, or is truncated or damaged" in ended.stdout


def counted(content: bytes, name: str = "text") -> None:
    """Count what a file unpacks to, of which less than the text of `large` is allowed."""
    reader._batch_rows(content, reader._opened(content), {name}, 16 * MEBIBYTE - 1, Path("a.parquet"))


def large(path: Path, name: str = "text", *, inner: str = "") -> bytes:
    """A file of some kilobytes with a text of 16 MiB."""
    values = arrow.array(["a" * (16 * MEBIBYTE)])
    held = arrow.StructArray.from_arrays([values], [inner]) if inner else values
    parquet.write_table(arrow.table({name: held}), path, compression="zstd", use_dictionary=False,
                        write_statistics=False, store_schema=False)
    return path.read_bytes()


def test_pages_are_counted_where_pyarrow_reads_them(tmp_path: Path) -> None:
    content = large(tmp_path / "a.parquet")
    for lie in (b"\x26\x01", b"\x26\x00", b"\x26\x7e"):  # a dictionary before the file, at its mark, after the pages
        with pytest.raises(DataError, match="unpacks to more than"):
            counted(described(content, b"\x26\x08\x49", b"\x26\x08" + lie + b"\x29"))
    with pytest.raises(DataError, match="unpacks to more than"):  # another name than the schema's
        counted(described(content, b"\x19\x18\x04text", b"\x19\x18\x04next"))
    with pytest.raises(DataError, match="unpacks to more than"):
        counted(large(tmp_path / "a.parquet", "a.b", inner="c"), "a.b")


@pytest.mark.parametrize(("was", "now", "told"), [
    (b"\x26\x08\x49", b"\x26\x08\x25\x08\x29", "a field of type 5"),
    (b"\x26\x08\x49", b"\x26\x01\x49", "a column's place is negative"),
    (b"\x26\x08\x49", b"\x26\x08\x06\x12\x08\x49", "the field 9 comes twice"),
])
def test_descriptions_that_two_readers_may_take_differently(was: bytes, now: bytes, told: str, tmp_path: Path) -> None:
    content = described(large(tmp_path / "a.parquet"), was, now)
    with pytest.raises(Malformed, match=told):
        counted(content)


def test_a_group_of_rows_without_the_schemas_columns(tmp_path: Path) -> None:
    content = large(tmp_path / "a.parquet")
    start = content.index(b"\x19\x1c\x26\x00\x1c")
    chunk = content[start:content.index(b"\x00\x00\x16", start) + 2]
    with pytest.raises(Malformed, match="groups of rows have other columns than it says"):
        counted(described(content, chunk, b"\x19\x0c"))


def test_pages_whose_headers_are_damaged_are_not_passed_over(tmp_path: Path) -> None:
    content = large(tmp_path / "a.parquet")
    for lie in (b"\x1b", b"\x00", b"\x15\x00\x15\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(Malformed, match="the header of a page is damaged"):
            counted(content[:4] + lie + content[4 + len(lie):])


def test_a_page_is_what_its_type_says() -> None:
    """This one has the heads of a data page and of a dictionary; pyarrow goes by the type."""
    heads = bytes.fromhex("15 20 15 20 2c 15 12 15 10 00 2c 15 02 15 00 00 00")
    for kind, page in ((0, Page(16, 9, 9, None)), (2, Page(16, 1, 0, (19, 35))), (1, Page(16, 0, 0, None))):
        content = bytes([0x15, 2 * kind]) + heads
        assert list(pages(content + bytes(16), Chunk(0, 35, page.values, ""))) == [page]


def test_fields_that_are_not_wanted_are_passed_over() -> None:
    """A truth, a byte, numbers, a text, lists of numbers, truths, texts and structures, a structure, and at last -5."""
    content = bytes.fromhex("11 13 7f 14 ff 01 17 0000000000000000 18 02 6162 19 25 02 80 01 19 21 01 02 19 28 01 61 00"
                            "19 2c 15 02 00 00 1c 05 7e 02 00 16 09") + b"\x00"
    assert read_struct(content, 0, {11: I64}) == ({11: -5}, len(content))
    assert read_struct(content, 0, {9: [{1: I32}]})[0] == {9: [{1: 1}, {}]}
    for end in range(len(content)):
        with pytest.raises(IndexError):
            read_struct(content[:end], 0, {11: I64})
    for lie in (b"\x15" + b"\xff" * 4 + b"\x1f\x00", b"\x15" + b"\x80" * 10, b"\x1c" * 20, b"\x19\x19" * 20, b"\x1d",
                b"\x05\x01\x00", b"\x16\x02"):
        with pytest.raises(Malformed):
            read_struct(lie + bytes(9), 0, {1: I32} if lie[0] != 0x1C else {})


def test_a_value_that_is_no_object_of_python(tmp_path: Path) -> None:
    for unit in ("ns", "s"):
        times = arrow.array([123456789012345], arrow.timestamp(unit))
        parquet.write_table(arrow.table({"text": ["a"], "at": times}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=r"a\.parquet: the file holds a value that is no object of Python \(.*\)\. "
                                            "Write that column as text, or leave it out"):
            rows(tmp_path / "a.parquet")
        assert [each.values for each in records(tmp_path / "a.parquet", ".parquet", {"text_field": "text"})] == [("a",)]
