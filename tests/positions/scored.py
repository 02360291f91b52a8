"""Attention with a position scheme that acts on scores, in float64 with random parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from by_hand import randomise
from oracles import masks
from weft.core.part_config import Dims
from weft.mixers.attention import Attention, AttentionConfig

D, T = 6, 7
CAUSAL = masks.dense(masks.causal, range(T), range(T))
FULL = np.ones((T, T), bool)


def attention(position: Any, **fields: Any) -> Attention:
    """4 heads of size 2 over 2 key/value heads."""
    sizes = {"n_heads": 4, "n_kv_heads": 2, "d_head": 2}
    config = AttentionConfig.model_validate({**sizes, "position": position, **fields})
    layer = config.build(Dims(D, context=2000)).double().eval()
    randomise(layer)
    return layer


def vectors(steps: int = T) -> Tensor:
    return torch.randn(1, steps, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64,
                       requires_grad=True)


def maps(qkv: Any) -> list[Any]:
    """Those of queries, keys and values in the fused one."""
    return np.split(qkv, [8, 12])
