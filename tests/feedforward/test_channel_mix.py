"""RWKV-4's channel mixing against the oracle, in float64; cuts, documents and ragged rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from oracles import rwkv as oracle
from oracles.finite_difference import gradient_agrees
from weft.core.clock import Clock
from weft.core.errors import StateError
from weft.core.layer import LayerState
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.feedforward.channel_mix import ChannelMix, ChannelMixConfig, ChannelMixState

B, T, D, F = 2, 7, 5, 6
NAMES = ["mix_key", "mix_receptance", "key.weight", "value.weight", "receptance.weight"]
EXACT = {"rtol": 1e-12, "atol": 1e-12}
BEGINS = torch.tensor([[0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0]]).bool()


@pytest.fixture
def layer() -> ChannelMix:
    torch.manual_seed(0)
    return ChannelMix(D, F, depth=0.3).double()


def tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("begins", [None, BEGINS])
def test_values_and_gradients_are_the_oracles(layer: ChannelMix, begins: Tensor | None) -> None:
    x = tokens(B, T).requires_grad_()
    parameters = dict(layer.named_parameters())
    arguments = [x, *(parameters[name] for name in NAMES)]
    numbers = [a.detach().numpy() for a in arguments]

    def reference(rows, *weights):
        marks = [None] * B if begins is None else begins.tolist()
        return np.stack([oracle.channel_mixing(row, *weights, begins=m)[0] for row, m in zip(rows, marks, strict=True)])

    y = layer(x, None, Span(begins=begins)).y
    assert_close(y.detach(), torch.from_numpy(reference(*numbers)), **EXACT)
    weight = torch.randn_like(y)
    gradients = [g.numpy() for g in torch.autograd.grad((y * weight).sum(), arguments)]
    assert gradient_agrees(reference, numbers, gradients, np.random.default_rng(0), cotangent=weight.numpy())


@pytest.mark.parametrize("begins", [None, BEGINS])
@pytest.mark.parametrize("cuts", [[0, 0, 3, 5, 5, 7], [0, 2, 3, 7], list(range(T + 1))])
def test_pieces_equal_the_whole_in_values_and_gradients(layer: ChannelMix, begins: Tensor | None,
                                                        cuts: list[int]) -> None:
    x = tokens(B, T).requires_grad_()
    state: LayerState | None = layer.init_state(B)
    outputs = []
    for start, end in pairwise(cuts):
        out = layer(x[:, start:end], state, Span(begins=None if begins is None else begins[:, start:end]))
        outputs.append(out.y)
        state = out.state
    whole, pieces = layer(x, None, Span(begins=begins)).y, torch.cat(outputs, 1)
    weight = torch.randn_like(whole)
    assert_close(pieces, whole, **EXACT)
    for one, other in zip(*(torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])
                            for y in (pieces, whole)), strict=True):
        assert_close(one, other, **EXACT)


def test_the_state_is_the_last_counted_token(layer: ChannelMix) -> None:
    x = tokens(3, T)
    before = layer(tokens(3, 2), layer.init_state(3)).state
    state = layer(x, before, Span(count=torch.tensor([0, 2, T]))).state
    assert isinstance(state, ChannelMixState) and isinstance(before, ChannelMixState)
    assert_close(state.last, torch.stack([before.last[0], x[1, 1], x[2, T - 1]]), rtol=0, atol=0)
    assert state.clock.seen.tolist() == [2, 4, 9]
    full = layer(x, before).state
    assert isinstance(full, ChannelMixState)
    assert full.last.untyped_storage().nbytes() == full.last.numel() * 8  # not a view of the whole chunk


def test_a_bfloat16_state_and_layer_agree_on_the_dtype(layer: ChannelMix) -> None:
    layer = layer.bfloat16()
    x = tokens(B, T).bfloat16()
    first = layer(x[:, :3], layer.init_state(B, dtype=torch.float32))
    assert isinstance(first.state, ChannelMixState) and first.state.last.dtype == torch.float32
    rest = layer(x[:, 3:], first.state).y
    assert_close(rest, layer(x).y[:, 3:], rtol=2**-6, atol=2**-8)  # a matrix product of another shape may round twice


def test_the_mixing_starts_as_a_ramp_that_flattens_with_depth() -> None:
    first = ChannelMixConfig().build(Dims(4, layer=0, n_layers=2))
    second = ChannelMixConfig().build(Dims(4, layer=1, n_layers=2))
    assert_close(first.mix_key.detach(), torch.tensor([0.0, 0.25, 0.5, 0.75]))
    assert_close(second.mix_receptance.detach(), torch.tensor([0.0, 0.5, 0.5**0.5, 0.75**0.5]))
    assert (first.key.out_features, ChannelMixConfig(d_ff=7).build(Dims(4)).key.out_features) == (16, 7)


def test_without_receptance_nothing_multiplies_the_result() -> None:
    """RWKV-7's; the exponent of its ramp is the fourth power of that of the others."""
    torch.manual_seed(0)
    plain = ChannelMixConfig(d_ff=7, receptance=False).build(Dims(4, layer=1, n_layers=2))
    assert_close(plain.mix_key.detach(), (torch.arange(4) / 4) ** 0.5**4)
    x = torch.randn(1, 5, 4)
    before = torch.cat([torch.zeros(1, 1, 4), x[:, :-1]], 1)
    mixed = plain.mix_key * x + (1 - plain.mix_key) * before
    assert_close(plain(x).y, (mixed @ plain.key.weight.T).clamp(min=0) ** 2 @ plain.value.weight.T)
    assert [name for name, _ in plain.named_parameters()] == ["mix_key", "key.weight", "value.weight"]


def test_compiles_without_graph_breaks(layer: ChannelMix) -> None:
    """The training forward and a decoding step."""
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = tokens(B, T)
    assert_close(compiled(x).y, layer(x).y, **EXACT)
    with torch.no_grad():
        state = layer(x[:, :3], layer.init_state(B)).state
        assert_close(compiled(x[:, 3:4], state).y, layer(x).y[:, 3:4], **EXACT)


def test_another_layers_state_is_refused(layer: ChannelMix) -> None:
    with pytest.raises(StateError, match="got a LayerState where this layer keeps a ChannelMixState"):
        layer(tokens(1, 2), LayerState(Clock.start(1)))
