"""Cross-attention against the oracle and PyTorch's own module; its memory in calls and in states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from by_hand import randomise, require_agreement
from oracles import attention as oracle
from oracles import norms
from weft.core.config import parse
from weft.core.errors import ConfigError, InputError
from weft.core.model import EncoderInputs, parse_model
from weft.core.part_config import Dims
from weft.core.span import Memory, Span
from weft.mixers.cross_attention import CrossAttention, CrossAttentionConfig
from weft.models.encoder_decoder import EncoderDecoderConfig

D, T, S = 6, 4, 5


def build(**fields: Any) -> CrossAttention:
    layer = parse(CrossAttentionConfig, {"n_heads": 2, **fields}).build(Dims(D)).double().eval()
    randomise(layer)
    return layer


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)


def by_oracle(layer: CrossAttention, seen: int, **stages: Any) -> Any:
    sizes = layer.sizes

    def run(x: Any, memory: Any, w_q: Any, w_kv: Any, w_o: Any, *biases: Any) -> Any:
        w_k, w_v = np.split(w_kv, [sizes.kv_heads * sizes.d_head])
        b_k, b_v = np.split(biases[1], [sizes.kv_heads * sizes.d_head]) if len(biases) > 1 else (None, None)
        mask = np.broadcast_to(np.arange(S) < seen, (T, S))
        return oracle.multi_head_attention(
            x[0], w_q, w_k, w_v, w_o, sizes.heads, sizes.kv_heads, memory=memory[0], mask=mask,
            b_q=biases[0] if len(biases) > 1 else None, b_k=b_k, b_v=b_v, b_o=biases[-1] if len(biases) == 3 else None,
            **stages)[None]

    return run


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
@pytest.mark.parametrize("fields", [
    {}, {"n_heads": 4, "n_kv_heads": 2, "d_head": 3, "d_value": 5, "bias": "all"},
    {"bias": "qkv", "scores": {"scale": 0.2}}], ids=["plain", "grouped", "scaled"])
@pytest.mark.parametrize("seen", [S, 2, 0])
def test_it_is_the_oracle(backend: str, fields: dict[str, Any], seen: int) -> None:
    layer = build(backend=backend, **fields)
    x, memory = random(1, T, D), random(1, S, D, seed=1)
    biases = [bias for bias in (layer.q.bias, layer.kv.bias, layer.output.bias) if bias is not None]
    y = layer(x, None, Span(memory=Memory(memory, torch.tensor([seen])))).y
    parameters = [layer.q.weight, layer.kv.weight, layer.output.weight, *biases]
    require_agreement(y, [x, memory, *parameters], by_oracle(layer, seen, scale=fields.get("scores", {}).get("scale")))


def test_queries_and_keys_are_normalised_and_scores_capped() -> None:
    layer = build(qk_norm="rmsnorm", scores={"softcap": 0.5})
    x, memory = random(1, T, D), random(1, S, D, seed=1)
    assert layer.q_norm is not None
    assert layer.k_norm is not None

    def run(x: Any, memory: Any, *rest: Any) -> Any:
        return by_oracle(layer, S, softcap=0.5, norm_q=lambda y: norms.rmsnorm(y, rest[3]),
                         norm_k=lambda y: norms.rmsnorm(y, rest[4]))(x, memory, *rest[:3])

    require_agreement(layer(x, None, Span(memory=Memory(memory))).y, [
        x, memory, layer.q.weight, layer.kv.weight, layer.output.weight, layer.q_norm.weight, layer.k_norm.weight], run)


def test_it_is_torch_s_multi_head_attention() -> None:
    layer = build(bias="all")
    foreign = nn.MultiheadAttention(D, 2, batch_first=True, dtype=torch.float64)
    assert layer.q.bias is not None
    foreign.load_state_dict({"in_proj_weight": torch.cat([layer.q.weight, layer.kv.weight]),
                             "in_proj_bias": torch.cat([layer.q.bias, layer.kv.bias]),
                             "out_proj.weight": layer.output.weight, "out_proj.bias": layer.output.bias})
    x, memory, count = random(3, T, D), random(3, S, D, seed=1), torch.tensor([5, 3, 1])
    wanted, _ = foreign(x, memory, memory, key_padding_mask=torch.arange(S) >= count[:, None], need_weights=False)
    assert_close(layer(x, None, Span(memory=Memory(memory, count))).y, wanted, rtol=1e-12, atol=1e-13)


def test_a_state_keeps_the_projected_memory_and_gradients_reach_it() -> None:
    layer = build(n_heads=4, n_kv_heads=2, d_head=3, d_value=5)
    x, memory = random(2, T, D), random(2, S, D, seed=1)
    source = Memory(memory, torch.tensor([5, 2]))
    whole = layer(x, None, Span(memory=source)).y
    state = layer.init_state(2, memory=source)
    assert state.keys.shape == (2, S, 2, 3)
    assert state.values.shape == (2, S, 2, 5)
    pieces = []
    for chunk in x.split([1, 0, 2, 1], dim=1):
        out = layer(chunk, state)
        pieces.append(out.y)
        state = out.state
    assert state.clock.seen.tolist() == [T, T]
    chunked = torch.cat(pieces, 1)
    assert_close(chunked, whole, rtol=1e-12, atol=1e-13)
    assert_close(torch.autograd.grad(chunked.square().sum(), memory), torch.autograd.grad(whole.square().sum(), memory),
                 rtol=1e-10, atol=1e-12)


def test_padding_of_the_source_is_not_read() -> None:
    layer, x, memory = build(), random(1, T, D), random(1, S, D, seed=1)
    changed = memory.detach().clone()
    changed[:, 3:] = 1e6
    counted = [layer(x, None, Span(memory=Memory(h, torch.tensor([3])))).y for h in (memory, changed)]
    assert_close(counted[0], counted[1], rtol=0, atol=0)


def test_weights_are_dropped_only_in_training() -> None:
    layer, plain = build(scores={"dropout": 0.5}), build()
    x, span = random(1, T, D), Span(memory=Memory(random(1, S, D, seed=1)))
    wanted = plain(x, None, span).y
    assert_close(layer(x, None, span).y, wanted, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(layer.train()(x, None, span).y, wanted, rtol=1e-3)


def test_a_memory_is_required() -> None:
    with pytest.raises(InputError, match=r"memory: cross-attention has no memory to read. Give memory= to init_state,"):
        build()(random(1, T, D))
    with pytest.raises(InputError, match=r"memory: cross-attention has no memory to read."):
        build().init_state(1)


def test_a_memory_of_other_rows_is_refused() -> None:
    source = Memory(random(2, S, D))
    with pytest.raises(InputError, match=r"the memory has 2 rows for 3 rows of tokens. Give one source for each row."):
        build().init_state(3, memory=source)
    with pytest.raises(InputError, match=r"the memory has 2 rows for 1 rows of tokens. Give one source for each row."):
        build()(random(1, T, D), None, Span(memory=source))


@pytest.mark.parametrize(("fields", "message"), [
    ({"n_heads": 4}, "mixer.n_heads: d_model 6 does not divide into 4 heads. Choose another number of heads, or give "
     "d_head."),
    ({"n_kv_heads": 3}, "mixer.n_kv_heads: 2 query heads do not divide into 3 key/value heads. Choose n_kv_heads among "
     "the divisors of n_heads."),
    ({"backend": "sdpa", "scores": {"softcap": 1.0}}, "mixer.backend: the form 'sdpa' cannot express a softcap. Use "
     "'auto' or 'reference'."),
])
def test_pairs_that_do_not_fit(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(CrossAttentionConfig, {"n_heads": 2, **fields}).build(Dims(D, path="mixer"))
    assert caught.value.problems == (message,)


@pytest.mark.parametrize("steps", [1, 3])
def test_decoding_projects_the_memory_once(steps: int) -> None:
    """By the products of matrices that read the source: one when the state starts, none in a step of any length. The
    reference form, since not every fused kernel is counted."""
    decoder = build(backend="reference")
    memory, rows = Memory(random(1, S, D)), []

    def count(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        rows.append(inputs[0].shape[1])

    for projection in (decoder.q, decoder.kv, decoder.output):
        projection.register_forward_pre_hook(count)
    with torch.no_grad():
        state = decoder.init_state(1, memory=memory)
        assert rows == [S]
        keys, values = state.keys, state.values
        for _ in range(4):
            rows.clear()
            with FlopCounterMode(display=False) as flops:
                state = decoder(random(1, steps, D), state).state
            assert rows == [steps, steps], "queries and outputs alone"
            assert state.keys is keys and state.values is values
            projections, pairs = 2 * 2 * steps * D * D, 2 * 2 * steps * S * D
            assert flops.get_total_flops() == projections + pairs


def test_a_whole_decoder_projects_each_source_once_in_each_layer() -> None:
    """A row of eight tokens, one by one: the encoder runs once, and each layer multiplies the memory once."""
    model = parse_model(EncoderDecoderConfig.examples()[0].dump()).build().double().eval()
    calls: list[str] = []
    crossing = {name: part for name, part in model.named_modules() if isinstance(part, CrossAttention)}
    for name, part in crossing.items():
        part.kv.register_forward_pre_hook(lambda module, inputs, name=name: calls.append(name))
    with torch.no_grad():
        memory = model.encode(EncoderInputs(tokens=torch.arange(5)[None] % model.source_vocab_size))
        state = model.init_state(1, memory=memory)
        for token in range(8):
            state = model(torch.tensor([[token % model.vocab_size]]), state).state
    assert crossing and sorted(calls) == sorted(crossing)
