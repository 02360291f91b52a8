"""Text files divided into documents: lines, paragraphs, headings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import DataError
from weft.data import Document, division, read_text
from weft.data.division import Heading, divide

TEXT = "one\ntwo \r\n\r\n  \nthree\n"
ARTICLES = " \n = Title = \n\n = = Part = = \n text\n = Second = \n more\n"


def pieces(text: str, how: Any) -> list[tuple[str, str]]:
    return [(document.name, document.text) for document in divide(Document("f", text), how)]


def test_a_file_a_line_a_paragraph() -> None:
    assert pieces(TEXT, "file") == [("f", TEXT)]
    assert pieces(TEXT, "line") == [("f:1", "one"), ("f:2", "two "), ("f:5", "three")]
    assert pieces(TEXT, "paragraph") == [("f:1", "one\ntwo "), ("f:5", "three")]


def test_a_heading_begins_a_document_and_loses_nothing() -> None:
    found = pieces(ARTICLES, Heading(r" = [^=]+ = $"))
    assert [name for name, _ in found] == ["f:1", "f:2", "f:6"]
    assert found[1][1] == " = Title = \n\n = = Part = = \n text\n"
    assert "".join(text for _, text in found) == ARTICLES


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("ab \n\r="), max_size=60))
def test_no_character_of_text_is_lost_or_doubled(text: str) -> None:
    for how in ("line", "paragraph"):
        found = [piece for _, piece in pieces(text, how)]
        assert "".join("".join(found).split()) == "".join(text.split())
        assert all(piece.strip() and not piece.endswith(("\n", "\r")) for piece in found)
    if text.startswith("="):
        assert "".join(piece for _, piece in pieces(text, Heading("="))) == text


def test_a_heading_that_is_wrong_or_matches_nowhere_is_refused() -> None:
    with pytest.raises(DataError, match=r"heading: '\(=' is not a regular expression \(.+\)\. Give one such as"):
        Heading("(=")
    with pytest.raises(DataError, match=r"f: no line matches the heading '#'\. Correct the expression, or leave"):
        pieces("text", Heading("#"))
    with pytest.raises(DataError, match=r"documents: 'page' is not a way to divide a text file\. Give one of file"):
        pieces("text", "page")


def test_a_heading_that_might_not_come_to_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 letters are 2**40 ways for (a+)+. Whoever has such an expression that ends keeps it, with the same pieces."""
    monkeypatch.setattr(division, "SECONDS", 1)
    with pytest.raises(DataError, match=r"f: the heading '\(a\+\)\+\$' was not matched against 42 characters within 1 "
                                        r"seconds: .* Write it without one: a\+ for \(a\+\)\+\."):
        pieces("a" * 40 + "b\n", Heading("(a+)+$"))
    text = "1.2. \u4e16\ntext\n10.1. b\n"
    assert Heading(r"(\d+\.)+ ").may_not_end and not Heading(r"[\d.]+ ").may_not_end
    assert pieces(ARTICLES + text, Heading(r"(\d+\.)+ ")) == pieces(ARTICLES + text, Heading(r"[\d.]+ "))


def test_files_of_a_folder_are_divided_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    (tmp_path / "b.txt").write_text("3")
    names = [document.name for document in read_text(tmp_path, documents="line").documents]
    assert names == ["a.txt:1", "a.txt:2", "b.txt:1"]
