"""The bytes that the ids of a ``tokenizer.json`` stand for, where its decoder treats every id by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers

from weft.tokenizers.pieces import PieceTable

SPACE = "▁"
BYTE_SPACE, BYTE_LINE_END = "Ġ", "Ċ"
"""The characters for a space and a line end in a byte-level vocabulary, see `byte_alphabet`."""

IN_UTF8 = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary, and the byte.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the characters from U+0100 on
    (GPT-2, Radford et al. 2019, released ``encoder.py``).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + place): b for place, b in enumerate(others)}


def piece_table(library: tokenizers.Tokenizer, declared: Mapping[str, Any], vocab_size: int) -> PieceTable | None:
    """The bytes of each id, or None when the file's decoder is neither byte-level nor Llama's.

    Llama's is SentencePiece's: a mark for the space, bytes for characters that the vocabulary lacks, and (mostly) one
    space removed from the beginning. Special tokens and ids missing from the file have no bytes; other added tokens
    have those of their spelling.
    """
    decoder = declared.get("decoder") or {}
    marked = _is_marked(decoder)
    if decoder.get("type") != "ByteLevel" and not marked:
        return None
    alphabet = byte_alphabet()
    pieces = [b""] * vocab_size
    for token, place in library.get_vocab(with_added_tokens=False).items():
        pieces[place] = _unmarked(token) if marked else _from_alphabet(token, alphabet)
    specials = {}
    for place, added in library.get_added_tokens_decoder().items():
        content = _unmarked(added.content) if marked else added.content.encode()
        pieces[place] = b"" if added.special else content
        if added.special:
            specials[place] = added.content.encode()
    strips = marked and decoder["decoders"][-1]["type"] == "Strip"
    opening = {place: piece[1:] for place, piece in enumerate(pieces) if strips and piece.startswith(b" ")}
    return PieceTable(pieces, specials, opening=opening)


def spelled(library: tokenizers.Tokenizer, table: PieceTable | None) -> Iterator[bytes]:
    """The text of every id, from which follows what may precede a space or a line end within one: its bytes where they
    are known, and its spelling in the file, with the marks for spaces and line ends replaced.

    An added token that includes the white space after it is given once with a space and once with a line end.
    """
    yield from () if table is None else table.contents()
    marks = str.maketrans({SPACE: " ", BYTE_SPACE: " ", BYTE_LINE_END: "\n"})
    for token in library.get_vocab(with_added_tokens=True):
        yield token.translate(marks).encode()
    for added in library.get_added_tokens_decoder().values():
        if added.rstrip:
            yield from (f"{added.content}{space}".encode() for space in " \n")


def without_specials(declared: Mapping[str, Any]) -> str | None:
    """The file with its special tokens made unmatchable, for unigram models; None for others, which do not need it.

    A unigram model matches every piece of its vocabulary, special tokens included, even where they are to be ordinary
    text. Their spelling is prefixed with U+FFFF, a noncharacter that occurs in no text; ids do not change.
    """
    model = declared["model"]
    if model.get("type") != "Unigram":
        return None
    special = {token["content"] for token in declared.get("added_tokens") or () if token["special"]}
    pieces = [[f"\uffff{piece}" if piece in special else piece, score] for piece, score in model["vocab"]]
    added = [token for token in declared["added_tokens"] if not token["special"]]
    return json.dumps({**declared, "model": {**model, "vocab": pieces}, "added_tokens": added})


def with_frame(source: bytes, opening: int | None, closing: int | None, *, pairs: bool) -> bytes:
    """A ``tokenizer.json`` that puts these ids around a text, and the second of them after each text of a pair, whose
    second text has type 1; the same bytes where it does so already. Without ``pairs`` it need not do the latter."""
    library = tokenizers.Tokenizer.from_str(source.decode("utf-8"))
    first, last = ([] if place is None else [str(library.id_to_token(place))] for place in (opening, closing))
    texts = [library.encode(text, add_special_tokens=False).tokens for text in ("a", "b")]
    one, two = [*first, *texts[0], *last], [*texts[1], *last]
    both = library.encode("a", "b")
    paired = not pairs or (both.tokens == one + two and both.type_ids == [0] * len(one) + [1] * len(two))
    if library.encode("a").tokens == one and paired:
        return source
    declared = json.loads(library.to_str())
    before, after = declared.get("post_processor") or {}, _template(library, first, last)
    kept = [before] if before.get("type") == "ByteLevel" else []
    declared["post_processor"] = {"type": "Sequence", "processors": [*kept, after]} if kept else after
    return json.dumps(declared, ensure_ascii=False, indent=2).encode("utf-8")


def _template(library: tokenizers.Tokenizer, first: list[str], last: list[str]) -> dict[str, Any]:
    """The post-processor that puts the tokens ``first`` before a text and ``last`` after each text."""
    def text(name: str, kind: int) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": name, "type_id": kind}}, *({"SpecialToken": {"id": token, "type_id": kind}}
                                                               for token in last)]

    opened = [{"SpecialToken": {"id": token, "type_id": 0}} for token in first]
    known = {token: {"id": token, "ids": [library.token_to_id(token)], "tokens": [token]} for token in [*first, *last]}
    return {"type": "TemplateProcessing", "single": [*opened, *text("A", 0)],
            "pair": [*opened, *text("A", 0), *text("B", 1)], "special_tokens": known}


def lengths_are_exact(declared: Mapping[str, Any]) -> bool:
    """Whether the bytes of the ids are exactly those of the text: byte-level, nothing normalised, added or stripped."""
    byte_level = (declared.get("decoder") or {}).get("type") == "ByteLevel"
    added = (token for token in declared.get("added_tokens") or () if not token["special"])
    stripping = any(token["lstrip"] or token["rstrip"] for token in added)
    plain = declared.get("normalizer") is None and not _prefixes(declared.get("pre_tokenizer"))
    return byte_level and plain and not stripping


def has_all_bytes(declared: Mapping[str, Any], table: PieceTable) -> bool:
    """Whether merges can express every text: a BPE model with an id for each byte that UTF-8 can have."""
    model, single = declared["model"], {piece[0] for piece in table.contents() if len(piece) == 1}
    marks = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    return model.get("type") == "BPE" and not marks and single >= IN_UTF8


def word_spellings(library: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of each id of a vocabulary whose decoder joins words by spaces: a word with the space before it, a
    piece inside a word without; special tokens have none."""
    model, found = library.model, [b""] * (1 + max(library.get_vocab(with_added_tokens=True).values(), default=-1))
    merges = isinstance(model, tokenizers.models.BPE)
    inner = model.continuing_subword_prefix or "" if merges or isinstance(model, tokenizers.models.WordPiece) else ""
    suffix = model.end_of_word_suffix or "" if merges else ""
    for token, place in library.get_vocab(with_added_tokens=False).items():
        inside = bool(inner) and token.startswith(inner)
        word = token.removeprefix(inner) if inside else token.removesuffix(suffix).replace(SPACE, " ")
        found[place] = (word if inside or word.startswith(" ") else f" {word}").encode()
    for place, added in library.get_added_tokens_decoder().items():
        found[place] = b"" if added.special else f" {added.content}".encode()
    return found


def mostly_restores(declared: Mapping[str, Any]) -> bool:
    """Whether decoding restores most texts: only the space is normalised, or characters that few texts have."""
    if (declared.get("decoder") or {}).get("type") == "ByteLevel" and _prefixes(declared.get("pre_tokenizer")):
        return False
    normalizer = declared.get("normalizer") or {"type": "Sequence", "normalizers": []}
    parts = normalizer.get("normalizers", ()) if normalizer.get("type") == "Sequence" else [normalizer]
    return all(part in (_PREPEND, _REPLACE, _COMPOSE) for part in parts)


_PREPEND = {"type": "Prepend", "prepend": SPACE}
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_COMPOSE = {"type": "NFC"}
_UNMARK = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _is_marked(decoder: Mapping[str, Any]) -> bool:
    parts = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else []
    return parts in ([_UNMARK, {"type": "ByteFallback"}, {"type": "Fuse"}, *end] for end in ([], [_STRIP]))


def _unmarked(token: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()


def _from_alphabet(token: str, alphabet: Mapping[str, int]) -> bytes:
    known = all(character in alphabet for character in token)
    return bytes(alphabet[c] for c in token) if known else token.encode()


def _prefixes(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return False
    inner = any(_prefixes(part) for part in pre_tokenizer.get("pretokenizers", ()))
    removes = pre_tokenizer.get("behavior") == "Removed"
    known = pre_tokenizer.get("type") in ("ByteLevel", "Split", "Digits", "Sequence", "Punctuation")
    return inner or removes or not known or bool(pre_tokenizer.get("add_prefix_space", False))
