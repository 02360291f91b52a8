"""Operations on states, written once over the declarations of their fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from weft.core.clock import Clock
from weft.core.errors import StateError
from weft.core.layer import LayerState
from weft.core.rows import admit
from weft.core.state import State, child_field, concat, fact_field, pad_to, restore, state_arrays, tensor_field


@dataclass(frozen=True)
class Cache(LayerState):
    """Every sort of field: growing with a fill of its own, bounded, keeping its dtype, absent, a fact."""

    keys: Tensor = tensor_field(grows=1, fill=-7.0)
    total: Tensor = tensor_field(keeps_dtype=True)
    extra: Tensor | None = tensor_field()
    name: str = fact_field()


@dataclass(frozen=True)
class Placed(LayerState):
    """A field of what the calls gave, and facts that are saved."""

    places: Tensor = tensor_field(grows=1, keeps_dtype=True, as_given=True)
    room: int | None = fact_field(saved=int)
    full: bool = fact_field(saved=bool, unsaved=True, joined=any)


@dataclass(frozen=True)
class Pair(LayerState):
    """Two caches on one clock."""

    layers: tuple[Cache, ...] = child_field()


@dataclass(frozen=True)
class Nothing(State):
    """A state without tensors."""

    name: str = fact_field()


def cache(clock: Clock, slots: int, offset: float = 0.0) -> Cache:
    rows = clock.seen.shape[0]
    keys = torch.arange(rows * slots * 2, dtype=torch.float32).reshape(rows, slots, 2) + offset
    return Cache(clock, keys, torch.arange(rows, dtype=torch.float32)[:, None] + offset, None, "cache")


def pair(rows: int, slots: int, offset: float = 0.0) -> Pair:
    clock = Clock.start(rows).replace(seen=torch.arange(rows) + int(offset))
    return Pair(clock, (cache(clock, slots, offset), cache(clock, slots + 1, offset)))


OPERATIONS: dict[str, Callable[[Pair], Pair]] = {
    "select": lambda state: state.select([1, 0]),
    "admit": lambda state: admit(state, [1], pair(1, 5)),
    "concat": lambda state: concat([state, pair(2, 1)]),
    "split": lambda state: state.split([1, 1])[1],
    "clone": lambda state: state.clone(),
    "detach": lambda state: state.detach(),
    "to": lambda state: state.to(dtype=torch.float64),
    "restore": lambda state: restore(pair(2, 3), state_arrays(state)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_shared_clock_stays_shared(name: str) -> None:
    after = OPERATIONS[name](pair(2, 3))
    assert after.layers[0].clock is after.clock
    assert after.layers[1].clock is after.clock


def test_map_visits_every_tensor_once() -> None:
    visited: list[tuple[int, ...]] = []
    doubled = pair(2, 3).map(lambda tensor, spec: (visited.append(tuple(tensor.shape)), tensor * 2)[1])
    assert visited == [(2,)] * 4 + [(2, 3, 2), (2, 1), (2, 4, 2), (2, 1)]
    assert_close(doubled.layers[0].keys, pair(2, 3).layers[0].keys * 2, rtol=0, atol=0)
    assert doubled.layers[0].extra is None
    assert doubled.layers[0].name == "cache"


def test_tensors_are_named_by_their_paths() -> None:
    found = pair(2, 3).tensors()
    clock = ["clock.seen", "clock.begin", "clock.prefix_end", "clock.horizon"]
    assert list(found) == [*clock, "layers.0.keys", "layers.0.total", "layers.1.keys", "layers.1.total"]
    tensor, spec = found["layers.1.keys"]
    assert tuple(tensor.shape) == (2, 4, 2)
    assert (spec.grows, spec.fill, spec.keeps_dtype) == (1, -7.0, False)


def test_select_repeats_and_reorders_and_shares_no_memory() -> None:
    state = pair(3, 2)
    chosen = state.select(torch.tensor([2, 2, 0]))
    assert chosen.clock.seen.tolist() == [2, 2, 0]
    assert_close(chosen.layers[0].keys, state.layers[0].keys[[2, 2, 0]], rtol=0, atol=0)
    chosen.layers[0].keys.zero_()
    assert state.layers[0].keys.sum() == sum(range(12))
    assert chosen.batch() == 3


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_outside_the_state_is_refused(row: int) -> None:
    with pytest.raises(StateError, match=r"State.select: a row outside a state of 2 rows. Give rows from 0 to 1"):
        pair(2, 1).select([0, row])


def test_concat_pads_what_grows_with_its_fill() -> None:
    joined = concat([pair(1, 1), pair(2, 3, 100.0)])
    assert joined.clock.seen.tolist() == [0, 100, 101]
    keys = joined.layers[0].keys
    assert_close(keys[0], torch.tensor([[0.0, 1.0], [-7.0, -7.0], [-7.0, -7.0]]), rtol=0, atol=0)
    assert_close(keys[1:], pair(2, 3, 100.0).layers[0].keys, rtol=0, atol=0)
    assert joined.layers[0].total.flatten().tolist() == [0.0, 100.0, 101.0]


def test_split_and_concat_are_inverse() -> None:
    state = pair(4, 3)
    whole = concat(state.split([1, 0, 3]))
    for (_, (a, _)), (_, (b, _)) in zip(state.tensors().items(), whole.tensors().items(), strict=True):
        assert_close(a, b, rtol=0, atol=0)


def test_clone_shares_no_memory_and_detach_cuts_the_graph() -> None:
    clock = Clock.start(2)
    keys = torch.ones(2, 3, 2, requires_grad=True)
    state = Cache(clock, keys * 2, torch.zeros(2, 1), None, "cache")
    copy = state.clone()
    assert copy.keys.data_ptr() != state.keys.data_ptr()
    assert copy.keys.requires_grad
    assert not state.detach().keys.requires_grad
    copy.clock.seen.add_(5)
    assert clock.seen.tolist() == [0, 0]


def test_to_casts_what_follows_the_model_and_only_moves_the_rest() -> None:
    state = pair(2, 3).to("meta", torch.float64)
    assert state.layers[0].keys.dtype is torch.float64
    assert state.layers[0].total.dtype is torch.float32
    assert state.clock.seen.dtype is torch.int64
    assert {tensor.device.type for tensor, _ in state.tensors().values()} == {"meta"}
    assert pair(2, 3).to().layers[0].keys.dtype is torch.float32


def test_bytes_are_counted_once_for_what_is_shared() -> None:
    # 4 clock tensors of 2 int64; keys 2x3x2 and 2x4x2 float32; totals 2x1 float32.
    assert pair(2, 3).nbytes() == 4 * 2 * 8 + (12 + 16) * 4 + 2 * 2 * 4
    same = torch.zeros(2, 3, 2)
    clock = Clock.start(2)
    twice = Pair(clock, tuple(Cache(clock, same, torch.zeros(2, 1), None, "") for _ in range(2)))
    assert twice.nbytes() == 64 + 12 * 4 + 2 * 2 * 4


def test_pad_to_leaves_what_is_long_enough() -> None:
    x = torch.ones(2, 3)
    assert pad_to(x, 1, 3, 9) is x
    assert pad_to(x, 1, 2, 9) is x
    assert pad_to(x, 1, 5, 9)[0].tolist() == [1, 1, 1, 9, 9]


def test_restored_states_equal_the_saved_ones_and_share_nothing_with_them() -> None:
    state = pair(2, 5)
    arrays = state_arrays(state)
    again = restore(pair(1, 0), arrays)
    for path, (tensor, _) in state.tensors().items():
        assert_close(again.tensors()[path][0], tensor, rtol=0, atol=0)
        assert arrays[path].data_ptr() != tensor.data_ptr()


def test_restore_names_missing_and_unknown_tensors() -> None:
    arrays = state_arrays(pair(2, 3))
    del arrays["layers.1.total"]
    arrays["layers.2.total"] = torch.zeros(1)
    with pytest.raises(StateError, match=r"restore: .*missing \['layers.1.total'\], unknown \['layers.2.total'\].*sam"):
        restore(pair(2, 3), arrays)


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3, 9), torch.zeros(2, 3)])
def test_restore_refuses_other_shapes(wrong: Tensor) -> None:
    arrays = state_arrays(pair(2, 3)) | {"layers.0.keys": wrong}
    with pytest.raises(StateError, match=r"layers.0.keys: shape \(2, 3.*where this model keeps \(2, 3, 2\)"):
        restore(pair(2, 3), arrays)


def test_restore_refuses_another_dtype_and_says_what_to_do() -> None:
    arrays = state_arrays(pair(2, 3).to(dtype=torch.float64))
    with pytest.raises(StateError, match=r"layers.0.keys: dtype torch.float64 where this state keeps torch.float32. "
                                         r"Start the template with the saved state's dtype, init_state\(dtype=...\), "
                                         r"and cast what was restored with State.to."):
        restore(pair(2, 3), arrays)
    wide = pair(2, 3).to(dtype=torch.float64)
    assert restore(wide.clone(), arrays).to(dtype=torch.float32).layers[0].keys.dtype is torch.float32
    with pytest.raises(StateError, match=r"clock.seen: dtype torch.int32"):
        restore(wide, arrays | {"clock.seen": torch.zeros(2, dtype=torch.int32)})


def placed(places: Tensor, room: int | None = None, full: bool = False) -> Placed:
    return Placed(Clock.start(places.shape[0]), places, room, full)


@pytest.mark.parametrize(("room", "full"), [(32, True), (None, False), (0, True)])
def test_facts_are_saved_as_a_number_for_each_row(room: int | None, full: bool) -> None:
    arrays = state_arrays(placed(torch.zeros(3, 2), room, full))
    assert arrays["room"].tolist() == [-1 if room is None else room] * 3
    back = restore(placed(torch.zeros(1, 0), 5), arrays)
    assert (back.room, back.full) == (room, full) and back.clock.fresh
    part = restore(placed(torch.zeros(1, 0)), {path: tensor[1:] for path, tensor in arrays.items()})
    assert (part.room, part.full, part.batch()) == (room, full, 2)


def test_files_without_facts_are_read() -> None:
    arrays = {path: state_arrays(placed(torch.zeros(2, 2), 32))[path] for path in placed(torch.zeros(2, 2)).tensors()}
    back = restore(placed(torch.zeros(2, 0), 5), arrays)
    assert (back.room, back.full, back.clock.fresh) == (None, True, False)


@pytest.mark.parametrize("places", [torch.rand(2, 4), torch.rand(2, 4, 3).double(), torch.zeros(2, 0)])
def test_what_calls_give_is_restored_in_its_own_dtype_and_dimensions(places: Tensor) -> None:
    back = restore(placed(torch.zeros(2, 1, dtype=torch.int64)), state_arrays(placed(places)))
    assert back.places.dtype == places.dtype
    assert_close(back.places, places, rtol=0, atol=0)


def test_facts_that_say_so_are_joined_and_coordinates_of_other_sizes_are_not() -> None:
    one, other = placed(torch.zeros(1, 2), full=True), placed(torch.zeros(2, 3))
    assert concat([one, other]).full and not concat([other, other]).full
    with pytest.raises(StateError, match=r"concat: states that were given different numbers of coordinates a token. "
                                         r"Join states whose calls gave coordinates of one shape."):
        concat([one, placed(torch.zeros(1, 2, 3))])


def test_errors_of_row_operations() -> None:
    with pytest.raises(StateError, match=r"concat: no states to concatenate Give at least one"):
        concat([])
    with pytest.raises(StateError, match=r"State.split: sizes \[1, 2\] do not add up to 2 rows"):
        pair(2, 3).split([1, 2])
    with pytest.raises(StateError, match=r"Nothing: this state holds no tensor"):
        Nothing("x").batch()


def test_states_of_different_kinds_or_facts_are_not_joined() -> None:
    one = cache(Clock.start(1), 2)
    with pytest.raises(StateError, match=r"state: the states are of different models: a Cache and a LayerState. Bring"):
        concat([one, LayerState(Clock.start(1))])
    with pytest.raises(StateError, match=r"name: the states are of different models: 'cache' and 'other'. Bring"):
        concat([one, one.replace(name="other")])
