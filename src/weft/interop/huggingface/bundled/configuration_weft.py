"""The configuration of a model of Weft, for `transformers`."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig


class WeftConfig(PreTrainedConfig):
    """The complete configuration of a model of Weft.

    Attributes:
        weft: ``format`` (a number), ``version`` (of the Weft that wrote it) and ``model`` (its configuration).
        use_cache: whether to return a cache, so that the next token takes one step.
    """

    model_type = "weft"

    def __init__(self, weft: dict[str, Any] | None = None, use_cache: bool = True, **kwargs: Any) -> None:
        self.weft = dict(weft or {})
        self.use_cache = use_cache
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.weft["model"]["vocab_size"])

    @property
    def max_position_embeddings(self) -> int:
        """Context that the model was trained on, in tokens."""
        return int(self.weft["model"]["context"])
