"""Mixers from outside that override single stages of attention: against oracles, and under the laws."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from by_hand import fused_attention, randomise, require_agreement
from oracles import masks
from taken_back import taken_back
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY, load_plugin
from weft.laws import LAWS, examine
from weft.laws.subject import layer_subject
from weft.mixers.attention import Attention

EXAMPLES = Path(__file__).parents[2] / "examples"
D, T = 6, 7
CAUSAL = masks.dense(masks.causal, range(T), range(T))


@pytest.fixture(scope="module", autouse=True)
def plugins() -> Iterator[None]:
    """The parts, known while these tests run."""
    with taken_back():
        load_plugin(EXAMPLES / "sink_attention.py")
        yield


def build(module: str, name: str, **fields: Any) -> Attention:
    config = getattr(sys.modules[f"weft_plugin_{module}"], name)
    layer = config.model_validate({"n_heads": 2, **fields}).build(Dims(D)).double().eval()
    assert isinstance(layer, Attention)
    randomise(layer)
    return layer


def vectors(steps: int = T) -> Tensor:
    return torch.randn(1, steps, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64,
                       requires_grad=True)


@pytest.mark.parametrize("backend", ["reference", "banded"])
def test_sinks_are_the_oracle_s(backend: str) -> None:
    layer, x = build("sink_attention", "SinkAttentionConfig", backend=backend), vectors()

    def run(x: Any, qkv: Any, out: Any) -> Any:
        return fused_attention(2, 2, 3, mask=CAUSAL, sinks=np.zeros(2))(x[0], qkv, out)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight], run)


def test_the_laws_hold() -> None:
    torch.manual_seed(0)
    name = "sink_attention"
    config: type[PartConfig] = REGISTRY.get(("mixer",), name)
    report = examine(layer_subject(name, config.examples()[0].build(Dims(8)).double(), 8), laws=LAWS)
    assert report.holds, "\n".join(str(finding) for finding in report.broken()[:10])
