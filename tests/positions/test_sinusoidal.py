"""Sinusoidal positions against the oracle, the shift property, precision, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import positions as oracle
from weft.core.clock import Clock, Ticks
from weft.core.config import parse
from weft.core.errors import ConfigError, UnsupportedError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.positions.sinusoidal import Sinusoidal, SinusoidalConfig


def build(d_model: int = 8, **fields: Any) -> Sinusoidal:
    return parse(SinusoidalConfig, fields).build(Dims(d_model, path="model.position"))


def ticks_of(x: Tensor, clock: Clock | None = None, **facts: Any) -> Ticks:
    return Span(**facts).resolve(clock, x).ticks


@pytest.mark.parametrize(("fields", "wanted"), [
    ({}, oracle.sinusoidal_interleaved),
    ({"layout": "halves"}, oracle.sinusoidal_halves),
    ({"layout": "halves", "exponent": "fairseq"}, oracle.sinusoidal_fairseq),
])
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_adds_the_oracle_s_code_of_each_row_s_positions(fields: dict[str, Any], wanted: Any, base: float) -> None:
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    clock = Clock.start(2).replace(seen=torch.tensor([0, 40]), begin=torch.tensor([0, 33]))
    added = build(base=base, **fields).embed(x, ticks_of(x, clock)) - x
    for row, first in ((0, 0), (1, 7)):
        np.testing.assert_allclose(added[row].numpy(), wanted(range(first, first + 5), 8, base), rtol=1e-12, atol=1e-14)


def test_interleaved_fairseq_is_its_halves_in_pairs() -> None:
    position = torch.tensor([[0, 3, 11]])
    halves = build(layout="halves", exponent="fairseq").code(position, torch.float64)
    pairs = build(exponent="fairseq").code(position, torch.float64)
    assert torch.equal(pairs[..., 0::2], halves[..., :4])
    assert torch.equal(pairs[..., 1::2], halves[..., 4:])


@pytest.mark.parametrize("k", [1, 10, 250])
def test_a_shift_is_one_matrix_for_every_position(k: int) -> None:
    """PE(p + k) = M_k PE(p): M_k fitted on d positions holds at all others."""
    places = torch.arange(400)[None]
    code = build(base=100.0).code(places, torch.float64)[0]
    matrix = torch.linalg.lstsq(code[:20], code[k:k + 20], driver="gelsd").solution
    torch.testing.assert_close(code[:-k] @ matrix, code[k:], rtol=0, atol=1e-9)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(8, dtype=torch.float64), rtol=0, atol=1e-9)


def test_a_bf16_model_adds_the_exact_code_rounded_once() -> None:
    places, x = torch.tensor([[100_000, 100_001]]), torch.zeros(1, 2, 8, dtype=torch.bfloat16)
    added = build().to(torch.bfloat16).embed(x, ticks_of(x, coordinates=places))
    exact = oracle.sinusoidal_interleaved([100_000, 100_001], 8)
    assert added.dtype == torch.bfloat16
    np.testing.assert_allclose(added.double()[0].numpy(), exact, rtol=0, atol=0.012 + 2.0**-9)  # float32 angle, bf16


def test_fractional_coordinates_are_positions() -> None:
    x = torch.zeros(1, 2, 6, dtype=torch.float64)
    added = build(6).embed(x, ticks_of(x, coordinates=torch.tensor([[0.5, 2.25]])))
    np.testing.assert_allclose(added[0].numpy(), oracle.sinusoidal_interleaved([0.5, 2.25], 6), rtol=1e-12)


def test_examples_use_every_option() -> None:
    assert {(e.layout, e.exponent) for e in SinusoidalConfig.examples()} == {
        ("interleaved", "vaswani"), ("halves", "fairseq")}


@pytest.mark.parametrize(("d_model", "fields", "message"), [
    (7, {}, r"model.position: sinusoidal positions come in pairs of features, d_model is 7. Choose an even d_model"),
    (2, {"exponent": "fairseq"}, r"d_model is 2. Choose an even d_model of at least 4."),
    (8, {"base": 1.0}, r"base: .*greater than 1, got 1.0"),
])
def test_bad_configurations_name_field_and_remedy(d_model: int, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(d_model, **fields)


def test_n_dimensional_coordinates_are_refused() -> None:
    x = torch.zeros(1, 3, 8)
    with pytest.raises(UnsupportedError, match=r"span.coordinates: sinusoidal takes one coordinate per token, got 2."):
        build().embed(x, ticks_of(x, coordinates=torch.zeros(1, 3, 2)))
