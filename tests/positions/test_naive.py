"""Naive codes against the oracle, added and concatenated, and what each cannot do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import positions as oracle
from weft.core.clock import Clock, Ticks
from weft.core.config import parse_part
from weft.core.declarations import Trait
from weft.core.errors import ConfigError, InputError, UnsupportedError
from weft.core.layer import traits_of
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.positions.base import PositionScheme
from weft.positions.naive import BinaryCodeConfig, FractionCodeConfig, IntegerCodeConfig, SineCodeConfig

CODES: list[tuple[dict[str, Any], Any]] = [
    ({"kind": "integer"}, oracle.integer_code),
    ({"kind": "binary", "digits": 3}, lambda p: oracle.binary_code(p, 3)),
    ({"kind": "sine", "frequency": 0.7}, lambda p: oracle.sine_code(p, 0.7)),
]


def build(d_model: int = 8, **fields: Any) -> PositionScheme:
    return parse_part(("position",), fields).build(Dims(d_model, path="model.position"))


def ticks_of(x: Tensor, clock: Clock | None = None, **facts: Any) -> Ticks:
    return Span(**facts).resolve(clock, x).ticks


@pytest.mark.parametrize(("fields", "wanted"), CODES)
def test_concatenated_code_stands_behind_the_embedding(fields: dict[str, Any], wanted: Any) -> None:
    scheme = build(**fields, join="concatenate")
    x = torch.randn(2, 5, 8 - scheme.width, dtype=torch.float64)
    clock = Clock.start(2).replace(seen=torch.tensor([0, 9]), begin=torch.tensor([0, 4]))
    y = scheme.embed(x, ticks_of(x, clock))
    for row, first in ((0, 0), (1, 5)):
        code = wanted(range(first, first + 5))
        assert scheme.width == code.shape[1]
        np.testing.assert_allclose(y[row].numpy(), np.concatenate([x[row].numpy(), code], axis=1), rtol=1e-14)


@pytest.mark.parametrize(("fields", "wanted"), CODES)
def test_added_code_is_repeated_along_the_features(fields: dict[str, Any], wanted: Any) -> None:
    scheme, x = build(**fields, join="add"), torch.randn(2, 5, 8, dtype=torch.float64)
    assert scheme.width == 0
    code = wanted(range(5))
    expected = x.numpy() + np.array([[row[d % code.shape[1]] for d in range(8)] for row in code])
    np.testing.assert_allclose(scheme.embed(x, ticks_of(x)).numpy(), expected, rtol=1e-13, atol=1e-14)


def test_fraction_takes_each_document_s_own_length() -> None:
    scheme, x = build(kind="fraction", join="concatenate"), torch.zeros(2, 6, 7, dtype=torch.float64)
    ragged = scheme.embed(x, ticks_of(x, count=torch.tensor([4, 1])))[..., 7:]
    np.testing.assert_allclose(ragged[0, :4].numpy(), oracle.fraction_code(4), rtol=1e-15)
    assert ragged[1, 0].item() == oracle.fraction_code(1).item() == 0.0
    begins = torch.tensor([[False, False, True, False, False, False]]).expand(2, -1)
    packed = scheme.embed(x, ticks_of(x, begins=begins))[0, :, 7:]
    wanted = np.concatenate([oracle.fraction_code(2), oracle.fraction_code(4)])
    np.testing.assert_allclose(packed.numpy(), wanted, rtol=1e-15)


def test_fraction_in_chunks_needs_the_declared_length() -> None:
    scheme, x = build(kind="fraction", join="add"), torch.zeros(2, 1, 8, dtype=torch.float64)
    clock = Clock.start(2, horizon=torch.tensor([5, 9])).replace(seen=torch.tensor([4, 4]))
    assert scheme.embed(x, ticks_of(x, clock))[:, 0, 0].tolist() == [1.0, 0.5]
    message = (r"position: a position lies beyond the length that its document declares. "
               r"Start the state with the document's length \(init_state\(horizon=...\)\).")
    for horizon in (0, 4):
        clock = Clock.start(2, horizon=horizon).replace(seen=torch.tensor([4, 4]))
        with pytest.raises(InputError, match=message):
            scheme.embed(x, ticks_of(x, clock))
    idle = ticks_of(x, Clock.start(2).replace(seen=torch.tensor([4, 4])), count=torch.tensor([0, 0]))
    assert torch.isfinite(scheme.embed(x, idle)).all()


def test_only_the_fraction_declares_a_length() -> None:
    assert traits_of(build(kind="fraction")) == {Trait.DECLARED_LENGTH}
    assert all(traits_of(build(**fields)) == frozenset() for fields, _ in CODES)


def test_why_each_code_fails() -> None:
    places = torch.arange(64)[None]

    def code(kind: str, **fields: Any) -> Tensor:
        scheme = build(kind=kind, join="concatenate", **fields)
        x = torch.zeros(1, 64, 8 - scheme.width, dtype=torch.float64)
        return scheme.embed(x, ticks_of(x, coordinates=places))[0, :, 8 - scheme.width:]

    assert code("integer").max() == 63.0  # grows with the document
    assert (code("binary", digits=6)[31] - code("binary", digits=6)[32]).abs().sum() == 6.0  # neighbours far apart
    assert torch.equal(code("binary", digits=3)[3], code("binary", digits=3)[11])  # the code repeats
    wave = code("sine", frequency=0.5)[:, 0]
    assert (wave[:, None] - wave[None]).abs().add(torch.eye(64)).min() < 1e-2  # different positions, one value


def test_a_code_stands_beside_the_embedding_unless_it_is_to_be_added() -> None:
    assert {build(**fields).width for fields, _ in CODES} == {1, 3}
    assert {build(**fields, join="add").width for fields, _ in CODES} == {0}


def test_examples_use_every_option() -> None:
    for config in (IntegerCodeConfig, FractionCodeConfig, BinaryCodeConfig, SineCodeConfig):
        assert {example.join for example in config.examples()} == {"add", "concatenate"}


@pytest.mark.parametrize(("d_model", "fields", "message"), [
    (4, {"kind": "binary", "digits": 4, "join": "concatenate"},
     r"model.position: a position code of 4 features does not fit into d_model 4. Use at most 3 features"),
    (2, {"kind": "binary", "digits": 3, "join": "add"},
     r"3 features does not fit into d_model 2. Use at most 2 features"),
    (8, {"kind": "binary", "digits": 63}, r"digits: .*less than or equal to 62, got 63"),
    (8, {"kind": "sine", "frequency": 0.0}, r"frequency: .*greater than 0, got 0.0"),
    (8, {"kind": "integer", "join": "multiply"}, r"join: .*'add' or 'concatenate', got 'multiply'"),
])
def test_bad_configurations_name_field_and_remedy(d_model: int, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(d_model, **fields)


@pytest.mark.parametrize("kind", ["integer", "fraction", "sine", "binary"])
def test_n_dimensional_coordinates_are_refused(kind: str) -> None:
    x = torch.zeros(1, 3, 8)
    with pytest.raises(UnsupportedError, match=rf"span.coordinates: {kind} takes one coordinate per token, got 2."):
        build(kind=kind).embed(x, ticks_of(x, coordinates=torch.zeros(1, 3, 2)))


def test_binary_digits_need_whole_positions() -> None:
    x = torch.zeros(1, 2, 8)
    with pytest.raises(InputError, match=r"span.coordinates: binary needs whole positions, got coordinates of "):
        build(kind="binary").embed(x, ticks_of(x, coordinates=torch.tensor([[0.0, 0.5]])))
