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
from oracles import attention as oracle
from oracles import masks, rope, rope_frequencies
from weft.core.part_config import Dims, PartConfig
from weft.core.registry import REGISTRY, load_plugin
from weft.laws import LAWS, examine
from weft.laws.subject import layer_subject
from weft.mixers.attention import Attention
from weft.mixers.key_value import KeyValueState

EXAMPLES = Path(__file__).parents[2] / "examples"
D, T = 6, 7
CAUSAL = masks.dense(masks.causal, range(T), range(T))


@pytest.fixture(scope="module", autouse=True)
def plugins() -> Iterator[None]:
    """The parts, known while these tests run."""
    before = {group: dict(kinds) for group, kinds in REGISTRY._parts.items()}
    files = [EXAMPLES / f"{name}.py" for name in ("sink_attention", "latent_attention")]
    for file in files:
        load_plugin(file)
    yield
    REGISTRY._parts = before
    for file in files:
        REGISTRY.plugins.pop(f"weft_plugin_{file.stem}")


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


def test_latents_are_heads_with_keys_and_values_of_their_own() -> None:
    layer: Any = build("latent_attention", "LatentAttentionConfig", d_head=3, d_latent=4, d_turned=2, position="rope")
    x, theta = vectors(), rope_frequencies.base_frequencies(2)

    def run(x: Any, qkv: Any, out: Any, up: Any, down: Any) -> Any:
        q, latent, shared = np.split(x[0] @ qkv.T, [10, 14], axis=1)
        turned, heads = rope.rope_interleaved(shared, np.arange(T), theta), []
        for h, own in enumerate(np.split(q, 2, axis=1)):
            queries = np.hstack([own[:, :3], rope.rope_interleaved(own[:, 3:], np.arange(T), theta)])
            raw = oracle.scores(queries, np.hstack([latent @ up[h].T, turned]))
            heads.append(oracle.weights(raw, mask=CAUSAL) @ (latent @ down[h].T))
        return (np.hstack(heads) @ out.T)[None]

    require_agreement(layer(x).y, [x, layer.qkv.weight, layer.output.weight, layer.up, layer.down], run)


def test_latents_are_kept_once() -> None:
    layer = build("latent_attention", "LatentAttentionConfig", d_latent=5, d_turned=2, position="rope")
    state = layer(vectors(), layer.init_state(1)).state
    assert isinstance(state, KeyValueState)
    assert (state.keys.shape[1:], state.values.numel()) == ((1, T, 7), 0)


@pytest.mark.parametrize("name", ["sink_attention", "latent_attention"])
def test_the_laws_hold(name: str) -> None:
    torch.manual_seed(0)
    config: type[PartConfig] = REGISTRY.get(("mixer",), name)
    report = examine(layer_subject(name, config.examples()[0].build(Dims(8)).double(), 8), laws=LAWS)
    assert report.holds, "\n".join(str(finding) for finding in report.broken()[:10])
