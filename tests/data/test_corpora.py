"""Corpora: what is read, what is refused and in which words, how it is limited and split."""

from __future__ import annotations

import gzip
import json.decoder
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import DataError
from weft.data import Corpus, Document, embedded_corpus, read_text
from weft.data.corpus import FEWEST_TO_SPLIT

TEXTS = st.lists(st.text(st.sampled_from("aé世\n "), max_size=20), min_size=1, max_size=30)


def corpus_of(texts: list[str]) -> Corpus:
    return Corpus("drawn", tuple(Document(f"file{i}", text) for i, text in enumerate(texts)))


def test_the_embedded_corpus_is_the_library_of_this_python() -> None:
    corpus = embedded_corpus()
    names = [document.name for document in corpus.documents]
    assert names == sorted(names) and len(set(names)) == len(names)
    assert {"abc.py", "json/decoder.py"} <= set(names)
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "site-packages", "__pycache__"}
    by_name = {document.name: document.text for document in corpus.documents}
    assert by_name["json/decoder.py"].encode() == Path(json.decoder.__file__).read_bytes()
    assert corpus.size_bytes > 5_000_000
    assert corpus.version == f"Python {sys.version.split()[0]}"
    assert corpus.sha256 == embedded_corpus().sha256


def test_names_of_files_that_are_no_utf8_are_written_as_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xfe")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("the file system takes only names in UTF-8")
    (folder / os.fsdecode(b"\xff.txt")).write_text("one")
    (folder / "é.txt").write_text("two")
    for place, name in ((folder, "\\xfe"), (folder / os.fsdecode(b"\xff.txt"), "\\xff.txt")):
        corpus = read_text(place)
        assert corpus.name == name and corpus.describe().startswith(f"{name}: ") and len(corpus.sha256) == 64
    assert [document.name for document in read_text(folder).documents] == ["é.txt", "\\xff.txt"]


def test_a_line_describes_a_corpus() -> None:
    corpus = Corpus("two", (Document("a", "x"), Document("b", "é")), version="1")
    assert corpus.describe() == f"two 1: 2 documents, 3 bytes, sha256 {corpus.sha256}"


def test_the_embedded_corpus_leaves_out_what_is_not_utf8_or_differs_between_builds(tmp_path: Path) -> None:
    for name, content in {"a.py": b"x = 1\n", "b.py": b"\xff", "_sysconfigdata_x.py": b"y", "c.txt": b"z"}.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "t.py").write_text("t = 1\n")
    assert [document.name for document in embedded_corpus(folder=tmp_path).documents] == ["a.py"]


def test_a_python_without_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"this Python comes without the source of its standard library\. Give a text"):
        embedded_corpus(folder=tmp_path)


def test_the_hash_tells_names_texts_order_and_boundaries_apart() -> None:
    a, b, joined = Document("a", "x"), Document("b", "y"), Document("a", "xb")
    variants = [(a, b), (b, a), (a,), (joined,), (Document("a", "y"), Document("b", "x")), (Document("ax", ""),)]
    assert len({Corpus("c", documents).sha256 for documents in variants}) == len(variants)
    assert Corpus("other", (a, b), version="2").sha256 == Corpus("c", (a, b)).sha256


@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(3, 80), st.integers(0, 3))
def test_a_limit_keeps_whole_documents_in_order(texts: list[str], max_bytes: int, seed: int) -> None:
    corpus = corpus_of(texts)
    kept = corpus.limited(max_bytes, seed=seed)
    assert kept.size_bytes <= max_bytes
    places = [corpus.documents.index(next(d for d in corpus.documents if d.name == k.name)) for k in kept.documents]
    assert places == sorted(set(places))
    whole = all(document in corpus.documents for document in kept.documents)
    assert whole or (len(kept.documents) == 1 and min(d.size_bytes for d in corpus.documents if d.text) > max_bytes)
    if corpus.size_bytes <= max_bytes:
        assert kept == corpus


def test_another_seed_takes_other_documents() -> None:
    corpus = corpus_of(["text"] * 40)
    kept = [{d.name for d in corpus.limited(40, seed=seed).documents} for seed in (0, 0, 1)]
    assert kept[0] == kept[1] != kept[2]


def test_a_single_long_document_is_cut_between_characters() -> None:
    assert corpus_of(["世界世界"]).limited(7).documents[0].text == "世界"


@settings(max_examples=40, deadline=None)
@given(st.sets(st.integers(0, 10_000), min_size=FEWEST_TO_SPLIT, max_size=140), st.floats(0.05, 0.9),
       st.integers(-5, 5))
def test_a_split_puts_every_document_on_one_side(names: set[int], share: float, seed: int) -> None:
    corpus = Corpus("drawn", tuple(Document(str(name), "x") for name in sorted(names)))
    train, held_out = corpus.split(share, seed=seed)
    assert train.documents and held_out.documents
    assert sorted([*train.documents, *held_out.documents], key=lambda d: int(d.name)) == list(corpus.documents)
    assert (train.name, held_out.name) == ("drawn (train)", "drawn (validation)")


def test_a_documents_side_does_not_depend_on_the_others() -> None:
    corpus = corpus_of(["text"] * 400)
    held = {document.name for document in corpus.split(0.2)[1].documents}
    fewer = Corpus("fewer", corpus.documents[100:])
    assert {d.name for d in fewer.split(0.2)[1].documents} == {d.name for d in fewer.documents if d.name in held}
    assert 50 <= len(held) <= 110  # 80 expected, standard deviation 8
    assert held != {document.name for document in corpus.split(0.2, seed=1)[1].documents}


def test_a_limit_does_not_choose_what_a_split_holds_out() -> None:
    limited = corpus_of(["text"] * 400).limited(400)
    assert 5 <= len(limited.split(0.2)[1].documents) <= 40  # 20 of 100 expected; a shared hash would give 100 or 0


def test_few_documents_are_split_inside_after_a_line() -> None:
    text = "".join(f"line {i}\n" for i in range(100))
    train, held_out = corpus_of([text, "a\nb\n" * 50]).split(0.1)
    assert [a.text + b.text for a, b in zip(train.documents, held_out.documents, strict=True)] == [text, "a\nb\n" * 50]
    assert all(document.text.endswith("\n") for document in train.documents)
    assert 0.05 < held_out.size_bytes / (held_out.size_bytes + train.size_bytes) < 0.12


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(
        DataError, match=rf"validation: the share held out must be above 0 and below 1, received {share}\."
    ):
        corpus_of(["text"]).split(share)


def test_a_corpus_too_small_to_split_is_refused() -> None:
    with pytest.raises(DataError, match=r"drawn: 1 bytes are too few to hold out a share of 0\.1\. Give more text"):
        corpus_of(["x"]).split()


def test_limits_that_hold_nothing_are_refused() -> None:
    with pytest.raises(DataError, match=r"max_bytes: the limit must be at least 1 byte, received 0\. Raise it"):
        corpus_of(["text"]).limited(0)
    with pytest.raises(
        DataError, match=r"file0: a limit of 2 bytes does not hold the first character\. Raise max_bytes"
    ):
        corpus_of(["世界"]).limited(2)


def test_a_file_is_one_document_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "poem.anything"
    path.write_bytes("a\r\ne\u0301\ufeff\n".encode())
    corpus = read_text(path)
    assert [(d.name, d.text) for d in corpus.documents] == [("poem.anything", "a\r\ne\u0301\ufeff\n")]
    assert corpus.name == "poem.anything"


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_mark_of_utf8_at_the_beginning_is_no_text(tmp_path: Path, packed: Callable[[bytes], bytes]) -> None:
    end = ".gz" if packed is gzip.compress else ""
    for name, content, text in (("poem.txt", "one\n", "one\n"), ("rows.jsonl", '{"text": "one"}\n', "one")):
        path = tmp_path / f"{name}{end}"
        path.write_bytes(packed(content.encode("utf-8-sig")))
        assert [document.text for document in read_text(path).documents] == [text]
    (tmp_path / "only.txt").write_bytes("".encode("utf-8-sig"))
    refused(tmp_path / "only.txt", r"the file is empty\. Give a file that has text")


def test_a_folder_is_one_document_per_text_file_in_order(tmp_path: Path) -> None:
    names = ["b.txt", "a.md", "deep/er/c.PY", "picture.png", ".hidden.txt", ".git/x.txt", "empty.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty.txt" else name)
    corpus = read_text(tmp_path)
    assert [(d.name, d.text) for d in corpus.documents] == [(n, n) for n in ("a.md", "b.txt", "deep/er/c.PY")]
    assert corpus.name == tmp_path.name
    assert [d.name for d in read_text(tmp_path, suffixes=[".png"]).documents] == ["picture.png"]


def refused(path: Path, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_text(path)
    assert str(caught.value).startswith(str(path))


def test_bad_files_are_refused_with_place_and_remedy(tmp_path: Path) -> None:
    def file(content: bytes) -> Path:
        path = tmp_path / "input.txt"
        path.write_bytes(content)
        return path

    refused(tmp_path / "missing.txt", r"no such file or folder\. Check the path")
    refused(file(b""), r"the file is empty\. Give a file that has text")
    refused(file(b"ab\0c"), r"the file is binary \(a zero byte at offset 2\)\. Give a text file")
    refused(
        file("h\xe9llo".encode("latin-1")), r"not UTF-8: byte 0xe9 at offset 1 .*Convert it.*iconv -f latin-1 -t utf-8"
    )
    refused(file("hello".encode("utf-16")), r"begins with the mark of UTF-16, not of UTF-8\..*iconv -f utf-16 -t utf-8")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", r"a pipe, which can be read only once, .* resumes\. Write it to a file first")
    refused(Path("/dev/null"), r"neither a file nor a folder\. Give the path of a text file")


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"x")
    (tmp_path / "empty.txt").write_bytes(b"")
    refused(tmp_path, r"no text file in the folder that is not empty \(looked for names ending in .*\.txt.*\)\. Give a")


def test_a_bad_file_in_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_bytes(b"x")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xffx")
    with pytest.raises(DataError, match=r"bad\.txt: the file is not UTF-8: byte 0xff at offset 0"):
        read_text(tmp_path)


def test_what_the_system_does_not_let_us_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret.txt"
    path.write_text("x")

    def deny(*_: object, **__: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(Path, "read_bytes", deny)
    refused(path, r"the file cannot be read \(Permission denied\)\. Check its permissions")
    monkeypatch.setattr("os.scandir", deny)
    refused(tmp_path, r"the folder cannot be read \(Permission denied\)\. Check its permissions")
