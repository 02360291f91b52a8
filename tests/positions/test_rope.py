"""RoPE as a scheme: positions from the ticks, relative property, precision, LongRoPE's choice, errors."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import rope as rope_oracle
from oracles import rope_frequencies
from weft.core.clock import Clock, Ticks
from weft.core.config import parse
from weft.core.declarations import Trait
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.layer import traits_of
from weft.core.part_config import Dims, Shared
from weft.core.span import Span
from weft.positions.base import PositionScheme
from weft.positions.longrope import LongRopeConfig
from weft.positions.rope import Rope, RopeConfig

DIMS = Dims(d_model=8, path="mixer.position")
SHORT, LONG = (1.0, 1.5, 2.0), (1.0, 4.0, 8.0)
LONGROPE = LongRopeConfig(short_factor=SHORT, long_factor=LONG, original_length=6, extended_length=24)


def build(d_head: int = 6, **fields: Any) -> Rope:
    return parse(RopeConfig, fields).build_for_heads(DIMS, 2, d_head)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ticks_of(x: Tensor, clock: Clock | None = None, **facts: Any) -> Ticks:
    return Span(**facts).resolve(clock, x).ticks


def at(*positions: float) -> Ticks:
    """Ticks of one row with those coordinates."""
    return ticks_of(torch.zeros(1, len(positions), 1), coordinates=torch.tensor([positions], dtype=torch.float64))


@pytest.mark.parametrize("layout", ["interleaved", "half_split"])
@pytest.mark.parametrize(("base", "rot"), [(10000.0, None), (500000.0, None), (50.0, 4)])
def test_turns_by_position_in_the_document(layout: str, base: float, rot: int | None) -> None:
    x = randn(2, 5, 3, 6)
    clock = Clock.start(2).replace(seen=torch.tensor([3, 40]), begin=torch.tensor([1, 30]))
    turned = build(layout=layout, base=base, rot=rot).rotate(x, ticks_of(x, clock))
    theta = rope_frequencies.base_frequencies(rot or 6, base)
    for row, first in ((0, 2), (1, 10)):
        for head in range(3):
            wanted = rope_oracle.rope_partial(x[row, :, head].numpy(), np.arange(first, first + 5), theta, layout)
            np.testing.assert_allclose(turned[row, :, head].numpy(), wanted, rtol=1e-12, atol=1e-13)


def test_positions_restart_with_each_document() -> None:
    x, begins = randn(1, 5, 2, 6), torch.tensor([[False, False, True, False, False]])
    rope = build()
    packed = rope.rotate(x, ticks_of(x, begins=begins))
    apart = torch.cat([rope.rotate(part, ticks_of(part)) for part in x.split([2, 3], dim=1)], dim=1)
    # Of arrays of other lengths a library may work out sines by other instructions: a few last bits.
    torch.testing.assert_close(packed, apart, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("fields", [{}, {"layout": "half_split", "rot": 4}, {"scaling": LONGROPE}])
def test_scores_depend_on_the_distance_alone(fields: dict[str, Any]) -> None:
    rope, q, k = build(**fields), randn(1, 1, 1, 6), randn(1, 1, 1, 6, seed=1)

    def score(m: float, n: float) -> Tensor:
        return (rope.rotate(q, at(m)) * rope.rotate(k, at(n))).sum()

    for m, n, shift in ((3.0, 1.0, 1000.0), (0.0, 7.0, 12.5), (2.0, 2.0, 99.0)):
        torch.testing.assert_close(score(m + shift, n + shift), score(m, n), rtol=1e-11, atol=1e-11)
    assert (score(4.0, 1.0) - score(3.0, 1.0)).abs() > 1e-2


@pytest.mark.parametrize("layout", ["interleaved", "half_split"])
@pytest.mark.parametrize("first", [30, 100_000])
def test_a_bf16_model_keeps_float32_angles_and_rounds_once(layout: str, first: int) -> None:
    """An angle of m radians is right to m 2^-23 in float32 (0.012 at 100 000), to hundreds of radians in bf16."""
    rope = build(layout=layout)
    cast = copy.deepcopy(rope).to(torch.bfloat16)
    x = randn(1, 4, 2, 6).to(torch.bfloat16)
    ticks = ticks_of(x, coordinates=torch.arange(first, first + 4)[None])
    exact, turned = rope.rotate(x.double(), ticks), cast.rotate(x, ticks)
    assert turned.dtype == torch.bfloat16
    by_angle = first * 2.0**-23 * x.double().norm(dim=-1, keepdim=True)  # no pair is longer than its head
    assert ((turned.double() - exact).abs() <= exact.abs() * 2.0**-8 + by_angle + 1e-5).all()


def test_frequencies_survive_casting_and_empty_initialisation_and_are_not_saved() -> None:
    x = randn(1, 4, 2, 6)
    rope, fresh = build(scaling=LONGROPE), build(scaling=LONGROPE)
    emptied = fresh.to("meta").to_empty(device="cpu").half().float()
    assert torch.equal(emptied.rotate(x.float(), ticks_of(x)), rope.rotate(x.float(), ticks_of(x)))
    assert torch.equal(copy.deepcopy(rope).bfloat16().double().rotate(x, ticks_of(x)), rope.rotate(x, ticks_of(x)))
    assert rope.state_dict() == {}


def test_fractional_coordinates_turn_and_have_gradients() -> None:
    x, place = randn(1, 1, 1, 6), torch.tensor([[2.5]], dtype=torch.float64, requires_grad=True)
    turned = build().rotate(x, ticks_of(x, coordinates=place))
    theta = rope_frequencies.base_frequencies(6)
    np.testing.assert_allclose(turned[0, :, 0].detach().numpy(),
                               rope_oracle.rope_interleaved(x[0, :, 0].numpy(), np.array([2.5]), theta), rtol=1e-12)
    turned.sum().backward()
    near = [rope_oracle.rope_interleaved(x[0, :, 0].numpy(), np.array([2.5 + h]), theta).sum() for h in (1e-5, -1e-5)]
    assert place.grad is not None
    assert place.grad.item() == pytest.approx((near[0] - near[1]) / 2e-5, rel=1e-7)


def longrope_oracle(x: Tensor, positions: range, length: int, attention_factor: float | None = None) -> np.ndarray:
    theta, factor = rope_frequencies.longrope(6, 10000.0, SHORT, LONG, 6, 24, length, attention_factor)
    return np.stack([factor * rope_oracle.rope_interleaved(x[:, head].numpy(), np.array(positions), theta)
                     for head in range(x.shape[1])], axis=1)


def test_longrope_chooses_by_each_row_s_own_length() -> None:
    x, rope = randn(3, 9, 2, 6), build(scaling=LONGROPE)
    turned = rope.rotate(x, ticks_of(x, count=torch.tensor([6, 7, 9])))
    for row, length in enumerate((6, 7, 9)):
        wanted = longrope_oracle(x[row, :length], range(length), length)
        np.testing.assert_allclose(turned[row, :length].numpy(), wanted, rtol=1e-12, atol=1e-13)
    wrong = longrope_oracle(x[0, :6], range(6), 7)
    assert np.abs(turned[0, :6].numpy() - wrong).max() > 0.1


def test_longrope_chooses_by_document_and_by_the_declared_length() -> None:
    x, rope = randn(1, 9, 2, 6), build(scaling=LONGROPE)
    begins = torch.zeros(1, 9, dtype=torch.bool)
    begins[0, 2] = True  # documents of 2 and 7 tokens
    packed = rope.rotate(x, ticks_of(x, begins=begins))[0]
    np.testing.assert_allclose(packed[:2].numpy(), longrope_oracle(x[0, :2], range(2), 2), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(packed[2:].numpy(), longrope_oracle(x[0, 2:], range(7), 7), rtol=1e-12, atol=1e-13)

    one = x[:, :1].expand(3, -1, -1, -1)
    clock = Clock.start(3, horizon=torch.tensor([0, 6, 7])).replace(seen=torch.tensor([4, 4, 4]))
    stepped = rope.rotate(one, ticks_of(one, clock))
    for row, length in enumerate((1, 6, 7)):
        np.testing.assert_allclose(stepped[row].numpy(), longrope_oracle(one[row], range(4, 5), length), rtol=1e-12)


def test_longrope_attention_factor() -> None:
    assert LONGROPE.amplitude() == pytest.approx(math.sqrt(1 + math.log(4) / math.log(6)), rel=1e-15)
    assert LONGROPE.model_copy(update={"extended_length": 6}).amplitude() == 1.0
    x = randn(1, 3, 2, 6)
    given = build(scaling=LONGROPE.model_copy(update={"attention_factor": 1.3})).rotate(x, ticks_of(x))
    np.testing.assert_allclose(given[0].numpy(), longrope_oracle(x[0], range(3), 3, 1.3), rtol=1e-12, atol=1e-13)


def test_only_longrope_needs_a_declared_length() -> None:
    assert traits_of(build(scaling=LONGROPE)) == {Trait.DECLARED_LENGTH}
    assert traits_of(build()) == frozenset()


@pytest.mark.parametrize("scaling", ["none", LONGROPE])
def test_compiles_as_one_graph_and_agrees(scaling: Any) -> None:
    class Call(torch.nn.Module):
        def __init__(self, rope: PositionScheme) -> None:
            super().__init__()
            self.rope = rope

        def forward(self, x: Tensor) -> Tensor:
            return self.rope.rotate(x, Span().resolve(None, x).ticks)

    call = Call(build(scaling=scaling))
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for dtype, rtol in ((torch.float32, 1e-6), (torch.float64, 1e-13)):
        x = randn(2, 7, 2, 6).to(dtype)
        torch.testing.assert_close(compiled(x), call(x), rtol=rtol, atol=rtol)


def test_examples_cover_every_option_and_build() -> None:
    examples = RopeConfig.examples()
    assert {example.layout for example in examples} == {"interleaved", "half_split"}
    assert {example.scaling.kind for example in examples} == {"none", "dynamic", "yarn"}
    for example in examples:
        assert parse(RopeConfig, {k: v for k, v in example.dump().items() if k != "kind"}) == example
        example.build_for_heads(DIMS, 2, 4)


def test_n_dimensional_coordinates_are_refused() -> None:
    x = randn(1, 3, 2, 6)
    with pytest.raises(UnsupportedError, match=r"span.coordinates: rope takes one coordinate per token, got 2. "
                                               r"Give coordinates of shape \[B,T\], or use an n-dimensional"):
        build().rotate(x, ticks_of(x, coordinates=torch.zeros(1, 3, 2)))


@pytest.mark.parametrize(("fields", "d_head", "message"), [
    ({"rot": 7}, 7, r"mixer.position.rot: 7 rotary features in heads of d_head 7. Give an even number of at most 7"),
    ({"rot": 8}, 6, r"mixer.position.rot: 8 rotary features in heads of d_head 6. Give an even number of at most 6"),
    ({}, 5, r"mixer.position.rot: 5 rotary features in heads of d_head 5. Give an even number of at most 5"),
    ({"base": 1.0}, 6, r"base: .*greater than 1, got 1.0"),
    ({"layout": "halfsplit"}, 6, r"layout: .*'interleaved' or 'half_split', got 'halfsplit'"),
    ({"scaling": Shared(shared="x")}, 6, r"scaling: no rope_scaling can be shared, got a reference to 'x'. Write it"),
    ({"scaling": "longrop"}, 6, r"no rope_scaling of kind 'longrop'. Did you mean 'longrope'"),
    ({"scaling": LONGROPE}, 8, r"mixer.position.scaling.short_factor: 3 factors for the 4 pairs of 8 rotary features. "
                               r"Give one factor for each pair."),
    ({"scaling": {**LONGROPE.dump(), "long_factor": (1.0, -4.0, 8.0)}}, 6,
     r"long_factor: factors divide frequencies, got \[1.0, -4.0, 8.0\]. Give positive finite numbers."),
])
def test_bad_configurations_name_field_and_remedy(fields: dict[str, Any], d_head: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(d_head, **fields)


def test_outside_attention_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mixer.position: 'rope' rotates queries and keys, so it has no place "
                                          r"outside attention. Put it in the attention's `position`."):
        RopeConfig().build(DIMS)
