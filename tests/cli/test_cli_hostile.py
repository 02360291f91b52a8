"""Hostile files and arguments: each is refused in a few lines, with exit code 2, soon and in little memory."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from interop.huggingface.tiny_folders import stored, write
from weft.core.errors import DataError, TokenizerError
from weft.data import compression
from weft.data.compression import ALWAYS_EXPANDED, MOST_TIMES, read_bytes
from weft.data.image_files import read_image_arrays
from weft.interop.arpa.reader import MOST_LINE, read_arpa
from weft.tokenizers.bpe import BPETokenizer
from weft.tokenizers.library import FileTokenizer
from weft.tokenizers.published import read_tokenizer
from weft.tokenizers.specials import MOST_IDS
from weft.tokenizers.unigram import UnigramTokenizer

Refuse = Callable[..., str]


@pytest.mark.parametrize("ending", sorted(compression.COMPRESSIONS))
def test_an_archive_that_unpacks_to_far_more_is_refused_before_it_is_unpacked(
        ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "ALWAYS_EXPANDED", 1 << 20)
    zstandard = pytest.importorskip("zstandard") if ending == ".zst" else None
    packs: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": compression.bz2.compress,
        ".zst": lambda content: zstandard.compress(content)}  # type: ignore[union-attr]
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(packs[ending](b"a" * (1 << 20)))
    assert len(read_bytes(path)) == 1 << 20
    path.write_bytes(packs[ending](b"a" * ((1 << 20) + 1)))
    with pytest.raises(DataError, match=r"bytes unpacks to more than [\d,]+; what is read has at most 100 times its"):
        read_bytes(path)
    path.write_bytes(packs[ending](b"abc") + packs[ending](b"d"))
    assert read_bytes(path) == b"abcd"


def test_an_archive_of_arrays_says_how_much_it_unpacks_to(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    many = np.zeros((ALWAYS_EXPANDED // 16 + 1, 4, 4), np.uint8)
    np.savez_compressed(path, images=many, labels=np.zeros(1, np.uint8))
    assert MOST_TIMES * path.stat().st_size < ALWAYS_EXPANDED
    with pytest.raises(DataError, match=r"its arrays unpack to more than 67,108,864 bytes\. Save them with"):
        read_image_arrays(path)
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        for name in ("images", "labels"):
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00\x76\x00" + (
                b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000, ), }").ljust(117) + b"\n")
    with pytest.raises(DataError, match="not an array of NumPy, or damaged"):
        read_image_arrays(tmp_path / "b.npz")


def test_a_line_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "a.arpa").write_bytes(b"\\data\\\nngram 1=" + b"9" * (MOST_LINE + 1))
    with pytest.raises(DataError, match=r"a\.arpa, line 2: a line of more than 1,048,576 bytes\."):
        read_arpa(tmp_path / "a.arpa")


@pytest.mark.parametrize("command", [
    ["train", "{}", "--out", "new"], ["plan", "{}"], ["config", "show", "{}"], ["check", "{}"],
    ["eval", "RUN", "--data", "{}"], ["generate", "RUN", "--rows", "{}"], ["generate", "RUN", "--messages", "{}"],
    ["chat", "RUN", "--message", "a", "--template", "{}"], ["score", "RUN", "--rows", "{}"],
    ["list", "--plugin", "{}"], ["rate", "{}"], ["data", "prepare", "{}", "--out", "new"], ["compare", "--study", "{}"],
    ["translate", "RUN", "{}"], ["draw", "RUN", "--text-file", "{}", "--out", "new"], ["convert", "{}", "new"]])
@pytest.mark.parametrize("kind", ["pipe.yaml", "pipe.json", "/dev/zero", "a" * 9_999])
def test_what_is_no_file(refused: Refuse, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str,
                         command: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    if kind.startswith("pipe"):
        os.mkfifo(kind)
    message = refused(*(str(run) if each == "RUN" else each.format(kind) for each in command))
    assert "error: " in message and len(message) < 12_000
    assert not (tmp_path / "new").exists()


def test_weights_of_whole_numbers(refused: Refuse, tmp_path: Path) -> None:
    tensors = write(tmp_path / "a")
    name = sorted(tensors)[0]
    save_file({**tensors, name: tensors[name].to(torch.int32)}, tmp_path / "a/model.safetensors")
    message = refused("score", tmp_path / "a", "--rows", _rows(tmp_path))
    assert name in message and "I32" in message.replace("int32", "I32")


def _rows(folder: Path) -> Path:
    (folder / "rows.json").write_text("[[1, 2]]")
    return folder / "rows.json"


def test_twenty_thousand_unknown_keys_are_one_line_with_their_number(refused: Refuse, tmp_path: Path) -> None:
    unknown = {f"key_{index}": index for index in range(20_000)}
    (tmp_path / "a.json").write_text(json.dumps({"model": {"kind": "decoder", **unknown}}))
    message = refused("plan", tmp_path / "a.json")
    assert len(message) < 5_000 and "and 19,9" in message
    folder = tmp_path / "foreign"
    write(folder)
    (folder / "config.json").write_text(json.dumps({**stored()["llama"]["config"], **unknown}))
    message = refused("plan", folder)
    assert "20,000 unknown keys, such as 'key_0'; at most 200 are looked at." in message and len(message) < 1_000


@pytest.mark.parametrize(("content", "what"), [
    ({"model": {"type": "WordLevel", "vocab": {"a": MOST_IDS}, "unk_token": "a"}},
     rf"{MOST_IDS + 1:,} ids, and a vocabulary has at most {MOST_IDS:,}\."),
    ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
      "added_tokens": [{"id": 4294967295, "content": "b", "special": True}]}, r"4,294,967,296 ids, and a vocabulary"),
    ({"model": {"type": "Unigram", "unk_id": 5, "vocab": [["a", 0.0]]}}, r"cannot|not a tokenizer"),
    ({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "b"}},
     r"the tokenizer cannot (be used as its files say|encode this text) \("),
    ({"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]}}, r"the tokenizer cannot "),
    ([[[[]]]], r"not a tokenizer of the tokenizers library"),
    ({"a": 10**200}, r"a whole number of 201 digits"),
])
def test_a_hostile_tokenizer(tmp_path: Path, content: object, what: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match=what):
        read_tokenizer(tmp_path).encode("bc")
    with pytest.raises(TokenizerError, match=what):
        FileTokenizer(json.dumps(content)).measure("bc")


def test_vocabularies_that_cannot_be_learned() -> None:
    with pytest.raises(TokenizerError, match=r"vocab_size: 1,000,000,000 ids, and a vocabulary has at most"):
        BPETokenizer.train(["abc"], 10**9)
    text = "".join(map(chr, range(0x4E00, 0x5600)))
    with pytest.raises(TokenizerError, match=r"the characters of the training text do not fit into 300 ids, 256"):
        UnigramTokenizer.train([text], 300)
