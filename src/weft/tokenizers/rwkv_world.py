"""The vocabulary of the RWKV "World" models: greedy longest match on bytes."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from weft.core.errors import TokenizerError
from weft.tokenizers.base import TableTokenizer, TokenizerFacts, setting, utf8
from weft.tokenizers.pieces import Ids, PieceTable
from weft.tokenizers.specials import END_OF_DOCUMENT, NO_CONVENTIONS, Conventions, read_vocabulary, require_ids
from weft.tokenizers.split_points import Joined, joined, joins

WORLD_FILE = "rwkv_vocab_v20230424.txt"
END_ID = 0


class RWKVWorldTokenizer(TableTokenizer):
    """Greedy longest match on UTF-8 bytes (RWKV's released ``rwkv_tokenizer.py``); any text is decoded exactly.

    Each line of the file is an id, a Python literal (text or bytes) and its length in bytes. Id 0 ends a document and
    opens the next; the file does not list it.

    Args:
        source: the content of the vocabulary file.
        end: the spelling of id 0.
        conventions: how the vocabulary is meant to be used.

    Raises:
        TokenizerError: a malformed line, or a byte that no token can express.
    """

    kind: ClassVar[str] = "rwkv_world"

    def __init__(self, source: bytes, *, end: str = END_OF_DOCUMENT, conventions: Conventions = NO_CONVENTIONS) -> None:
        self._source, self._end = source, end
        tokens = _read(source)
        pieces = [tokens.get(place, b"") for place in range(1 + max(tokens))]
        self._table = PieceTable(pieces, {END_ID: end.encode()})
        self._next, self._token = _trie(pieces)
        super().__init__(TokenizerFacts(len(pieces), END_ID, END_ID, {end: END_ID}, keeps_text=True), conventions)

    def encode_array(self, text: str) -> Ids:
        content = utf8(text)
        step, tokens, size = self._next.get, self._token, len(content)
        ids: list[int] = []
        place = 0
        while place < size:
            node, at, end, token = 0, place, place, 0
            while at < size and (node := step(node << 8 | content[at], 0)):
                at += 1
                if tokens[node]:
                    token, end = tokens[node], at
            ids.append(token)
            place = end
        return np.array(ids, dtype=np.int32)

    def may_join(self, before: str, separator: str) -> bool:
        return joins(self._within_ids, before, separator)

    @cached_property
    def _within_ids(self) -> Joined:
        return joined(self._table.contents())

    def settings(self) -> dict[str, Any]:
        plain = self.conventions.to_json()
        return {"end": self._end, **({"conventions": plain} if plain else {})}

    def files(self) -> dict[str, bytes]:
        return {WORLD_FILE: self._source}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> RWKVWorldTokenizer:
        conventions = Conventions.from_json(settings.get("conventions", {}))
        return cls(read_vocabulary(folder / WORLD_FILE), end=setting(settings, "end", str), conventions=conventions)


def _read(source: bytes) -> dict[int, bytes]:
    """Bytes by id."""
    lines = source.splitlines()
    tokens: dict[int, bytes] = {}
    for number, (line, value) in enumerate(zip(lines, _literals(lines), strict=True), start=1):
        piece = value.encode() if isinstance(value, str) else value
        head, length = line.partition(b" ")[0], line.rpartition(b" ")[2]
        place = int(head) if head.isdigit() and len(head) < 20 else END_ID
        sound = isinstance(piece, bytes) and piece and length == b"%d" % len(piece)
        if not sound or place == END_ID or place in tokens:
            raise _damaged(f"line {number} is not a new id from 1, a Python literal and its length in bytes")
        tokens[place] = piece
    require_ids(1 + max(tokens, default=0), WORLD_FILE)
    lacking = set(range(256)) - {piece[0] for piece in tokens.values() if len(piece) == 1}
    if lacking:
        raise _damaged(f"no token for the byte 0x{min(lacking):02X}")
    return tokens


def _literals(lines: Sequence[bytes]) -> list[Any]:
    """The literal of each line, or None where it is malformed; all are parsed at once, which is much faster."""
    literals = [line.partition(b" ")[2].rpartition(b" ")[0].decode("utf-8", errors="replace") for line in lines]
    together = _literal(f"[{','.join(literals)}]")
    sound = isinstance(together, list) and len(together) == len(lines)
    return together if sound else [_literal(text) for text in literals]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None  # a set of lists, or one in another more often than the parser goes


def _trie(pieces: Sequence[bytes]) -> tuple[dict[int, int], list[int]]:
    """Nodes as numbers from 0, the root: the node behind ``node * 256 + byte``, and the id that ends at each node."""
    after: dict[int, int] = {}
    token = [0]
    for place, piece in enumerate(pieces):
        node = 0
        for byte in piece:
            key = node << 8 | byte
            if key not in after:
                after[key] = len(token)
                token.append(0)
            node = after[key]
        if piece:
            token[node] = place
    return after, token


def _damaged(what: str) -> TokenizerError:
    return TokenizerError(
        f"not an RWKV World vocabulary ({what}).", where=WORLD_FILE, remedy="Copy the file again, whole.")
