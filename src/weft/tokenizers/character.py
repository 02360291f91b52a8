"""Characters as tokens: the vocabulary is the set of characters of a training text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import TokenizerError
from weft.tokenizers.base import Encoded, TableTokenizer, TokenizerFacts, setting, utf8
from weft.tokenizers.pieces import Ids, IdsLike, PieceTable, check_ids
from weft.tokenizers.specials import END_OF_DOCUMENT
from weft.tokenizers.split_points import parted
from weft.tokenizers.streaming import REPLACEMENT, code_points, utf8_widths


class CharacterTokenizer(TableTokenizer):
    """One id per Unicode character, in code point order; then the end of a document; then, if declared, the unknown.

    With C characters: ids 0 to C-1 are characters, C is both ``bos_id`` and ``eos_id``, and C+1 is the unknown
    character, which decodes to U+FFFD.

    Args:
        characters: the vocabulary; order and repetition do not matter.
        unknown: encode characters outside the vocabulary as one further id; by default they are an error.

    Raises:
        TokenizerError: no characters at all, or (when encoding) a character outside the vocabulary.
    """

    kind: ClassVar[str] = "characters"

    def __init__(self, characters: Iterable[str], *, unknown: bool = False) -> None:
        self._characters = "".join(sorted(set("".join(characters))))
        if not self._characters:
            raise TokenizerError(
                "the vocabulary is empty.", where="characters", remedy="Train it on text that is not empty.")
        end = len(self._characters)
        super().__init__(TokenizerFacts(end + 1 + unknown, end, end, {END_OF_DOCUMENT: end}, keeps_text=not unknown))
        self._unknown = unknown
        self._code_points = _code_points(self._characters)
        texts = [*self._characters, "", *([REPLACEMENT] if unknown else [])]
        self._table = PieceTable([text.encode() for text in texts], {end: END_OF_DOCUMENT.encode()})

    @classmethod
    def train(cls, texts: Iterable[str], *, unknown: bool = False) -> CharacterTokenizer:
        """The tokenizer of all characters in ``texts``."""
        seen: set[str] = set()
        for parts in parted(texts):
            for part in parts:
                seen.update(part)
        return cls(seen, unknown=unknown)

    @property
    def unknown_id(self) -> int | None:
        """The id of characters outside the vocabulary, or None when they are an error."""
        return len(self._characters) + 1 if self._unknown else None

    def encode_array(self, text: str) -> Ids:
        points = _code_points(text)
        ids = np.searchsorted(self._code_points, points).astype(np.int32)
        missing = self._code_points[np.minimum(ids, len(self._code_points) - 1)] != points
        if not missing.any():
            return ids
        if self.unknown_id is None:
            raise self._unknown_character(text, int(np.flatnonzero(missing)[0]))
        ids[missing] = self.unknown_id
        return ids

    def measure(self, text: str) -> Encoded:
        return Encoded(self.encode_array(text), utf8_widths(_code_points(text)))

    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        array = check_ids(ids, self.vocab_size)
        if self._unknown and (array == self.unknown_id).any():
            raise TokenizerError(
                "the id of the unknown character does not determine how many bytes of text it stands for.", where="ids",
                remedy="Measure the text itself, with measure(text).")
        return self._table.lengths(array)

    def may_join(self, before: str, separator: str) -> bool:
        return False

    def settings(self) -> dict[str, Any]:
        return {"characters": self._characters, "unknown": self._unknown}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> CharacterTokenizer:
        return cls(setting(settings, "characters", str), unknown=setting(settings, "unknown", bool))

    def _unknown_character(self, text: str, place: int) -> TokenizerError:
        return TokenizerError(
            f"the character {text[place]!r} (U+{ord(text[place]):04X}) at position {place} is not in the vocabulary "
            f"of {len(self._characters)} characters.", where="text",
            remedy="Train the vocabulary on text that has it, or declare an unknown character (unknown: true).")


def _code_points(text: str) -> NDArray[np.uint32]:
    utf8(text)
    return code_points(text)
