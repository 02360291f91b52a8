"""`MixerConfig`: base of the configurations of token mixers, the layers that move information between tokens."""

from __future__ import annotations

from typing import ClassVar

from weft.core.layer import Layer
from weft.core.part_config import Dims, ModuleConfig


class MixerConfig(ModuleConfig):
    """Base of token mixer configurations: the part is a causal `Layer` from [B,T,D] to [B,T,D]."""

    group: ClassVar[str] = "mixer"

    def build(self, dims: Dims) -> Layer:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")
