"""What reading, learning a vocabulary and encoding take in main memory grows little with the text."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import pytest

from fresh import fresh
from weft.data import Corpus, Document, read_text
from weft.data.compression import MAPPED_BYTES, read_content
from weft.data.settings import DataSettings
from weft.tokenizers import BPETokenizer
from weft.tokenizers.config import BPETokenizerConfig, ByteTokenizerConfig
from weft.training.material import prepare_folder

SIZE = 6_000_000
MOST = 45 * SIZE
"""Encoded at once, each byte takes some 160 in the library: 960 MB. So does the half million that is in it at a time,
and the text and its tokens on their way to the disk take some 12 each; 200 MB were measured."""


def prose(size: int) -> str:
    draw = random.Random(0)
    words = ["".join(draw.choice("etaoinshrdlu") for _ in range(draw.randint(1, 8))) for _ in range(5000)]
    text = " ".join(draw.choice(words) for _ in range(size // 1000))
    return "\n".join([text] * (size // len(text) + 1))[:size] + " end 😀"


def prepared(path: str) -> None:
    """Prepare a text, and print by how many bytes the largest resident size has grown."""
    warm = Path("warm.txt")
    warm.write_text(Path(path).read_text("utf-8")[:20_000], encoding="utf-8")
    for source in (str(warm), path):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        prepare_folder(DataSettings(path=source), BPETokenizerConfig(vocab_size=280), f"{source}.prepared")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)


def test_one_long_document_is_prepared_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(prose(SIZE), encoding="utf-8")
    done = fresh(prepared, str(path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < MOST


def test_a_large_file_is_mapped_and_read_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = prose(50_000)
    for name, content in (("a.txt", text.encode()), ("marked.txt", text.encode("utf-8-sig")),
                          ("b.jsonl", b'{"text": "one"}\n\n{"text": "two"}')):
        path = tmp_path / name
        path.write_bytes(content)
        small = read_text(path)
        monkeypatch.setattr("weft.data.compression.MAPPED_BYTES", 1)
        large = read_text(path)
        assert not isinstance(read_content(path), bytes)
        monkeypatch.setattr("weft.data.compression.MAPPED_BYTES", MAPPED_BYTES)
        assert large == small and large.sha256 == small.sha256
        assert [document.text for document in large.documents] == [document.text for document in small.documents]


def test_a_split_and_a_limit_share_the_text(tmp_path: Path) -> None:
    """Parts of a document are views of it, not copies."""
    whole = Corpus("one", (Document("d", prose(100_000)),))
    train, held = whole.split(0.1)
    assert train.documents[0].utf8.obj is held.documents[0].utf8.obj is whole.documents[0].utf8.obj
    assert whole.limited(5000).documents[0].utf8.obj is whole.documents[0].utf8.obj
    assert train.documents[0].text + held.documents[0].text == whole.documents[0].text


def test_texts_of_a_corpus_are_made_when_they_are_asked_for() -> None:
    texts = Corpus("two", (Document("a", "one"), Document("b", "two"))).texts()
    assert list(texts) == list(texts) == ["one", "two"] and len(texts) == 2
    assert texts[1] == "two" and list(texts[1:]) == ["two"] and "one" in texts
    assert BPETokenizer.train(Corpus("c", (Document("a", "aa aa aa"),)).texts(), 258).vocab_size == 258


def resident() -> int:
    """Bytes of this process in main memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_what_was_read_of_a_mapped_file_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are found, hashed and read in a file of 48 MB, of which little more than 4 MB is ever in memory."""
    for module in ("compression", "utf8", "document_buffer", "division"):
        monkeypatch.setattr(f"weft.data.{module}.RELEASED", 1 << 22)
    monkeypatch.setattr("weft.data.compression.MAPPED_BYTES", 1)
    path = tmp_path / "lines.txt"
    path.write_bytes(b"".join(b"%d" % i + b" word" * 4000 + b"\n" for i in range(2400)))
    before, most = resident(), 0
    corpus = read_text(path, documents="line")
    for _ in (corpus.sha256, corpus.split(0.1, by="content")):
        most = max(most, resident())
    for document in corpus.documents:
        assert document.text
        most = max(most, resident())
    assert len(corpus.documents) == 2400 and most - before < 24_000_000


def lines_prepared(path: str) -> None:
    """Prepare a text of lines, and print by how many bytes the largest resident size has grown."""
    warm = Path("warm.txt")
    warm.write_text("ab cd\n" * 2000, encoding="utf-8")
    for source in (str(warm), path):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        prepare_folder(DataSettings(path=source, documents="line"), ByteTokenizerConfig(), f"{source}.prepared")
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)


def test_many_short_documents_take_little_besides_their_tokens(tmp_path: Path) -> None:
    """60,000 lines of 11 bytes: held one by one, with arrays of their own, they took 68 MB; 17 MB were measured."""
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {i:06}\n" for i in range(60_000)), encoding="utf-8")
    done = fresh(lines_prepared, str(path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 60_000 * 600
