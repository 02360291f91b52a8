"""Bytes as tokens: there is no vocabulary to learn, and every text can be expressed.

No tokens: the tokenizer of models that read no text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import TokenizerError
from weft.tokenizers.base import Encoded, TableTokenizer, TakesTokens, Tokenizer, TokenizerFacts, setting, utf8
from weft.tokenizers.pieces import Ids, IdsLike, PieceTable, check_ids
from weft.tokenizers.specials import END_OF_DOCUMENT
from weft.tokenizers.streaming import StreamDecoder

END_ID = 256


class ByteTokenizer(TableTokenizer, TakesTokens):
    """The UTF-8 bytes of the text as ids 0 to 255, and id 256 between documents.

    ``vocab_size`` is 257; ``bos_id`` and ``eos_id`` are both 256: the token that ends a document opens the next. ByT5
    (Xue et al. 2022, section 3.1) shifts its bytes by three special ids instead; here a byte's id is its value.

    Args:
        added: spellings of further special tokens, with the ids from 257 on.
    """

    kind: ClassVar[str] = "bytes"

    def __init__(self, added: tuple[str, ...] = ()) -> None:
        special = {token: END_ID + place for place, token in enumerate((END_OF_DOCUMENT, *added))}
        super().__init__(TokenizerFacts(END_ID + len(special), END_ID, END_ID, special, keeps_text=True))
        pieces = [bytes([byte]) for byte in range(256)]
        self._added = added
        self._table = PieceTable([*pieces, *(b"" for _ in special)],
                                 {place: token.encode() for token, place in special.items()})

    def encode_array(self, text: str) -> Ids:
        return np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: IdsLike, *, specials: bool = False) -> str:
        if specials:
            return self._table.decode(ids, specials=True)
        array = check_ids(ids, self.vocab_size)
        content: bytes = array[array < END_ID].astype(np.uint8).tobytes()
        return content.decode("utf-8", errors="replace")

    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        return np.less(check_ids(ids, self.vocab_size), END_ID).astype(np.int32)

    def measure(self, text: str) -> Encoded:
        ids = self.encode_array(text)
        return Encoded(ids, np.ones_like(ids))

    def may_join(self, before: str, separator: str) -> bool:
        return False

    def with_tokens(self, tokens: tuple[str, ...]) -> ByteTokenizer:
        return ByteTokenizer((*self._added, *tokens))

    def settings(self) -> dict[str, Any]:
        return {"added": list(self._added)} if self._added else {}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> ByteTokenizer:
        return cls(tuple(setting(settings, "added", list, tuple, default=())))


class NoTokenizer(Tokenizer):
    """No ids at all, so that no text can be encoded. Checkpoints of models of images hold it."""

    kind: ClassVar[str] = "none"

    def __init__(self) -> None:
        super().__init__(TokenizerFacts(0, keeps_text=True))

    def encode_array(self, text: str) -> Ids:
        _refuse()

    def decode(self, ids: IdsLike, *, specials: bool = False) -> str:
        check_ids(ids, 0)
        return ""

    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        return check_ids(ids, 0).astype(np.int32)

    def stream(self, *, specials: bool = False) -> StreamDecoder:
        _refuse()

    def settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> NoTokenizer:
        return cls()


def _refuse() -> NoReturn:
    raise TokenizerError("a model that reads no text has no tokens for it.", where="tokenizer",
                         remedy="Give it what it reads, such as images, or use a model of text.")
