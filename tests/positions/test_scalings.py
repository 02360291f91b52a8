"""RoPE's scalings: frequencies and factors against transformers' numbers and the NumPy oracle, gradients, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import rope as rope_oracle
from oracles import rope_frequencies as oracle
from oracles.finite_difference import directional_derivative
from weft.core.clock import Clock, Ticks
from weft.core.config import parse
from weft.core.declarations import Trait
from weft.core.errors import ConfigError
from weft.core.layer import traits_of
from weft.core.part_config import Dims
from weft.core.registry import REGISTRY
from weft.core.span import Span
from weft.positions.rope import Rope, RopeConfig

DIMS = Dims(d_model=8, path="mixer.position")
PHI = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 4.0, 9.0], "original_length": 64}
# fmt: off
# ROPE_INIT_FUNCTIONS of transformers 5.23.0 (float32, 8 digits): R, base, scaling, length, then factor and theta
STORED: list[tuple[int, float, dict[str, Any], int, float, list[float]]] = [
    (12, 1e4, {"kind": "linear", "factor": 4.0}, 9, 1.0,
     [0.25, 0.053860862, 0.011603971, 0.0024999999, 0.00053860858, 0.00011603974]),
    (3, 1e4, {"kind": "linear", "factor": 4.0}, 9, 1.0, [0.25, 0.00053860858]),
    (8, 1e4, {"kind": "dynamic", "factor": 2.0, "original_length": 64}, 64, 1.0, [1.0, 0.1, 0.0099999998, 0.001]),
    (8, 1e4, {"kind": "dynamic", "factor": 2.0, "original_length": 64}, 65, 1.0,
     [1.0, 0.098979525, 0.0097969454, 0.00096969696]),
    (6, 1e4, {"kind": "dynamic", "factor": 4.0, "original_length": 64}, 1000, 1.0, [1.0, 0.0060173892, 3.6208974e-05]),
    (12, 1e4, {"kind": "yarn", "factor": 4.0, "original_length": 64}, 9, 1.138629436111989,
     [1.0, 0.13465215, 0.011603971, 0.0024999999, 0.00053860858, 0.00011603974]),
    (6, 1e4, {"kind": "yarn", "factor": 4.0, "original_length": 64}, 9, 1.138629436111989,
     [1.0, 0.011603971, 0.00053860858]),
    (12, 1e4, {"kind": "yarn", "factor": 32.0, "original_length": 64, "beta_fast": 8.0, "beta_slow": 0.5,
               "truncate": False}, 9, 1.3465735902799727,
     [1.0, 0.11807386, 0.0014504964, 0.00031249999, 6.7326073e-05, 1.4504967e-05]),
    (12, 1e4, {"kind": "yarn", "factor": 40.0, "original_length": 4096, "mscale": 0.707, "mscale_all_dim": 1.0}, 9,
     0.9210423553163399, [1.0, 0.21544345, 0.035102013, 0.0051249997, 0.00057900423, 1.1603974e-05]),
    (12, 1e4, {"kind": "yarn", "factor": 40.0, "original_length": 4096, "attention_factor": 1.25}, 9, 1.25,
     [1.0, 0.21544345, 0.035102013, 0.0051249997, 0.00057900423, 1.1603974e-05]),
    (12, 1e4, {"kind": "yarn", "factor": 0.5, "original_length": 4}, 9, 1.0,  # the ramp ends before the first pair
     [1.0, 0.43088689, 0.092831768, 0.02, 0.0043088687, 0.0009283179]),
    # and here it begins after the last one
    (12, 100.0, {"kind": "yarn", "factor": 8.0, "original_length": 1 << 20}, 9, 1.2079441541679836,
     [1.0, 0.46415889, 0.21544345, 0.1, 0.046415884, 0.021544348]),
    (12, 5e5, {"kind": "llama3", "factor": 8.0, "original_length": 128}, 9, 1.0,
     [1.0, 0.05615408, 0.001574901, 0.00017677668, 1.9842508e-05, 2.2272475e-06]),
    (6, 1e4, {"kind": "llama3", "factor": 32.0, "original_length": 1000, "low_freq_factor": 0.5,
              "high_freq_factor": 8.0}, 9, 1.0, [1.0, 0.042742617, 6.7326073e-05]),
    (8, 1e4, {"kind": "longrope", **PHI, "extended_length": 256}, 64, 1.1547005383792517,
     [1.0, 0.090909094, 0.0083333328, 0.00076923077]),
    (8, 1e4, {"kind": "longrope", **PHI, "extended_length": 256}, 65, 1.1547005383792517,
     [1.0, 0.050000001, 0.0024999999, 0.00011111111]),
    (8, 1e4, {"kind": "longrope", **PHI, "factor": 2.5}, 65, 1.1046815600651139,
     [1.0, 0.050000001, 0.0024999999, 0.00011111111]),
    (8, 1e4, {"kind": "longrope", **PHI, "factor": 0.5}, 5, 1.0, [1.0, 0.090909094, 0.0083333328, 0.00076923077]),
]
# fmt: on
ORACLES: dict[str, tuple[dict[str, Any], Any]] = {
    "linear": ({"factor": 3.0}, lambda d, length: (oracle.linear(d, 50.0, 3.0), 1.0)),
    "ntk": ({"factor": 3.0}, lambda d, length: (oracle.ntk_aware(d, 50.0, 3.0), 1.0)),
    "dynamic": ({"factor": 3.0, "original_length": 4},
                lambda d, length: (oracle.dynamic_ntk(d, 50.0, 3.0, 4, length), 1.0)),
    "yarn": ({"factor": 3.0, "original_length": 16, "beta_fast": 2.0, "beta_slow": 0.5, "truncate": False},
             lambda d, length: oracle.yarn(d, 50.0, 3.0, 16, beta_fast=2.0, beta_slow=0.5, truncate=False)),
    "llama3": ({"factor": 8.0, "original_length": 24}, lambda d, length: (oracle.llama3(d, 50.0, 8.0, 24), 1.0)),
    "longrope": ({"short_factor": [1.0, 1.5], "long_factor": [1.0, 4.0], "original_length": 4, "extended_length": 12},
                 lambda d, length: oracle.longrope(d, 50.0, [1.0, 1.5], [1.0, 4.0], 4, 12, length)),
}


def build(d_head: int, scaling: dict[str, Any], **fields: Any) -> Rope:
    return parse(RopeConfig, {"scaling": scaling, **fields}).build_for_heads(DIMS, 2, d_head)


def declared(length: int) -> Ticks:
    """Ticks of one token of a document that declares ``length`` tokens."""
    return Span(horizon=torch.tensor([length])).resolve(None, torch.zeros(1, 1, 1)).ticks


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("rot", "base", "scaling", "length", "factor", "theta"), STORED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_equal_transformers(rot: int, base: float, scaling: dict[str, Any], length: int, factor: float,
                                   theta: list[float], dtype: torch.dtype) -> None:
    frequencies = build(12, scaling, rot=rot, base=base).frequencies
    found = frequencies.at(declared(length), dtype).flatten()
    assert found.dtype == dtype
    # transformers works in float32; blends of two frequencies lose a few units in the last place there
    np.testing.assert_allclose(found.numpy(), theta, rtol=2e-6)
    assert frequencies.amplitude == pytest.approx(factor, rel=1e-14)


@pytest.mark.parametrize("layout", ["interleaved", "half_split"])
@pytest.mark.parametrize("kind", ORACLES)
def test_each_document_is_turned_by_its_own_length(kind: str, layout: str) -> None:
    """Ragged rows and packed documents below, at and above the trained length, partly turned, with gradients."""
    fields, frequencies = ORACLES[kind]
    rope = build(6, {"kind": kind, **fields}, rot=4, base=50.0, layout=layout)
    x = randn(2, 7, 2, 6).requires_grad_()
    begins = torch.zeros(2, 7, dtype=torch.bool)
    begins[1, 2] = True
    turned = rope.rotate(x, Span(count=torch.tensor([4, 7]), begins=begins).resolve(None, x).ticks)
    weights = randn(2, 7, 2, 6).flip(1)
    for row, first, last in ((0, 0, 4), (1, 0, 2), (1, 2, 7)):
        theta, factor = frequencies(4, last - first)

        def by_hand(part: np.ndarray, theta: Any = theta, factor: float = factor) -> np.ndarray:
            out = rope_oracle.rope_partial(part, np.arange(len(part)), theta, layout)
            out[:, :4] *= factor
            return out

        for head in range(2):
            part, weight = x[row, first:last, head].detach().numpy(), weights[row, first:last, head].numpy()
            np.testing.assert_allclose(turned[row, first:last, head].detach().numpy(), by_hand(part), rtol=1e-12,
                                       atol=1e-13)
            loss = (turned[row, first:last, head] * weights[row, first:last, head]).sum()
            grad = torch.autograd.grad(loss, x, retain_graph=True)[0][row, first:last, head].numpy()
            slope = directional_derivative(by_hand, [part], [weight[::-1]])
            assert (grad * weight[::-1]).sum() == pytest.approx((slope * weight).sum(), rel=1e-9, abs=1e-10)


def test_ntk_slows_the_slowest_pair_by_the_factor_and_leaves_the_fastest() -> None:
    for rot in (3, 4, 6, 64):
        scaled = build(64, {"kind": "ntk", "factor": 8.0}, rot=rot).frequencies.at(declared(1), torch.float64)
        plain = build(64, {"kind": "none"}, rot=rot).frequencies.at(declared(1), torch.float64)
        assert float(scaled[0]) == 1.0
        if rot % 2 == 0:
            assert float(plain[-1] / scaled[-1]) == pytest.approx(8.0, rel=1e-12)


def test_dynamic_scaling_is_continuous_and_keeps_the_slowest_pair_in_its_range() -> None:
    """With s = 1 the slowest pair is slowed by L / L0; undeclared documents (horizon 0) are unscaled."""
    frequencies = build(8, {"kind": "dynamic", "factor": 1.0, "original_length": 10}).frequencies
    slowest = {length: float(frequencies.at(declared(length), torch.float64)[..., -1])
               for length in (0, 1, 10, 11, 20, 40)}
    assert slowest[0] == slowest[1] == slowest[10] == pytest.approx(1e-3, rel=1e-14)
    for length in (11, 20, 40):
        assert slowest[10] / slowest[length] == pytest.approx(length / 10, rel=1e-12)


def test_dynamic_scaling_sees_the_state_s_horizon_and_not_the_chunk() -> None:
    rope = build(4, {"kind": "dynamic", "factor": 2.0, "original_length": 6})
    x = randn(1, 9, 1, 4)
    whole = rope.rotate(x, Span().resolve(None, x).ticks)
    clock = Clock.start(1, horizon=9).replace(seen=torch.tensor([5]))
    part = rope.rotate(x[:, 5:7], Span().resolve(clock, x[:, 5:7]).ticks)
    # Of arrays of other lengths a library may work out sines by other instructions: a few last bits.
    torch.testing.assert_close(part, whole[:, 5:7], rtol=1e-14, atol=1e-14)


def test_who_needs_a_declared_length() -> None:
    for kind, (fields, _) in ORACLES.items():
        traits = {Trait.DECLARED_LENGTH} if kind in ("dynamic", "longrope") else set()
        assert traits_of(build(6, {"kind": kind, **fields}, rot=4)) == traits


def test_an_odd_number_of_features_takes_in_one_more() -> None:
    """GPT-NeoX's quarter of 12 features: exponents divide by 3, and four features are turned."""
    x = randn(1, 2, 1, 12)
    turned = build(12, {"kind": "none"}, rot=3, layout="half_split").rotate(x, Span().resolve(None, x).ticks)
    theta = np.array([1.0, 1e4 ** (-2 / 3)])
    np.testing.assert_allclose(turned[0, :, 0].numpy(),
                               rope_oracle.rope_partial(x[0, :, 0].numpy(), np.arange(2), theta, "half_split"),
                               rtol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"])
def test_examples_are_read_back(kind: str) -> None:
    for example in REGISTRY.get(("rope_scaling",), kind).examples():
        rope = parse(RopeConfig, {"scaling": example.dump()})
        assert rope.scaling == example
        rope.build_for_heads(DIMS, 2, 4)


YARN, LLAMA = {"kind": "yarn", "factor": 4.0, "original_length": 64}, {"kind": "llama3", "factor": 8.0,
                                                                       "original_length": 64}


@pytest.mark.parametrize(("scaling", "rot", "message"), [
    ({"kind": "linear", "factor": 0.0}, 4, r"factor: .*greater than 0, got 0"),
    ({"kind": "linear", "factor": math.inf}, 4, r"factor: .*finite number, got inf"),
    ({"kind": "linear"}, 4, r"factor: .*(missing|required)"),
    ({"kind": "ntk", "factor": 2.0}, 2, r"mixer.position.scaling: 'ntk' does not change the fastest pair, and there is "
                                        r"no other. Rotate at least three features, or use the scaling 'linear'."),
    ({"kind": "dynamic", "factor": 2.0, "original_length": 8}, 2, r"mixer.position.scaling: 'dynamic' does not"),
    ({"kind": "dynamic", "factor": 2.0, "original_length": 0}, 4, r"original_length: .*greater than 0, got 0"),
    ({**YARN, "beta_fast": 1.0}, 4, r"beta_fast: 1.0 turns are not more than beta_slow 1.0. Give a larger beta_fast."),
    ({**YARN, "mscale": 0.7}, 4, r"mscale_all_dim: mscale and mscale_all_dim make the attention factor together, and "
                                 r"this one is missing. Give both or neither."),
    ({**YARN, "mscale_all_dim": 0.7}, 4, r"mscale: mscale and mscale_all_dim make .* Give both or neither."),
    ({**YARN, "mscale": 0.7, "mscale_all_dim": 0.7, "attention_factor": 1.1}, 4,
     r"attention_factor: both it and mscale set the factor on cosines and sines. Give attention_factor, or"),
    ({**LLAMA, "high_freq_factor": 1.0}, 4, r"high_freq_factor: 1.0 turns are not more than low_freq_factor 1.0. Give"),
    ({"kind": "longrope", **PHI, "factor": 2.0, "extended_length": 128}, 8,
     r"factor: both it and extended_length give the extent of the context. Give one of them."),
    ({"kind": "longrope", **PHI}, 8, r"extended_length: the attention factor follows from how far the context was "
                                     r"extended. Give extended_length, factor or attention_factor."),
])
def test_bad_scalings_name_field_and_remedy(scaling: dict[str, Any], rot: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(8, scaling, rot=rot)
