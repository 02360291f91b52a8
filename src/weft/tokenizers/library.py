"""Subword tokenizers of the ``tokenizers`` library: what those trained here share with any ``tokenizer.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import tokenizers
from numpy.typing import NDArray

from weft.core.errors import TokenizerError
from weft.disk.documents import parse_json
from weft.tokenizers.base import Encoded, NamesPieces, TakesTokens, Tokenizer, TokenizerFacts, setting, utf8
from weft.tokenizers.library_pieces import (
    has_all_bytes,
    lengths_are_exact,
    mostly_restores,
    piece_table,
    spelled,
    without_specials,
    word_spellings,
)
from weft.tokenizers.pieces import Ids, IdsLike, check_ids
from weft.tokenizers.specials import NO_CONVENTIONS, Conventions, library_errors, read_vocabulary, require_ids
from weft.tokenizers.split_points import Joined, joined, joins
from weft.tokenizers.streaming import StreamDecoder, TextStream, byte_spans

LIBRARY_FILE = "tokenizer.json"


class LibraryTokenizer(Tokenizer, NamesPieces, TakesTokens):
    """A tokenizer of any algorithm that a ``tokenizer.json`` declares.

    A file may declare a normaliser, or white space that is dropped; then decoding need not give back the text, while
    ``measure`` still counts the bytes of the source exactly, from the spans that the library reports.

    Three things that such files can switch on are off here: truncation, padding, and special tokens in plain text.

    Args:
        source: the content of a ``tokenizer.json``.
        bos: the token that opens a document, or None.
        eos: the token that closes a document, or None.
        conventions: how the vocabulary is meant to be used.

    Raises:
        TokenizerError: not a ``tokenizer.json``, or one that lacks ``bos`` or ``eos``.
    """

    def __init__(self, source: str | bytes, *, bos: str | None = None, eos: str | None = None,
                 conventions: Conventions = NO_CONVENTIONS) -> None:
        self._source = source.encode() if isinstance(source, str) else source
        self._bos, self._eos = bos, eos
        self._library = parse_library(self._source)
        size = 1 + max(self._library.get_vocab(with_added_tokens=True).values(), default=-1)
        require_ids(size, LIBRARY_FILE)
        ends = self._named(bos, size), self._named(eos, size)
        # As the library writes it: files of others may leave out what has a default.
        declared = parse_json(self._library.to_str())
        self._plain = parse_library(without_specials(declared) or self._source)
        self._plain.encode_special_tokens = True
        self._table = piece_table(self._library, declared, size)
        self._restores = mostly_restores(declared)
        self._exact = lengths_are_exact(declared) and self._table is not None and has_all_bytes(declared, self._table)
        added = sorted(self._library.get_added_tokens_decoder().items())
        special = {token.content: place for place, token in added if token.special}
        name = f"{type(self._library.model).__name__}-{size}"
        super().__init__(TokenizerFacts(size, *ends, special, self._exact, name), conventions)

    @property
    def pieces(self) -> Mapping[str, int]:
        return self._library.get_vocab(with_added_tokens=True)

    @property
    def continuing_ids(self) -> frozenset[int] | None:
        model = self._library.model
        if not isinstance(model, tokenizers.models.WordPiece):
            return None
        return frozenset(place for piece, place in self.pieces.items() if piece.startswith(
            model.continuing_subword_prefix) and piece != model.continuing_subword_prefix)

    def spellings(self) -> Sequence[bytes]:
        return word_spellings(self._library) if self._table is None else self._table.contents()

    def encode_array(self, text: str) -> Ids:
        return _encode(self._plain, text)

    def measure(self, text: str) -> Encoded:
        return self.measure_many([text])[0]

    def measure_many(self, texts: Sequence[str]) -> list[Encoded]:
        contents = [utf8(text) for text in texts]
        if self._table is None or not (self._exact or self._restores):
            return self._measure_spans(texts)
        with _encoding():
            quick = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        arrays = [np.array(item.ids, dtype=np.int32) for item in quick]
        if self._exact:
            return [Encoded(ids, self._table.lengths(ids)) for ids in arrays]
        lengths = [self._table.measure(ids, content) for ids, content in zip(arrays, contents, strict=True)]
        changed = iter(self._measure_spans([texts[place] for place, found in enumerate(lengths) if found is None]))
        return [next(changed) if found is None else Encoded(ids, found) for ids,
                found in zip(arrays, lengths, strict=True)]

    def decode(self, ids: IdsLike, *, specials: bool = False) -> str:
        if self._table is not None:
            return self._table.decode(ids, specials=specials)
        array = check_ids(ids, self.vocab_size)
        with library_errors("decode these ids", LIBRARY_FILE):
            return self._library.decode(array.tolist(), skip_special_tokens=not specials)

    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        check_ids(ids, self.vocab_size)
        if not self._exact or self._table is None:
            raise TokenizerError(
                f"the ids of this {self.name} tokenizer do not determine how many bytes of text they stand for, since "
                "it normalises the text or adds to it.", where="ids",
                remedy="Measure the text itself, with measure(text).")
        return self._table.lengths(ids)

    def stream(self, *, specials: bool = False) -> StreamDecoder:
        if self._table is not None:
            return self._table.stream(specials=specials)
        return TextStream(lambda ids: self.decode(ids, specials=specials))

    def may_join(self, before: str, separator: str) -> bool:
        return joins(self._within_ids, before, separator)

    @cached_property
    def _within_ids(self) -> Joined:
        return joined(spelled(self._library, self._table))

    def with_tokens(self, tokens: tuple[str, ...]) -> Tokenizer:
        declared = parse_json(self._source)
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        declared["added_tokens"] = [*(declared.get("added_tokens") or ()), *(
            {"id": self.vocab_size + place, "content": token, **plain} for place, token in enumerate(tokens))]
        return FileTokenizer(json.dumps(declared, ensure_ascii=False), bos=self._bos, eos=self._eos,
                             conventions=self.conventions)

    def settings(self) -> dict[str, Any]:
        plain = self.conventions.to_json()
        return {"bos": self._bos, "eos": self._eos, **({"conventions": plain} if plain else {})}

    def files(self) -> dict[str, bytes]:
        return {LIBRARY_FILE: self._source}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> Self:
        conventions = Conventions.from_json(settings.get("conventions", {}))
        source = read_vocabulary(folder / LIBRARY_FILE)
        return cls(source, bos=setting(settings, "bos", str, type(None)), eos=setting(settings, "eos", str, type(None)),
                   conventions=conventions)

    def _encode_specials(self, text: str) -> Ids:
        return _encode(self._library, text)

    def _measure_spans(self, texts: Sequence[str]) -> list[Encoded]:
        with _encoding():
            found = self._plain.encode_batch(list(texts), add_special_tokens=False)
        return [
            Encoded(np.array(item.ids, dtype=np.int32), byte_spans(text, [last for _, last in item.offsets]))
            for text, item in zip(texts, found, strict=True)
        ]

    def _named(self, token: str | None, size: int) -> int | None:
        if token is None:
            return None
        found = self._library.token_to_id(token)
        if found is None:
            raise TokenizerError(f"the token {token!r} is not in the vocabulary of {size} ids.",
                                 where=LIBRARY_FILE, remedy="Name a token that the file has as bos and eos, or none.")
        return int(found)


class FileTokenizer(LibraryTokenizer):
    """A tokenizer of the library that was read from a file, of any algorithm."""

    kind: ClassVar[str] = "file"


def parse_library(source: str | bytes) -> tokenizers.Tokenizer:
    """The library's tokenizer, without truncation and padding. Raises `TokenizerError`: not a ``tokenizer.json``."""
    try:
        # Before the library, whose ids end at 32 bits, and which gives up the process where memory ends.
        declared = parse_json(source)
        _require_bounded(declared)
        _require_known_tokens(declared)
        library = tokenizers.Tokenizer.from_str(source if isinstance(source, str) else source.decode("utf-8"))
        library.no_truncation()
        library.no_padding()
    except (TokenizerError, KeyboardInterrupt):
        raise
    except BaseException as error:  # bare Exception for all that its parser refuses, or a panic, which is none
        raise TokenizerError(f"not a tokenizer of the tokenizers library ({error}).", where=LIBRARY_FILE,
                             remedy="Give a tokenizer.json as the tokenizers library writes it.") from None
    return library


def _require_bounded(declared: Any) -> None:
    """Refuse ids that are no ids of a vocabulary."""
    parts = declared if isinstance(declared, dict) else {}
    added, model = parts.get("added_tokens"), parts.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    ids += [token.get("id") for token in added or () if isinstance(token, dict)] if isinstance(added, list) else []
    require_ids(1 + max((each for each in ids if isinstance(each, int)), default=-1), LIBRARY_FILE)


def _require_known_tokens(declared: Any) -> None:
    """Refuse templates that put a token around a text which they do not define: the library gives up at the first text
    that is encoded."""
    left = [declared.get("post_processor")] if isinstance(declared, dict) else []
    while left:
        processor = left.pop()
        if not isinstance(processor, dict):
            continue
        if isinstance(processor.get("processors"), list):
            left += processor["processors"]
        known = processor.get("special_tokens")
        pieces = [piece for side in ("single", "pair") if isinstance(processor.get(side), list)
                  for piece in processor[side] if isinstance(piece, dict)]
        named = [piece["SpecialToken"].get("id") for piece in pieces if isinstance(piece.get("SpecialToken"), dict)]
        lacking = [name for name in named if not (isinstance(known, dict) and isinstance(name, str) and name in known)]
        if lacking:
            raise TokenizerError(
                f"the template of post_processor names {lacking[0]!r}, which is not among its special_tokens.",
                where=LIBRARY_FILE, remedy="Define it there, with its ids.")


def require_size(reached: int, vocab_size: int) -> None:
    """Raise unless training gave the requested size: a model's size must not depend on its text. Raises
    `TokenizerError`: fewer ids, or more (an alphabet that does not fit)."""
    if reached < vocab_size:
        raise TokenizerError(f"the training text gives only {reached} ids, and {vocab_size} are requested.",
                             where="vocab_size", remedy=f"Give more text, or request at most {reached}.")
    if reached > vocab_size:
        raise TokenizerError(
            f"the characters of the training text alone take {reached} ids, and {vocab_size} are requested.",
            where="vocab_size", remedy=f"Request at least {reached}.")


def _encode(library: tokenizers.Tokenizer, text: str) -> Ids:
    utf8(text)
    with _encoding():
        return np.array(library.encode_batch_fast([text], add_special_tokens=False)[0].ids, dtype=np.int32)


def _encoding() -> AbstractContextManager[None]:
    return library_errors("encode this text", LIBRARY_FILE)
