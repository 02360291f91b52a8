"""Bytes as tokens: no vocabulary to learn, nothing that cannot be expressed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from weft.tokenizers.base import Ids, IdsLike, Tokenizer, check_ids, utf8
from weft.tokenizers.streaming import ByteStream, StreamDecoder

END_OF_DOCUMENT = 256


@final
class ByteTokenizer(Tokenizer):
    """The UTF-8 bytes of the text as ids 0 to 255, and id 256 between documents.

    ``vocab_size`` is 257; ``bos_id`` and ``eos_id`` are both 256: the token that ends a document opens the next. ByT5
    (Xue et al. 2022, section 3.1) shifts its bytes by three special ids instead; here a byte's id is its value.
    """

    kind: ClassVar[str] = "bytes"

    @property
    def vocab_size(self) -> int:
        return END_OF_DOCUMENT + 1

    @property
    def bos_id(self) -> int:
        return END_OF_DOCUMENT

    @property
    def eos_id(self) -> int:
        return END_OF_DOCUMENT

    def encode_array(self, text: str) -> Ids:
        return np.frombuffer(utf8(text), dtype=np.uint8).astype(np.int32)

    def decode(self, ids: IdsLike) -> str:
        array = check_ids(ids, self.vocab_size)
        content: bytes = array[array != END_OF_DOCUMENT].astype(np.uint8).tobytes()
        return content.decode("utf-8", errors="replace")

    def byte_lengths(self, ids: IdsLike) -> NDArray[np.int32]:
        return np.not_equal(check_ids(ids, self.vocab_size), END_OF_DOCUMENT).astype(np.int32)

    def stream(self) -> StreamDecoder:
        return ByteStream(self._token_bytes)

    def settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], folder: Path) -> ByteTokenizer:
        return cls()

    def _token_bytes(self, token: int) -> bytes:
        check_ids([token], self.vocab_size)
        return b"" if token == END_OF_DOCUMENT else bytes([token])
