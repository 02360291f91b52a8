"""SentencePiece: a ``.model`` file through the ``sentencepiece`` library (the extra ``sentencepiece``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import TokenizerError
from weft.core.strict_json import plain
from weft.tokenizers.base import Encoded, NamesPieces, TableTokenizer, TokenizerFacts, setting, utf8
from weft.tokenizers.library_pieces import SPACE
from weft.tokenizers.pieces import Ids, IdsLike, check_ids
from weft.tokenizers.sentence_piece_model import MODEL_FILE, learned_model, opened, table_of
from weft.tokenizers.specials import NO_CONVENTIONS, AddedToken, Conventions, Splitter, read_vocabulary
from weft.tokenizers.split_points import Joined, joined, joins
from weft.tokenizers.streaming import byte_spans

Prefix: TypeAlias = Literal["always", "first", "never"]
"""Where a model inserts its space: before every stretch between special or added tokens (as the library does), before
the text only, or nowhere."""

WITHOUT_PREFIX = b"\x1a\x02\x18\x00"
"""normalizer_spec {add_dummy_prefix: false}. Protocol buffers that follow each other merge; the last value counts."""


class SentencePieceTokenizer(TableTokenizer, NamesPieces):
    """The ids that the ``sentencepiece`` library gives, for BPE and unigram models (Kudo and Richardson 2018).

    Control symbols are special tokens; user-defined symbols are text. Whether decoding restores the text depends on the
    model: many normalise (NFKC, white space); ``measure`` counts the bytes of the source in any case. Decoding differs
    from the library in one point: invalid bytes become U+FFFD as everywhere in Weft, one for each unfinished character
    instead of one for each byte.

    Args:
        model: the content of a ``.model`` file.
        bos: the token that opens a document; None: the model's own, if it has one.
        eos: the token that closes a document; likewise.
        added: tokens beside the model; those that are not special are matched in every text.
        conventions: how the vocabulary is meant to be used.
        prefix: where the model inserts its space.

    Raises:
        TokenizerError: not a SentencePiece model, one that rewrites what it decodes, or one without such a token.
        MissingExtra: the library is not installed.
    """

    kind: ClassVar[str] = "sentencepiece"

    def __init__(self, model: bytes, *, bos: str | None = None, eos: str | None = None,
                 added: Sequence[AddedToken] = (), conventions: Conventions = NO_CONVENTIONS,
                 prefix: Prefix = "always") -> None:
        self._model, self._bos, self._eos = model, bos, eos
        self._added, self._prefix = tuple(added), prefix
        self._library, facts = opened(model + (WITHOUT_PREFIX if prefix == "never" else b""))
        self._inner = opened(model + WITHOUT_PREFIX)[0] if prefix == "first" else self._library
        size = self._library.get_piece_size()
        special = {self._library.id_to_piece(i): i for i in range(size) if self._library.is_control(i)}
        special.update({token.content: token.id for token in self._added if token.special})
        self._table = table_of(self._library, self._added, facts)
        self._known = {self._library.id_to_piece(i): i for i in range(size)}
        self._known.update({token.content: token.id for token in self._added})
        own = (self._library.bos_id(), self._library.eos_id())
        opens, closes = (self._named(name, default) for name, default in zip((bos, eos), own, strict=True))
        super().__init__(TokenizerFacts(len(self._table), opens, closes, special), conventions)
        self._plain = Splitter(token for token in self._added if not token.special)

    @property
    def pieces(self) -> Mapping[str, int]:
        return dict(self._known)

    @property
    def unknown(self) -> str:
        """The piece for characters that the vocabulary lacks."""
        return str(self._library.id_to_piece(self._library.unk_id()))

    def encode_array(self, text: str) -> Ids:
        return self._joined(text, self._plain)

    def measure(self, text: str) -> Encoded:
        return self.measure_many([text])[0]

    def measure_many(self, texts: Sequence[str]) -> list[Encoded]:
        if any(not token.special for token in self._added):
            return [self._measure_pieces(text) for text in texts]
        contents = [utf8(text) for text in texts]
        arrays = [np.array(ids) for ids in self._library.encode(list(texts), out_type="numpy")]
        return [self._measured(*item) for item in zip(texts, contents, arrays, strict=True)]

    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        check_ids(ids, self.vocab_size)
        raise TokenizerError(
            "the ids of a SentencePiece model do not determine how many bytes of text they stand for, since it "
            "normalises the text or adds to it.", where="ids", remedy="Measure the text itself, with measure(text).")

    def may_join(self, before: str, separator: str) -> bool:
        return joins(self._within_ids, before, separator)

    @cached_property
    def _within_ids(self) -> Joined:
        spelled = [name.replace(SPACE, " ") for name in self._known]
        spelled += [f"{token.content}{space}" for token in self._added if token.rstrip for space in " \n"]
        return joined(name.encode() for name in spelled)

    def settings(self) -> dict[str, Any]:
        conventions, added = self.conventions.to_json(), plain(self._added)
        named = {"conventions": conventions} if conventions else {}
        placed = {} if self._prefix == "always" else {"prefix": self._prefix}
        return {"bos": self._bos, "eos": self._eos, "added": added, **named, **placed}

    def files(self) -> dict[str, bytes]:
        return {MODEL_FILE: self._model}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> SentencePieceTokenizer:
        return cls(read_vocabulary(folder / MODEL_FILE), bos=setting(settings, "bos", str, type(None)),
                   eos=setting(settings, "eos", str, type(None)), added=[_added(token) for token in settings["added"]],
                   conventions=Conventions.from_json(settings.get("conventions", {})),
                   prefix=setting(settings, "prefix", str, default="always"))

    def _encode_specials(self, text: str) -> Ids:
        control = (AddedToken(content, place) for content, place in self.special_tokens.items())
        added = {token.content for token in self._added}
        return self._joined(text, Splitter([*self._added, *(token for token in control if token.content not in added)]))

    def _joined(self, text: str, splitter: Splitter) -> Ids:
        utf8(text)
        pieces = [
            self._encoded(piece, opens=not index) if place is None else np.array([place], dtype=np.int32)
            for index, (piece, place) in enumerate(splitter.split(text))
        ]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int32)

    def _encoded(self, piece: str, *, opens: bool) -> Ids:
        """Encode a stretch of text without added tokens; ``opens``: whether the text begins with it."""
        library = self._library if opens else self._inner
        return np.array(library.encode(piece, out_type="numpy"), dtype=np.int32)

    def _measure_pieces(self, text: str) -> Encoded:
        """Measure a text split by added tokens; the bytes of a stretch without ids (white space) go to the next id."""
        ids: list[NDArray[np.int32]] = [np.zeros(0, dtype=np.int32)]
        ends: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
        place = 0
        for index, (piece, token) in enumerate(self._plain.split(text)):
            content = utf8(piece)
            if token is None:
                found = self._measured(piece, content, self._encoded(piece, opens=not index), opens=not index)
            else:
                found = Encoded(np.array([token], dtype=np.int32), np.array([len(content)], dtype=np.int32))
            ids.append(found.ids)
            ends.append(place + np.cumsum(found.byte_lengths, dtype=np.int64))
            place += len(content)
        covered = np.concatenate(ends)
        covered[-1:] = place
        return Encoded(np.concatenate(ids), np.diff(covered, prepend=0).astype(np.int32))

    def _measured(self, text: str, content: bytes, ids: Ids, *, opens: bool = True) -> Encoded:
        lengths = self._table.measure(ids, content)
        if lengths is None:
            library = self._library if opens else self._inner
            found = library.encode(text, out_type="offset_mapping")
            lengths = byte_spans(text, [last for _, last in found["offsets"]])
        return Encoded(ids, lengths)

    def _named(self, token: str | None, default: int) -> int | None:
        if token is None:
            return default if default >= 0 else None
        if token not in self._known:
            raise TokenizerError(f"the token {token!r} is not in the vocabulary of {len(self._table)} ids.",
                                 where=MODEL_FILE, remedy="Name a token that the model has as bos and eos, or none.")
        return self._known[token]


def _added(token: Mapping[str, Any]) -> AddedToken:
    made = AddedToken(**token)
    if not isinstance(made.content, str) or type(made.id) is not int or made.id < 0:
        raise ValueError(f"the added token {str(token)[:80]}")
    return made


def train_sentence_piece(texts: Iterable[str], vocab_size: int, *, algorithm: str) -> SentencePieceTokenizer:
    """A SentencePiece model learned from the lines of ``texts``, without normalisation, with bytes for rare characters.

    Args:
        algorithm: ``unigram`` (Kudo 2018) or ``bpe`` (Sennrich et al. 2016).

    Raises:
        TokenizerError: a size that the text cannot fill, or that its characters exceed.
        MissingExtra: the library is not installed.
    """
    return SentencePieceTokenizer(learned_model(texts, vocab_size, algorithm))
