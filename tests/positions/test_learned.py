"""Learned positions: the row of each token's position, gradients, and what lies beyond the table."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.core.clock import Clock, Ticks
from weft.core.config import parse
from weft.core.errors import ConfigError, InputError
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.positions.learned import LearnedPosition, LearnedPositionConfig

BEYOND = (r"position: a position lies outside the table of 6 learned positions, 0 to 5. "
          r"Give documents of at most 6 tokens, train with a greater max_length")


def build(length: int = 6) -> LearnedPosition:
    return parse(LearnedPositionConfig, {"max_length": length, "std": 0.5}).build(Dims(4)).double()


def ticks_of(x: Tensor, clock: Clock | None = None, **facts: Any) -> Ticks:
    return Span(**facts).resolve(clock, x).ticks


def zeros(batch: int, steps: int) -> Tensor:
    return torch.zeros(batch, steps, 4, dtype=torch.float64)


def test_adds_the_vector_of_each_row_s_position() -> None:
    learned, x = build(), torch.randn(2, 3, 4, dtype=torch.float64)
    clock = Clock.start(2).replace(seen=torch.tensor([3, 11]), begin=torch.tensor([0, 10]))
    added = learned.embed(x, ticks_of(x, clock))
    for row, first in ((0, 3), (1, 1)):
        assert torch.equal(added[row], x[row] + learned.table[first:first + 3])


def test_values_and_gradients_equal_an_embedding_table_and_padding_gets_none() -> None:
    learned, x = build(), torch.randn(2, 4, 4, dtype=torch.float64)
    foreign = nn.Embedding.from_pretrained(learned.table.detach().clone(), freeze=False)
    cotangent = torch.randn(2, 4, 4, dtype=torch.float64)
    valid = torch.tensor([[True] * 4, [True, False, False, False]])
    learned.embed(x, ticks_of(x, count=torch.tensor([4, 1])))[valid].mul(cotangent[valid]).sum().backward()
    (x + foreign(torch.arange(4)))[valid].mul(cotangent[valid]).sum().backward()
    torch.testing.assert_close(learned.table.grad, foreign.weight.grad, rtol=1e-14, atol=0)
    assert torch.equal(learned.table.grad[4:], torch.zeros(2, 4, dtype=torch.float64))


def test_the_table_starts_normal_with_the_given_deviation() -> None:
    torch.manual_seed(0)
    table = LearnedPositionConfig(max_length=500, std=0.02).build(Dims(40)).table
    assert table.std().item() == pytest.approx(0.02, rel=0.02)  # 20000 draws: 0.5% standard error
    assert abs(table.mean().item()) < 0.001


def test_its_limit_is_the_table_s_length_or_the_model_s_context() -> None:
    assert build(6).limit == 6
    assert LearnedPositionConfig().build(Dims(4, context=12)).limit == 12


def test_rows_before_the_offset_are_those_of_negative_coordinates() -> None:
    learned = parse(LearnedPositionConfig, {"max_length": 6, "offset": 2}).build(Dims(4)).double()
    x = zeros(1, 3)
    assert torch.equal(learned.embed(x, ticks_of(x, coordinates=torch.tensor([[-1, 0, -2]])))[0],
                       learned.table[[1, 2, 0]])
    with pytest.raises(InputError, match=BEYOND):
        learned.embed(x, ticks_of(x, coordinates=torch.tensor([[-3, 0, 1]])))


def test_rows_before_the_offset_are_never_read() -> None:
    config = parse(LearnedPositionConfig, {"max_length": 6, "offset": 2})
    learned = config.build(Dims(4)).double()
    assert learned.table.shape == (8, 4)
    assert learned.limit == 6
    x = zeros(1, 6)
    added = learned.embed(x, ticks_of(x))
    assert torch.equal(added[0], learned.table[2:])
    added.sum().backward()
    assert learned.table.grad is not None
    assert learned.table.grad.tolist() == [[0.0] * 4] * 2 + [[1.0] * 4] * 6
    with pytest.raises(InputError, match=BEYOND):
        learned.embed(zeros(1, 7), ticks_of(zeros(1, 7)))


def test_a_document_beyond_the_table_is_refused_whole_or_by_steps() -> None:
    learned = build(6)
    assert torch.equal(learned.embed(zeros(1, 6), ticks_of(zeros(1, 6)))[0], learned.table)
    with pytest.raises(InputError, match=BEYOND):
        learned.embed(zeros(1, 7), ticks_of(zeros(1, 7)))
    clock = Clock.start(2).replace(seen=torch.tensor([2, 6]))
    with pytest.raises(InputError, match=BEYOND):
        learned.embed(zeros(2, 1), ticks_of(zeros(2, 1), clock))
    with pytest.raises(InputError, match=BEYOND):
        learned.embed(zeros(1, 1), ticks_of(zeros(1, 1), coordinates=torch.tensor([[-1]])))


def test_padding_beyond_the_table_does_not_count() -> None:
    learned, clock = build(6), Clock.start(2).replace(seen=torch.tensor([5, 6]))
    ticks = ticks_of(zeros(2, 3), clock, count=torch.tensor([1, 0]))
    assert torch.equal(learned.embed(zeros(2, 3), ticks)[0, 0], learned.table[5])


def test_packed_documents_each_begin_at_the_first_vector() -> None:
    learned, begins = build(6), torch.zeros(1, 9, dtype=torch.bool)
    begins[0, 5] = True
    added = learned.embed(zeros(1, 9), ticks_of(zeros(1, 9), begins=begins))[0]
    assert torch.equal(added, torch.cat([learned.table[:5], learned.table[:4]]))


def test_compiled_code_asserts_instead_of_reading_past_the_table() -> None:
    learned = build(6)

    def call(x: Tensor, coordinates: Tensor) -> Tensor:
        return learned.embed(x, Span(coordinates=coordinates).resolve(None, x).ticks)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(zeros(1, 2), torch.tensor([[5, 0]]))[0], learned.table[[5, 0]])
    with pytest.raises(RuntimeError, match=BEYOND):
        compiled(zeros(1, 2), torch.tensor([[0, 6]]))


def test_fractional_coordinates_are_refused() -> None:
    with pytest.raises(InputError, match=r"span.coordinates: learned needs whole positions, got coordinates of "
                                         r"torch.float32. Give integer coordinates."):
        build().embed(zeros(1, 2), ticks_of(zeros(1, 2), coordinates=torch.tensor([[0.0, 0.5]])))


def test_a_table_without_a_length_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model.position.max_length: a table of positions needs a length, and the "
                                          r"model declares no context. Give max_length, or the model's context."):
        LearnedPositionConfig().build(Dims(4, path="model.position"))
    with pytest.raises(ConfigError, match=r"max_length: .*greater than 0, got 0"):
        parse(LearnedPositionConfig, {"max_length": 0})
