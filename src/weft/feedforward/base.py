"""`FeedForwardConfig`: base of the configurations of feed-forwards, the layers that map each token's features."""

from __future__ import annotations

from typing import ClassVar

from weft.core.layer import Layer
from weft.core.part_config import Dims, ModuleConfig


class FeedForwardConfig(ModuleConfig):
    """Base of feed-forward configurations: the part is a `Layer` from [B,T,D] to [B,T,D], mostly a `Pointwise` one."""

    group: ClassVar[str] = "feedforward"

    def build(self, dims: Dims) -> Layer:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")
