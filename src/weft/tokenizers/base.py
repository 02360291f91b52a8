"""Base of all tokenizers: text to ids, ids to text, and the bytes of text that each id stands for."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import TokenizerError, refuse_unread
from weft.core.strict_json import digest
from weft.disk.ownership import require_free_or_same
from weft.tokenizers.pieces import Ids, IdsLike, PieceTable
from weft.tokenizers.specials import NO_CONVENTIONS, AddedToken, Conventions, Splitter
from weft.tokenizers.streaming import StreamDecoder, parted

SETTINGS_FILE = "weft_tokenizer.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as ids, with the bytes of the text that each id stands for.

    Attributes:
        ids: token ids, one per token.
        byte_lengths: UTF-8 bytes of the source text per token; they sum to the length of the text in bytes
            (unless the text gives no token at all), which makes bits per byte exact.
        lost: nats that each token adds for text that its id does not tell (`weft.tokenizers.lost`); None: they were not
            computed, or the tokenizer keeps every text.
    """

    ids: Ids
    byte_lengths: NDArray[np.int32]
    lost: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class TokenizerFacts:
    """The facts that a tokenizer gives of itself when it is made.

    Attributes:
        vocab_size: one more than the largest id.
        bos_id: the id that opens a document, or None.
        eos_id: the id that closes a document, or None. It may be the same id as ``bos_id``.
        special_tokens: the special tokens that can be spelled, and their ids.
        keeps_text: whether the ids of every text decode to that text, by how the tokenizer is made. Where that is not
            certain (False), text that the ids do not tell is paid for in bits per byte, see `weft.tokenizers.lost`.
        name: for reports; empty: kind and vocabulary size.
    """

    vocab_size: int
    bos_id: int | None = None
    eos_id: int | None = None
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    keeps_text: bool = False
    name: str = ""


class NamesPieces(ABC):
    """A tokenizer whose ids have names in the vocabulary's own file."""

    @property
    @abstractmethod
    def pieces(self) -> Mapping[str, int]:
        """The ids that have a name in the vocabulary's own file, special tokens among them, by that name."""

    @property
    def continuing_ids(self) -> frozenset[int] | None:
        """The ids that continue a word and never begin one, such as WordPiece's ``##ing``; None for a vocabulary that
        does not mark them."""
        return None


class TakesTokens(ABC):
    """A tokenizer that takes further special tokens."""

    @abstractmethod
    def with_tokens(self, tokens: tuple[str, ...]) -> Tokenizer:
        """This tokenizer with further special tokens, which have been checked, and whose ids follow its last; text is
        encoded as before."""


MOVED: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys(TokenizerFacts.__dataclass_fields__, "Give it to `Tokenizer.__init__` as a field of "
                    "weft.tokenizers.base.TokenizerFacts."),
    "conventions": "Give them to `Tokenizer.__init__`.", "require_fits": "It is weft.tokenizers.base.require_fits.",
    "extended": "It is weft.tokenizers.base.extended, which asks for `TakesTokens`."})
"""Names that a tokenizer would define for nothing, with where each belongs."""
ASKED_FOR: Mapping[type, tuple[str, ...]] = MappingProxyType({
    NamesPieces: ("pieces", "continuing_ids"), TakesTokens: ("with_tokens",)})
"""What a tokenizer may define besides, which is read of those that inherit from these classes alone."""


class Tokenizer(ABC):
    """A map between text and ids below ``vocab_size``.

    Text is any ``str`` that UTF-8 can express; it is never normalised by Weft. ``encode`` adds no opening or closing
    token: documents are delimited by `weft.data`. Special tokens stand for no text: they decode to nothing and have
    length 0 in bytes, and text that merely spells one is encoded as ordinary text. Only with ``specials=True`` are they
    recognised in a text (which a chat template wrote) and written into one.

    Args:
        facts: see `TokenizerFacts`; they are its attributes.
        conventions: how the vocabulary is meant to be used; empty for one that was trained here, unless a task gave it
            some.

    Attributes:
        end_ids: every id that ends a generation: ``eos_id`` and, after it, those of the conventions that are ids here.
    """

    kind: ClassVar[str]

    def __init__(self, facts: TokenizerFacts, conventions: Conventions = NO_CONVENTIONS) -> None:
        self.vocab_size, self.bos_id, self.eos_id = facts.vocab_size, facts.bos_id, facts.eos_id
        self.special_tokens, self.keeps_text = facts.special_tokens, facts.keeps_text
        self.name = facts.name or f"{self.kind}-{facts.vocab_size}"
        self._spelled: Sequence[tuple[bytes, bytes]] | None = None
        self._use(conventions)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_unread(cls, MOVED, ASKED_FOR)

    def _use(self, conventions: Conventions) -> None:
        own = () if self.eos_id is None else (self.eos_id,)
        more = (place for place in conventions.end_ids if place not in own and 0 <= place < self.vocab_size)
        self.conventions, self.end_ids = conventions, (*own, *more)

    @final
    def with_conventions(self, conventions: Conventions) -> Self:
        """The same tokenizer, to be used in another way: with a chat template, for instance. They are saved with it."""
        found = copy(self)
        found._use(conventions)
        return found

    def spellings(self) -> Sequence[bytes]:
        """The bytes that each id is taken for inside a text, with the white space before it; empty for special tokens.
        A better guess makes the code for lost text shorter."""
        return [self.decode([token]).encode() for token in range(self.vocab_size)]

    @final
    def spelled(self) -> Sequence[tuple[bytes, bytes]]:
        """``spellings``, each parted into its white space and the rest; found once."""
        if self._spelled is None:
            self._spelled = [parted(piece) for piece in self.spellings()]
        return self._spelled

    @abstractmethod
    def encode_array(self, text: str) -> Ids:
        """The ids of ``text`` as an array: the way to encode a large text. Raises `TokenizerError`: the text holds
        something that this tokenizer cannot express."""

    @final
    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """The ids of ``text`` as a list.

        Args:
            specials: recognise the special tokens that the text spells. Only for trusted text: a user's message that
                spells the end of a turn would end the turn.
        """
        ids: list[int] = (self._encode_specials(text) if specials else self.encode_array(text)).tolist()
        return ids

    @abstractmethod
    def decode(self, ids: IdsLike, *, specials: bool = False) -> str:
        """The text of ``ids``; bytes that are not UTF-8 (half a character) become U+FFFD.

        Args:
            ids: any ids of the vocabulary; those missing from its file decode to nothing.
            specials: write special tokens as they are spelled; by default they are left out.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """

    @abstractmethod
    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        """The UTF-8 bytes of text that each id stands for; special tokens count 0. Raises `TokenizerError`: an id
        outside the vocabulary, or ids that do not determine the bytes (use ``measure``)."""

    @abstractmethod
    def stream(self, *, specials: bool = False) -> StreamDecoder:
        """A fresh decoder for ids that arrive one at a time; ``specials`` as in ``decode``."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings from which, with ``files``, this tokenizer is built again, as plain JSON values."""

    def files(self) -> dict[str, bytes]:
        """Further files that belong to this tokenizer: name and content."""
        return {}

    def measure(self, text: str) -> Encoded:
        """The ids of ``text`` with the bytes that each stands for."""
        ids = self.encode_array(text)
        return Encoded(ids, self.byte_lengths(ids))

    def measure_many(self, texts: Sequence[str]) -> list[Encoded]:
        """``measure`` for each text; the way to encode a corpus."""
        return [self.measure(text) for text in texts]

    def may_join(self, before: str, separator: str) -> bool:
        """Whether one id may stand for text in which ``separator``, a space or a line end, follows the character
        ``before``. A long text is cut only where no id may, see `weft.tokenizers.split_points`; with this default,
        every document is encoded whole, which takes much memory."""
        return True

    @final
    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of everything that determines how text becomes ids."""
        parts = {name: hashlib.sha256(content).hexdigest() for name, content in self.files().items()}
        whole = {"kind": self.kind, "settings": self.settings(), "files": parts}
        return digest(whole)

    @final
    def saved(self) -> dict[str, bytes]:
        """The files that ``save`` writes: name and content."""
        content: dict[str, Any] = {"format": FORMAT_VERSION, "kind": self.kind, "fingerprint": self.fingerprint(),
                                   "settings": self.settings()}
        # Some kinds have their conventions among their settings, as their published files do.
        if self.conventions != NO_CONVENTIONS and "conventions" not in content["settings"]:
            content["conventions"] = self.conventions.to_json()
        settings = json.dumps(content, indent=1, sort_keys=True) + "\n"
        return {SETTINGS_FILE: settings.encode("utf-8"), **self.files()}

    @final
    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files into ``folder``, which is created if it does not exist. Raises `OccupiedError`:
        it holds other files of these names."""
        folder, files = Path(folder), self.saved()
        for name, data in files.items():
            require_free_or_same(folder / name, data)
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> Tokenizer:
        """The tokenizer that ``settings`` (and ``files`` in ``folder``) describe."""

    def _encode_specials(self, text: str) -> Ids:
        splitter = Splitter(AddedToken(content, place) for content, place in self.special_tokens.items())
        pieces = [self.encode_array(piece) if place is None else np.array([place], dtype=np.int32) for piece,
                  place in splitter.split(text)]
        return np.concatenate(pieces) if pieces else self.encode_array(text)


class TableTokenizer(Tokenizer):
    """Base of tokenizers whose ids stand for fixed bytes, which a table holds. A class of them sets ``_table``."""

    _table: PieceTable

    def spellings(self) -> Sequence[bytes]:
        return self._table.contents()

    def decode(self, ids: IdsLike, *, specials: bool = False) -> str:
        return self._table.decode(ids, specials=specials)

    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        return self._table.lengths(ids)

    def stream(self, *, specials: bool = False) -> StreamDecoder:
        return self._table.stream(specials=specials)


def pieces_of(tokenizer: Tokenizer) -> Mapping[str, int]:
    """The ids that have a name in the vocabulary's own file, by that name; none for a tokenizer whose ids have no names
    besides what they decode to."""
    return tokenizer.pieces if isinstance(tokenizer, NamesPieces) else {}


def extended(tokenizer: Tokenizer, tokens: Sequence[str]) -> Tokenizer:
    """A tokenizer with further special tokens, whose ids follow its last; text is encoded as before. Raises
    `TokenizerError`: a spelling is empty, given twice or in the vocabulary already, or this kind of tokenizer takes no
    further tokens."""
    known = {*tokenizer.special_tokens, *pieces_of(tokenizer)}
    for place, token in enumerate(tokens):
        if not token or token in known or token in tokens[:place]:
            said = "is empty" if not token else "is given twice" if token in tokens[:place] else (
                f"is in the vocabulary of {tokenizer.name} already")
            raise TokenizerError(f"the token {token!r} {said}.", where=f"tokenizer.added_tokens.{place}",
                                 remedy="Give every new token a spelling of its own.")
    if not tokens:
        return tokenizer
    if not isinstance(tokenizer, TakesTokens):
        raise TokenizerError(f"a tokenizer of kind {tokenizer.kind!r} takes no further tokens.", where="tokenizer.of",
                             remedy="Give bytes, or one that has a tokenizer.json (bpe, wordpiece, unigram, or a file "
                                    "of any published one).")
    return tokenizer.with_tokens(tuple(tokens))


def require_fits(tokenizer: Tokenizer, vocab_size: int, *, where: str) -> None:
    """Raise unless a model has a row for every id of a tokenizer. More rows are allowed: models round up.

    Args:
        where: the place that the error names (the model's folder).

    Raises:
        TokenizerError: the tokenizer is larger.
    """
    if tokenizer.vocab_size > vocab_size:
        raise TokenizerError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} ids, while the model's vocabulary has "
            f"{vocab_size}.", where=where,
            remedy="Use the tokenizer that the model was trained with, or give the model as many rows.")


def setting(settings: Mapping[str, Any], name: str, *kinds: type, default: Any = None) -> Any:
    """An entry of a tokenizer's settings, which must be of one of these types; of a list or tuple all entries are text.

    Args:
        settings: as they were read.
        kinds: types that it may have.
        default: stands in for a missing entry.

    Raises:
        ValueError: it is missing or of another type.
    """
    value = settings.get(name, default) if isinstance(settings, Mapping) else None
    if type(value) not in kinds or (isinstance(value, list | tuple) and not all(isinstance(x, str) for x in value)):
        raise ValueError(f"the setting {name!r} is a {type(value).__name__}")
    return value


def utf8(text: str) -> bytes:
    """``text`` in UTF-8. Raises `TokenizerError`: a lone surrogate, which no UTF-8 can express."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the character U+{ord(text[error.start]):04X} at position {error.start} is a lone surrogate, "
            "which UTF-8 cannot express.",
            where="text",
            remedy="Read the text with errors='replace', or remove the character.",
        ) from None
