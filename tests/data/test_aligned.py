"""Text files with a record in each line: what is read, and what is refused at its place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from weft.core.errors import DataError
from weft.data.pairs import encode_pairs, read_aligned
from weft.data.rows import values_of
from weft.tokenizers import ByteTokenizer

FIELDS = {"source_field": "en", "target_field": "de"}


def kept(record: object) -> tuple[str, ...]:
    values: tuple[str, ...] = record.values  # type: ignore[attr-defined]
    return values


def written(folder: Path, english: str, german: str) -> str:
    (folder / "text.en").write_bytes(english.encode())
    (folder / "text.de").write_bytes(german.encode())
    return str(folder / "text.{}")


@pytest.mark.parametrize(("english", "german"), [("a dog\ntwo\n", "ein Hund\nzwei\n"), ("a dog\ntwo", "ein Hund\nzwei"),
                                                 ("\ufeffa dog\r\ntwo\r\n", "ein Hund\nzwei\r\n")])
def test_a_record_is_a_line_of_each_file(tmp_path: Path, english: str, german: str) -> None:
    corpus = read_aligned(written(tmp_path, english, german), FIELDS, kept)
    assert [values_of(row) for row in corpus.documents] == [["a dog", "ein Hund"], ["two", "zwei"]]
    assert [row.name for row in corpus.documents] == ["text.{}:1", "text.{}:2"]


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    """U+2028, U+0085 and a form feed end lines for str.splitlines, which would shift one file against the other."""
    corpus = read_aligned(written(tmp_path, "a\u2028b\x85c\x0cd\n", "e\n"), FIELDS, kept)
    assert [values_of(row) for row in corpus.documents] == [["a\u2028b\x85c\x0cd", "e"]]


def test_files_may_be_compressed_and_names_may_stand_anywhere(tmp_path: Path) -> None:
    for name, text in (("en", b"one\n"), ("de", b"eins\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.gz").write_bytes(gzip.compress(text))
    corpus = read_aligned(tmp_path / "{}" / "train.gz", FIELDS, kept)
    assert [values_of(row) for row in corpus.documents] == [["one", "eins"]]


@pytest.mark.parametrize(("english", "german", "message"), [
    ("a\nb\nc\n", "d\ne\n", r"text\.de: the file has 2 lines, and \S+text\.en has more; line i of one belongs to line "
                            r"i of the other\. Give files with the same number of lines"),
    ("a\n", "d\ne\n", r"text\.en: the file has 1 lines, and \S+text\.de has more"),
    ("a\nb\n", "d\n\n", r"text\.de, line 2: the line is empty\. Fill it in, or remove line 2 from every file"),
    (" \t\nb\n", "d\ne\n", r"text\.en, line 1: the line is empty"),
    ("", "", r"text\.en: the file is empty\. Give files that have text"),
])
def test_lines_that_do_not_pair_are_refused_at_their_place(tmp_path: Path, english: str, german: str,
                                                           message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_aligned(written(tmp_path, english, german), FIELDS, kept)


def test_a_missing_file_names_the_path_and_the_field(tmp_path: Path) -> None:
    path = written(tmp_path, "a\n", "b\n")
    with pytest.raises(DataError, match=r"text\.fr: no such file\. The path is \S+text\.\{\}, and target_field is 'fr'"
                                        r"; correct one of them"):
        read_aligned(path, {"source_field": "en", "target_field": "fr"}, kept)


@pytest.mark.parametrize(("english", "german", "place"), [
    ("a\nb\nlonger than it\n", "d\ne\nf\n", r"text\.en, line 3: the source has 15 tokens"),
    ("a\nb\nc\n", "d\nlonger than it\nf\n", r"text\.de, line 2: the target has 15 tokens")])
def test_a_long_pair_is_refused_at_the_line_of_its_side(tmp_path: Path, english: str, german: str, place: str) -> None:
    corpus = read_aligned(written(tmp_path, english, german), FIELDS, kept)
    with pytest.raises(DataError, match=place):
        encode_pairs(corpus, ByteTokenizer(), 8, 8, None, cut=False)
    train, held_out = corpus.split(0.5)
    assert train.files == held_out.files == corpus.files
