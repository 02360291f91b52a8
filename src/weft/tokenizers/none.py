"""No tokens: the tokenizer of models that read no text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import TokenizerError
from weft.tokenizers.base import Tokenizer, TokenizerFacts
from weft.tokenizers.pieces import Ids, IdsLike, check_ids
from weft.tokenizers.streaming import StreamDecoder


@final
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
