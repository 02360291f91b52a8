"""Rows that are admitted and retired in place, memory that is given back, marks: the operations themselves. That any
part's rows go on as they would alone is the laws' (`weft.laws.serving`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from weft.core.clock import Clock
from weft.core.config import parse
from weft.core.errors import StateError
from weft.core.layer import LayerState
from weft.core.rows import admit, cut_out, mark, retire, rewind, trim
from weft.core.span import Span
from weft.core.state import child_field, concat, fact_field, tensor_field
from weft.models.decoder import Decoder, DecoderConfig


@dataclass(frozen=True)
class Cache(LayerState):
    """Every sort of field: growing with tokens or with the source, bounded, as the calls gave it, and the room."""

    keys: Tensor = tensor_field(grows=1, fill=-7.0)
    source: Tensor = tensor_field(grows=1, along="source")
    total: Tensor = tensor_field(keeps_dtype=True)
    places: Tensor = tensor_field(grows=1, as_given=True)
    room: int | None = fact_field(saved=int, room=True)


@dataclass(frozen=True)
class Two(LayerState):
    """Two caches on one clock."""

    layers: tuple[Cache, ...] = child_field()


def state(rows: int, slots: int, value: float, *, room: int | None = None, source: int = 2, seen: int = 1) -> Two:
    clock = Clock.start(rows, horizon=9).replace(seen=torch.full((rows,), seen), fresh=False)

    def cache(offset: float) -> Cache:
        def full(*shape: int) -> Tensor:
            return torch.full((rows, *shape), value + offset)

        return Cache(clock, full(slots, 2), full(source, 1), full(3), full(slots).long(), room)

    return Two(clock, (cache(0), cache(0.5)))


def addresses(given: Two) -> list[int]:
    return [tensor.data_ptr() for tensor, _ in given.tensors().values()]


def test_admitted_rows_are_written_into_the_batch_s_own_tensors() -> None:
    batch, row = state(3, 4, 1.0, room=4, seen=4), state(1, 2, 9.0, room=2, source=1, seen=2)
    before = addresses(batch)
    with torch.no_grad():
        after = admit(batch, [1], row)
    assert addresses(after) == before and after.clock is after.layers[0].clock
    assert after.clock.seen.tolist() == [4, 2, 4]
    assert after.layers[1].keys[1].tolist() == [[9.5, 9.5], [9.5, 9.5], [-7.0, -7.0], [-7.0, -7.0]]
    assert after.layers[0].source[1].tolist() == [[9.0], [0.0]]
    assert after.layers[0].places[1].tolist() == [9, 9, 0, 0]
    assert_close(after.layers[0].keys[[0, 2]], torch.ones(2, 4, 2), rtol=0, atol=0)
    assert after.layers[0].room == 4
    assert row.layers[0].keys.unique().tolist() == [9.0]


def test_the_batch_that_was_written_into_is_consumed_and_the_rows_are_not() -> None:
    batch, row = state(2, 2, 1.0), state(1, 2, 9.0)
    with torch.no_grad():
        after = admit(batch, [0], row)
        admit(after.clone(), [1], row)
        with pytest.raises(StateError, match=r"an earlier call has consumed this state"):
            batch.clone()
        with pytest.raises(StateError, match=r"an earlier call has consumed this state"):
            concat([row, batch])
        assert retire(after, [0]).clone().clock.seen.tolist() == [0, 1]


def test_with_gradients_every_state_is_a_new_value_through_which_they_flow() -> None:
    batch, row = state(2, 3, 1.0), state(1, 2, 9.0)
    keys = row.layers[0].keys.clone().requires_grad_()
    row = row.replace(layers=(replace(row.layers[0], keys=keys), row.layers[1]))
    after = admit(batch, torch.tensor([1]), row)
    assert batch.layers[0].keys.unique().tolist() == [1.0]
    assert after.layers[0].keys[1].tolist() == [[9.0, 9.0], [9.0, 9.0], [-7.0, -7.0]]
    after.layers[0].keys.sum().backward()
    assert keys.grad is not None and keys.grad.unique().tolist() == [1.0]
    assert retire(batch, [1]).clock.seen.tolist() == [1, 0] and batch.clock.seen.tolist() == [1, 1]


def test_what_has_no_declared_room_is_lengthened_and_so_is_the_source() -> None:
    with torch.no_grad():
        after = admit(state(2, 1, 1.0, source=1), [0], state(1, 3, 9.0, source=4))
    assert after.layers[0].keys.shape == (2, 3, 2) and after.layers[0].source.shape == (2, 4, 1)
    assert after.layers[0].keys[1].tolist() == [[1.0, 1.0], [-7.0, -7.0], [-7.0, -7.0]]


def test_retired_rows_begin_again_and_keep_their_declared_length() -> None:
    batch = state(3, 2, 1.0, seen=5)
    before = addresses(batch)
    with torch.no_grad():
        after = retire(batch, [0, 2])
    assert after.clock.seen.tolist() == [0, 5, 0] and after.clock.horizon.tolist() == [9, 9, 9]
    assert addresses(after) == before


def test_trimming_gives_memory_back_and_leaves_the_rest_where_it_is() -> None:
    batch = state(2, 64, 1.0, room=64, seen=3)
    total, size = batch.layers[0].total.data_ptr(), batch.nbytes()
    with torch.no_grad():
        small = trim(batch)
    assert small.layers[1].keys.shape == (2, 3, 2) and small.layers[1].places.shape == (2, 3)
    assert small.layers[0].source.shape == (2, 2, 1) and small.layers[0].total.data_ptr() == total
    assert small.layers[0].room == 3
    # 61 of 64 slots of two caches go: in each two float32 and one whole number for each of two rows.
    assert size - small.nbytes() == 61 * 2 * 2 * (2 * 4 + 8)
    with torch.no_grad():
        wide = trim(small, 5)
    assert wide.layers[0].keys[0, :, 0].tolist() == [1.0, 1.0, 1.0, -7.0, -7.0] and wide.layers[0].room == 5


@pytest.mark.parametrize("room", [None, 64])
def test_a_row_that_is_cut_out_is_what_choosing_and_trimming_it_gives(room: int | None) -> None:
    batch = state(3, 64, 1.0, room=room, seen=3)
    batch = replace(batch, clock=batch.clock.replace(seen=torch.tensor([3, 5, 64])))
    batch = replace(batch, layers=tuple(replace(each, clock=batch.clock) for each in batch.layers))
    with torch.no_grad():
        for row in range(3):
            found, expected = cut_out(batch, row), trim(batch.select([row]))
            for (one, spec), (other, _) in zip(found.tensors().values(), expected.tensors().values(), strict=True):
                assert torch.equal(one, other) and one.is_contiguous(), spec
            assert found.layers[0].room == expected.layers[0].room and found.clock is found.layers[1].clock
        first = cut_out(batch, 1, 2)
    assert first.clock.seen.tolist() == [2] and first.layers[0].keys.shape == (1, 2, 2)
    assert not set(addresses(cut_out(batch, 0))) & set(addresses(batch)), "they share no memory"


def test_a_mark_copies_what_is_bounded_and_brings_it_back_in_place() -> None:
    batch = state(2, 4, 1.0, room=4, seen=2)
    before = addresses(batch)
    with torch.no_grad():
        here = mark(batch)
        # The clock's four numbers and two totals of three; nothing of keys, places and source.
        assert here.nbytes() == 2 * (4 * 8 + 2 * 3 * 4)
        for layer in batch.layers:
            layer.total.fill_(5.0)
            layer.keys[:, 2:] = 5.0
        batch.clock.seen.add_(2)
        after = rewind(batch, here)
    assert addresses(after) == before
    assert after.clock.seen.tolist() == [2, 2]
    assert after.layers[1].total.unique().tolist() == [1.5]
    assert after.layers[1].keys[:, :2].unique().tolist() == [1.5]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_of_another_dtype_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(StateError, match=rf"admit: rows of dtype {dtype} for a batch of torch.float32\. Start both"):
        admit(state(2, 1, 1.0), [0], state(1, 1, 1.0).to(dtype=dtype))


def test_more_than_the_batch_has_room_for_is_refused_until_it_is_trimmed() -> None:
    batch, row = state(2, 4, 1.0, room=4), state(1, 6, 9.0, room=6, seen=3)
    with pytest.raises(StateError, match=r"admit: a row of 6 slots for a batch with room for 4 tokens a row\. "
                                         r"Start the batch with a larger capacity, or trim\(\) the row first"):
        admit(batch, [0], row)
    assert admit(batch, [0], trim(row)).clock.seen.tolist() == [3, 1]


def test_rows_of_any_capacity_are_joined() -> None:
    assert concat([state(1, 2, 1.0, room=2), state(1, 5, 1.0, room=5)]).layers[0].room == 5
    assert concat([state(1, 2, 1.0, room=2), state(1, 5, 1.0)]).layers[0].room is None


@pytest.mark.parametrize(("rows", "message"), [
    ([2], r"admit: a row outside a state of 2 rows\. Give rows from 0 to 1"),
    ([-1], r"admit: a row outside a state of 2 rows"),
    ([0, 1], r"admit: 2 places for a state of 1 rows\. Give one place for each row"),
    ([0, 0], r"admit: a row given twice: \[0, 0\]\. Give every row once"),
])
def test_places_that_do_not_fit_are_refused(rows: list[int], message: str) -> None:
    with pytest.raises(StateError, match=message):
        admit(state(2, 1, 1.0), rows, state(1, 1, 9.0))


def test_coordinates_of_another_shape_are_refused() -> None:
    row = state(1, 1, 9.0)
    row = row.replace(layers=tuple(replace(each, places=torch.zeros(1, 1, 3, dtype=torch.int64))
                                   for each in row.layers))
    with pytest.raises(StateError, match=r"admit: \[3\] coordinates a token, and the batch has one\. Admit rows whose"):
        admit(state(2, 1, 1.0), [0], row)


def test_errors_of_trim_retire_and_rewind() -> None:
    with pytest.raises(StateError, match=r"trim: room for 1 tokens, and a row has read 3\. Give 3 or more, or retire"):
        trim(state(2, 4, 1.0, seen=3), 1)
    with pytest.raises(StateError, match=r"retire: a row outside a state of 2 rows"):
        retire(state(2, 4, 1.0), [2])
    with pytest.raises(StateError, match=r"rewind: a mark of 1 rows for a state of 2\. Rewind the state that went on"):
        rewind(state(2, 4, 1.0), mark(state(1, 4, 1.0)))


def model(**fields: object) -> Decoder:
    data = {"vocab_size": 7, "d_model": 4, "blocks": [{"kind": "pre", "layers": ["gru"]}], **fields}
    return parse(DecoderConfig, data).build().double()


def started(one: Decoder) -> LayerState:
    with torch.no_grad():
        after = one.hidden(torch.ones(1, 3, dtype=torch.int64), one.init_state(1), Span()).state
    assert after is not None
    return after


@pytest.mark.parametrize("other", [
    {"d_model": 6}, {"norm": "rmsnorm"}, {"blocks": [{"kind": "pre", "layers": ["gru", "gru"]}]},
    {"blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2}]}]}])
def test_rows_of_another_model_are_one_clear_error(other: dict[str, object]) -> None:
    batch, row = model().init_state(2), started(model(**other))
    wanted = (r"^owner: the states are of different models: '\w+' and '\w+'\. "
              r"Bring together only states that one model's init_state began\.$")
    here = mark(batch.select([0]))
    for work in (lambda: admit(batch, [0], row), lambda: concat([batch, row]), lambda: rewind(row, here)):
        with pytest.raises(StateError, match=wanted):
            work()


def test_states_of_layers_are_told_apart_by_their_shapes() -> None:
    one, other = state(2, 1, 1.0), state(1, 1, 1.0)
    less = other.replace(layers=other.layers[:1])
    with pytest.raises(StateError, match=r"^layers: the states are of different models: 1 layers and 2 layers\."):
        admit(one, [0], less)
    wide = other.replace(layers=(replace(other.layers[0], total=torch.zeros(1, 4)), other.layers[1]))
    with pytest.raises(StateError, match=r"^layers\.0\.total: .*shape \('any', 3\) and shape \('any', 4\)"):
        admit(one, [0], wide)
