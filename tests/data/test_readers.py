"""Text, JSONL and Parquet, compressed or not: what is read, and what is refused with file and line."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as arrow  # type: ignore[import-untyped]
import pytest
import zstandard
from pyarrow import parquet

from weft.core.errors import DataError, MissingExtra
from weft.data import read_text

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress}
TEXTS = ["first é\nsecond line", "世界", "third"]


def jsonl(texts: list[Any], field: str = "text") -> bytes:
    return "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)).encode()


def table(texts: list[Any], field: str = "text") -> bytes:
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({"id": list(range(len(texts))), field: texts}), sink, row_group_size=2)
    return bytes(sink.getvalue())


def found(path: Path, **options: Any) -> list[tuple[str, str]]:
    return [(document.name, document.text) for document in read_text(path, **options).documents]


def refused(path: Path, message: str, **options: Any) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_text(path, **options)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("packed", PACK)
def test_each_kind_is_read_in_each_compression(tmp_path: Path, packed: str) -> None:
    contents = {"a.txt": "whole é\n".encode(), "b.jsonl": jsonl(TEXTS), "c.parquet": table(TEXTS)}
    for name, content in contents.items():
        (tmp_path / (name + packed)).write_bytes(PACK[packed](content))
    assert found(tmp_path / f"a.txt{packed}") == [(f"a.txt{packed}", "whole é\n")]
    for name in ("b.jsonl", "c.parquet"):
        assert found(tmp_path / (name + packed)) == [(f"{name}{packed}:{i}", text) for i, text in enumerate(TEXTS, 1)]
    assert [name for name, _ in found(tmp_path)] == [
        f"a.txt{packed}", *(f"{name}{packed}:{i}" for name in ("b.jsonl", "c.parquet") for i in (1, 2, 3))]


def test_streams_one_after_the_other_are_one_file(tmp_path: Path) -> None:
    for packed in list(PACK)[1:]:
        path = tmp_path / f"two.txt{packed}"
        path.write_bytes(PACK[packed](b"one ") + PACK[packed](b"two"))
        assert found(path) == [(path.name, "one two")], packed


@pytest.mark.parametrize("packed", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("name", ["a.txt", "b.jsonl"])
def test_a_compressed_file_that_breaks_off_or_is_none_is_refused(tmp_path: Path, packed: str, name: str) -> None:
    path = tmp_path / (name + packed)
    content = PACK[packed](jsonl([f"text {i * i}" for i in range(500)]))
    path.write_bytes(content[:-9])
    refused(path, r"the compressed file is truncated: its content breaks off after [\d,]+ bytes\. Copy or download")
    path.write_bytes(content + content[:len(content) // 2])
    refused(path, "the compressed file is truncated")
    path.write_bytes(b"plain text, in no way compressed")
    refused(path, rf"the file is not \{packed} data, or is damaged \(.+\)\. Copy or download it again, or name it")


@pytest.mark.parametrize(("line", "message"), [
    (b'{"text": "cut', r", line 3: not JSON: Unterminated string.*\. Correct or remove that line"),
    (b'["text"]', r", line 3: a list, while each line of a JSONL file is an object with fields\. Write lines such as"),
    (b'{"txt": "x", "id": 1}', r", line 3: no field 'text'; the fields are: 'txt', 'id'\. Name the one .* 'txt'"),
    (b'{}', r", line 3: no field 'text'; the fields are: none\. Name the one"),
    (b'{"text": null}', r", line 3: the field 'text' holds null, not text\. Correct or remove that record, or name"),
    (b'{"text": 7}', r", line 3: the field 'text' holds a int, not text"),
    (b'{"text": "\xff"}', r", line 3: not UTF-8: byte 0xff at offset 10 of the line\. Correct or remove"),
    (b'{"text": "a\\ud800"}', r", line 3: the character U\+D800 at position 1 of the field 'text' is half a surrogate"),
    (b'[' * 100_000, r", line 3: lists or mappings nested more than 64 deep"),
])
def test_a_broken_line_is_refused_with_its_number(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "records.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(["good"]) + b"\n" + line + b"\n" + jsonl(["good"])))
    refused(path, message)


def test_a_last_line_that_was_cut_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(jsonl(["one", "two"])[:-4])
    refused(path, r"line 2: not JSON: .* It is the file's last line: was the file cut off\? Correct or remove")
    path.write_bytes(jsonl(["one", "two"])[:-1])
    assert len(found(path)) == 2  # whole, though without the last line end


def test_another_field_and_empty_texts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(["one", "", "two"], "body"))
    (tmp_path / "b.parquet").write_bytes(table(["", "three"], "body"))
    assert found(tmp_path, text_field="body") == [("a.jsonl:1", "one"), ("a.jsonl:3", "two"), ("b.parquet:2", "three")]
    refused(tmp_path / "b.parquet", r"no field 'text'; the fields are: 'id', 'body'\. Name .* with text_field")


def test_bad_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(table(TEXTS)[:-20])
    refused(path, r"the file is not Parquet, or is truncated or damaged \(.+\)\. Copy or download it again, whole")
    path.write_bytes(table(["a", None, "b"]))
    refused(path, r"t\.parquet, row 2: the field 'text' holds null, not text")
    path.write_bytes(table([1, 2]))
    refused(path, r"row 1: the field 'text' holds a int, not text")


@pytest.mark.parametrize(("package", "name", "purpose"), [
    ("pyarrow", "t.parquet", "reading Parquet files"), ("zstandard", "t.txt.zst", r"reading \.zst files")])
def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str,
                                                   name: str, purpose: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{purpose} needs the package '{package}'.*pip install 'weft\[data\]'"):
        read_text(tmp_path / name)


def test_options_that_concern_no_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    refused(tmp_path / "a.txt", r"text_field is 'body', while no file here holds records\. Leave it out",
            text_field="body")
    (tmp_path / "b.jsonl").write_bytes(jsonl(["x"]))
    refused(tmp_path / "b.jsonl", r"documents is 'line', while every file here holds records.* Leave it out",
            documents="line")
    assert len(found(tmp_path, documents="line")) == 2
