"""Text that grows up to a stop string."""

from __future__ import annotations

import pytest

from weft.decoding.stopping import GrowingText
from weft.tokenizers import ByteTokenizer
from weft.tokenizers.pieces import PieceTable

TOKENIZER = ByteTokenizer()


def grown(text: str, stops: list[str]) -> tuple[list[str], bool]:
    """The pieces that are given while the bytes of ``text`` come, up to the stop."""
    growing = GrowingText(TOKENIZER.stream(), stops)
    pieces = []
    for token in TOKENIZER.encode(text):
        pieces.append(growing.push(token))
        if growing.stopped:
            break
    return [*pieces, growing.finish()], growing.stopped


@pytest.mark.parametrize(("text", "stops", "wanted", "stopped"), [
    ("abc", [], "abc", False), ("abc\n\nd", ["\n\n"], "abc", True), ("ab\nc\n", ["\n\n"], "ab\nc\n", False),
    ("aaab", ["aab"], "a", True), ("xENDy", ["END", "E!"], "x", True), ("xE!", ["END", "E!"], "x", True),
    ("abcde", ["cd", "bcde"], "ab", True), ("grüße", ["ß"], "grü", True), ("ENDx", ["END"], "", True),
])
def test_text_ends_before_the_first_stop_string(text: str, stops: list[str], wanted: str, stopped: bool) -> None:
    pieces, ended = grown(text, stops)
    assert ("".join(pieces), ended) == (wanted, stopped)


def test_a_piece_that_holds_two_stops_and_half_a_character() -> None:
    growing = GrowingText(PieceTable([b"xEyE\xc3"], {}).stream(specials=False), ["yE", "E"])
    assert (growing.push(0), growing.stopped, growing.finish()) == ("x", True, "")


def test_pieces_come_as_early_as_is_safe() -> None:
    assert grown("ab12x", ["123"])[0] == ["a", "b", "", "", "12x", ""]


def test_half_a_character_is_replaced_at_the_end() -> None:
    growing = GrowingText(TOKENIZER.stream(), ["z"])
    assert [growing.push(token) for token in TOKENIZER.encode("ü")[:1]] == [""]
    assert growing.finish() == "\N{REPLACEMENT CHARACTER}"
