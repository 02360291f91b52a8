"""A command that is refused leaves nothing: no folder that was made for it, no lock, no draft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Refuse = Callable[..., str]
WRITING: dict[str, tuple[str, ...]] = {
    "train on no text": ("train", "tiny.yaml", "--data", "empty.txt", "--out", "a/b"),
    "train on a short text": ("train", "tiny.yaml", "--data", "short.txt", "--out", "a/b"),
    "train without a folder": ("train", "tiny.yaml", "--data", "binary.txt"),
    "train with a tokenizer that is too large": ("train", "tiny.yaml", "tokenizer={kind: bpe, vocab_size: 9000}",
                                                 "--data", "short.txt", "--out", "a/b"),
    "train from nothing": ("train", "tiny.yaml", "--from", "nosuch", "--out", "a/b"),
    "resume nothing": ("train", "tiny.yaml", "--resume", "--out", "a/b"),
    "compare on a short text": ("compare", "transformer", "ngram", "--tokens", "20000", "--data", "short.txt",
                                "--out", "a/b"),
    "compare on no text": ("compare", "transformer", "ngram", "--tokens", "20000", "--data", "nosuch", "--out", "a/b"),
    "prepare a binary file": ("data", "prepare", "binary.txt", "--tokenizer", "bytes", "--out", "a/b"),
    "prepare too little for the tokenizer": ("data", "prepare", "short.txt", "--tokenizer",
                                             "{kind: bpe, vocab_size: 9000}", "--out", "a/b"),
    "convert to what cannot hold it": ("convert", "run", "a/b.arpa", "--to", "arpa"),
    "convert heads that do not divide": ("convert", "run", "a/b", "--to", "weft", "--n-kv-heads", "3"),
    "extend on a short text": ("extend", "run", "--context", "64", "--scaling", "yarn", "--data", "short.txt",
                               "--out", "a/b"),
    "draw in two ways": ("draw", "run", "--png", "--out", "a/b.svg"),
    "rate no preferences": ("rate", "short.txt", "--out", "a/b.json"),
    "score into no folder": ("score", "run", "--text", "ab", "--logits", "a/b.safetensors"),
}


@pytest.mark.parametrize("arguments", WRITING.values(), ids=list(WRITING))
def test_a_refused_command_leaves_nothing(refused: Refuse, workplace: Path, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    texts = tmp_path / "texts"
    work = tmp_path / "work"
    for folder in (texts, work):
        folder.mkdir()
    for name, content in (("empty.txt", b""), ("short.txt", b"hi"), ("binary.txt", b"a\0b")):
        (texts / name).write_bytes(content)
    places = {name: str(texts / name) for name in ("empty.txt", "short.txt", "binary.txt")}
    places |= {name: str(workplace / name) for name in ("tiny.yaml", "run")}
    monkeypatch.chdir(work)
    refused(*[places.get(each, each) for each in arguments])
    assert list(work.rglob("*")) == []


def test_a_folder_that_was_there_stays_with_what_lies_in_it(refused: Refuse, workplace: Path, tmp_path: Path) -> None:
    for name in ("run", "study"):
        (tmp_path / name).mkdir()
    (tmp_path / "short.txt").write_text("hi")
    short = tmp_path / "short.txt"
    refused("train", workplace / "tiny.yaml", "--data", short, "--out", tmp_path / "run")
    refused("compare", "transformer", "ngram", "--tokens", "20000", "--data", short, "--out", tmp_path / "study")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["run", "short.txt", "study"]
