"""RWKV World vocabularies: the longest token that fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import TokenizerError
from weft.tokenizers import RWKVWorldTokenizer, load_tokenizer, read_tokenizer

WORDS = ["th", "the", " the", "thesis", "世界", "ab", "abcdef", "\n\n", "''"]
PIECES = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS), "é".encode()[:1] + b"\x80"]


def line(place: int, piece: bytes) -> str:
    try:
        return f"{place} {piece.decode()!r} {len(piece)}\n"
    except UnicodeDecodeError:
        return f"{place} {piece!r} {len(piece)}\n"


SOURCE = "".join(line(place, piece) for place, piece in enumerate(PIECES, start=1)).encode()
WORLD = RWKVWorldTokenizer(SOURCE)


def longest_match(content: bytes) -> list[int]:
    ids = []
    while content:
        piece = max((piece for piece in PIECES if content.startswith(piece)), key=len)
        ids.append(1 + PIECES.index(piece))
        content = content[len(piece) :]
    return ids


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("thesi abcdef世界é\n'"), max_size=30))
def test_the_longest_token_is_taken_and_any_text_comes_back(text: str) -> None:
    ids = WORLD.encode(text)
    assert ids == longest_match(text.encode())
    assert WORLD.decode(ids) == text
    assert WORLD.measure(text).byte_lengths.tolist() == [len(PIECES[place - 1]) for place in ids]
    for cut in range(len(ids) + 1):
        stream = WORLD.stream()
        assert "".join(map(stream.push, ids[:cut])) + stream.finish() == WORLD.decode(ids[:cut])


def test_a_longer_token_that_does_not_finish_gives_way_to_a_shorter_one() -> None:
    assert WORLD.encode("thesi") == [1 + PIECES.index(piece) for piece in (b"the", b"s", b"i")]
    assert WORLD.encode("abcde")[0] == 1 + PIECES.index(b"ab")


def test_id_zero_ends_a_document() -> None:
    assert (WORLD.bos_id, WORLD.eos_id, WORLD.vocab_size) == (0, 0, 1 + len(PIECES))
    assert WORLD.decode([0, 1 + PIECES.index(b"ab")]) == "ab"
    assert WORLD.encode("<|endoftext|>ab", specials=True) == [0, 1 + PIECES.index(b"ab")]
    assert 0 not in WORLD.encode("<|endoftext|>")


def test_a_folder_is_read_and_saved(tmp_path: Path) -> None:
    (tmp_path / "rwkv_vocab_v20230424.txt").write_bytes(SOURCE)
    (tmp_path / "added_tokens.json").write_text('{"<|end|>": 0}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 261]}')
    found = read_tokenizer(tmp_path)
    assert found.encode("the<|end|>", specials=True) == [*WORLD.encode("the"), 0]
    assert found.end_ids == (0, 261)
    found.save(tmp_path / "saved")
    loaded = load_tokenizer(tmp_path / "saved")
    assert (loaded.fingerprint(), loaded.end_ids) == (found.fingerprint(), (0, 261))


@pytest.mark.parametrize(
    "wrong", ["1 'a' 1", "0 'zz' 2", "9000 'zz' 3", "9000 zz 2", "9000 '' 0", "9000 ['z'] 1", "x", "-4 'zz' 2"]
)
def test_a_damaged_line_is_named(wrong: str) -> None:
    with pytest.raises(TokenizerError, match=r"rwkv_vocab.*\(line 267 is not a new id .*length in bytes\)\. Copy"):
        RWKVWorldTokenizer(SOURCE + wrong.encode())


def test_a_vocabulary_that_cannot_express_every_byte_is_refused() -> None:
    with pytest.raises(TokenizerError, match=r"not an RWKV World vocabulary \(no token for the byte 0x00\)"):
        RWKVWorldTokenizer(SOURCE.split(b"\n", 1)[1])
    with pytest.raises(TokenizerError, match=r"no token for the byte 0x00"):
        RWKVWorldTokenizer(b"")
