"""What every tokenizer is: text to ids, ids to text, and how many bytes of the text each id stands for."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import TokenizerError
from weft.tokenizers.streaming import StreamDecoder

Ids: TypeAlias = NDArray[np.int32]
IdsLike: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]

SETTINGS_FILE = "weft_tokenizer.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class Encoded:
    """A text as ids, with the bytes of the text that each id stands for.

    Attributes:
        ids: token ids, one per token.
        byte_lengths: UTF-8 bytes of the source text per token; they sum to the length of the text in bytes
            (unless the text gives no token at all), which makes bits per byte exact.
    """

    ids: Ids
    byte_lengths: NDArray[np.int32]


class Tokenizer(ABC):
    """A map between text and ids below ``vocab_size``.

    Text is any ``str`` that UTF-8 can express; it is never normalised by Weft. ``encode`` adds no begin or end token:
    where documents begin and end is the data's concern. Special tokens stand for no text: they decode to nothing and
    have length 0 in bytes, and text that merely spells one is encoded as ordinary text.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    @abstractmethod
    def bos_id(self) -> int | None:
        """The id that opens a document, or None."""

    @property
    @abstractmethod
    def eos_id(self) -> int | None:
        """The id that closes a document, or None. It may be the same id as ``bos_id``."""

    @property
    def name(self) -> str:
        """Kind and vocabulary size, for reports."""
        return f"{self.kind}-{self.vocab_size}"

    @abstractmethod
    def encode_array(self, text: str) -> Ids:
        """The ids of ``text`` as an array: the way to encode a large text.

        Raises:
            TokenizerError: the text holds something that this tokenizer cannot express.
        """

    def encode(self, text: str) -> list[int]:
        """The ids of ``text`` as a list."""
        ids: list[int] = self.encode_array(text).tolist()
        return ids

    @abstractmethod
    def decode(self, ids: IdsLike) -> str:
        """The text of ``ids``; bytes that are not UTF-8 (half a character) become U+FFFD.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """

    @abstractmethod
    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        """The UTF-8 bytes of text that each id stands for; special tokens count 0.

        Raises:
            TokenizerError: an id outside the vocabulary, or a tokenizer whose ids alone do not say (use ``measure``).
        """

    @abstractmethod
    def stream(self) -> StreamDecoder:
        """A fresh decoder for ids that arrive one at a time."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What makes this tokenizer again, as plain JSON values (with ``files``, where there are any)."""

    def files(self) -> dict[str, str]:
        """Further files that belong to this tokenizer: name and text."""
        return {}

    def measure(self, text: str) -> Encoded:
        """The ids of ``text`` with the bytes that each stands for."""
        ids = self.encode_array(text)
        return Encoded(ids, self.byte_lengths(ids))

    def measure_many(self, texts: Sequence[str]) -> list[Encoded]:
        """``measure`` for each text; the way to encode a corpus."""
        return [self.measure(text) for text in texts]

    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of all that decides how text becomes ids."""
        parts = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.files().items()}
        content = {"kind": self.kind, "settings": self.settings(), "files": parts}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files into ``folder``, which is made if need be."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "format": FORMAT_VERSION,
            "kind": self.kind,
            "fingerprint": self.fingerprint(),
            "settings": self.settings(),
        }
        (folder / SETTINGS_FILE).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        for name, text in self.files().items():
            (folder / name).write_bytes(text.encode())

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> Tokenizer:
        """The tokenizer that ``settings`` (and ``files`` in ``folder``) describe."""


def utf8(text: str) -> bytes:
    """``text`` in UTF-8.

    Raises:
        TokenizerError: a lone surrogate, which no UTF-8 can express.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"the character U+{ord(text[error.start]):04X} at position {error.start} is a lone surrogate, "
            "which UTF-8 cannot express.",
            where="text",
            remedy="Read the text with errors='replace', or remove the character.",
        ) from None


def check_ids(ids: IdsLike, vocab_size: int) -> NDArray[np.int64]:
    """``ids`` as an array.

    Raises:
        TokenizerError: an id below 0 or not below ``vocab_size``.
    """
    array = np.asarray(ids, dtype=np.int64).reshape(-1)
    outside = np.flatnonzero((array < 0) | (array >= vocab_size))
    if outside.size:
        place = int(outside[0])
        raise TokenizerError(
            f"id {array[place]} at position {place} is outside the vocabulary of {vocab_size} ids.",
            where="ids",
            remedy="Decode with the tokenizer that the model was trained with.",
        )
    return array
