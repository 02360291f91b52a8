"""Growing and rolling buffers: which token lies where, what queries may look at, when writing is in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from weft.core.clock import Clock
from weft.core.config import parse_part
from weft.core.errors import InputError, StateError
from weft.core.history import Lookback, start_history
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.mixers.attention import AttentionConfig
from weft.mixers.key_value import KeyValueShape, KeyValueState, ReadableKeys, start_growing, store_growing
from weft.mixers.self_attention import RollingState, start_rolling, store_rolling

PLAIN = KeyValueShape(1, 1, 1)


def growing(rows: int = 2, capacity: int | None = None, *, placed: bool = False) -> KeyValueState:
    positions = start_history([Lookback(None)] if placed else [], rows, capacity=capacity, device=None)
    return start_growing(Clock.start(rows, positions=positions), PLAIN, capacity, torch.float64)


def rolling(rows: int = 2, window: int = 3, first: int = 0, *, placed: bool = False) -> RollingState:
    positions = start_history([Lookback(window, first)] if placed else [], rows, capacity=None, device=None)
    return start_rolling(Clock.start(rows, positions=positions), PLAIN, window, torch.float64, first)


def put(state: Any, rows: list[list[float]], **facts: Any) -> ReadableKeys:
    """Store one number a token as its key, and ten times it as its value."""
    k = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), -1, 1, 1)
    keep = store_rolling if isinstance(state, RollingState) else store_growing
    return keep(state, k, 10 * k, Span(**facts).resolve(state.clock, k))


def table(x: Tensor | None) -> list[Any]:
    assert x is not None
    return x.reshape(x.shape[0], -1).tolist()


def kept(stored: ReadableKeys) -> Any:
    assert isinstance(stored.state, KeyValueState | RollingState)
    return stored.state


def seen(stored: ReadableKeys, rows: int) -> list[list[tuple[float, int]]]:
    """Every row's visible keys with their orders."""
    keys, order = stored.k[..., 0, 0], stored.keys.order.expand(rows, -1)
    given = stored.keys.valid
    valid = torch.ones_like(order, dtype=torch.bool) if given is None else given.expand(rows, -1)
    return [[(k, o) for k, o, ok in zip(*row, strict=True) if ok]
            for row in zip(keys.tolist(), order.tolist(), valid.tolist(), strict=True)]


def test_without_a_state_nothing_is_kept() -> None:
    k = torch.tensor([[1.0, 2.0]]).reshape(1, 2, 1, 1)
    stored = AttentionConfig(n_heads=1).build(Dims(d_model=2)).store(None, k, k, Span().resolve(None, k))
    assert stored.state is None
    assert stored.keys.order.tolist() == [[0, 1]]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("capacity", [None, 8])
def test_slot_s_holds_the_token_of_order_s(gradients: bool, capacity: int | None) -> None:
    with torch.set_grad_enabled(gradients):
        state = growing(capacity=capacity)
        state = kept(put(state, [[1, 2, 3], [4, 5, 6]], count=torch.tensor([3, 1])))
        last = put(state, [[7, 8], [9, 9]], count=torch.tensor([1, 2]))
    state = kept(last)
    assert [row[:4] for row in table(state.keys)] == [[1, 2, 3, 7], [4, 9, 9, 0]]
    assert [row[:4] for row in table(state.values)] == [[10, 20, 30, 70], [40, 90, 90, 0]]
    assert state.clock.seen.tolist() == [4, 3]
    assert state.keys.shape[2] == (5 if capacity is None else 8)
    assert seen(last, 2) == [[(1, 0), (2, 1), (3, 2), (7, 3)], [(4, 0), (9, 1), (9, 2)]]


def test_a_bound_says_how_many_slots_are_needed_and_looked_at() -> None:
    state = kept(put(growing(1), [[1, 2]], bound=2, fresh=True))
    assert state.keys.shape[2] == 2
    stored = put(state, [[3]], bound=3, uniform=True)
    assert stored.k.shape[1] == 3
    assert stored.keys.valid is None
    assert seen(stored, 1) == [[(1, 0), (2, 1), (3, 2)]]
    wide = kept(put(growing(1, capacity=9), [[1, 2]], fresh=True))
    assert put(wide, [[3]], bound=4).k.shape[1] == 4
    assert seen(put(wide, [[3]], bound=4), 1) == seen(stored, 1)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("start", [lambda: growing(1, placed=True), lambda: growing(1, 8, placed=True),
                                   lambda: rolling(1, 4, placed=True)])
def test_coordinates_are_kept_as_they_are_given(gradients: bool, start: Callable[[], Any]) -> None:
    """Whole numbers until a call gives fractions, then a dtype that holds both; two coordinates where two are given."""
    half = torch.tensor([[0.5, 2.25]], dtype=torch.float64)
    with torch.set_grad_enabled(gradients):
        state = kept(put(start(), [[1]]))
        assert state.clock.positions.values.dtype is torch.int64
        state = kept(put(state, [[2, 3]], coordinates=half))
        last = put(state, [[4]], coordinates=torch.tensor([[7]]))
        assert last.keys.position[0, :4].tolist() == [0, 0.5, 2.25, 7]
        pairs = torch.stack([half, -half], -1)
        state = kept(put(start(), [[1, 2]], coordinates=pairs))
        last = put(state, [[3]], coordinates=pairs[:, :1])
    assert last.keys.position[0, :3].tolist() == [[0.5, -0.5], [2.25, -2.25], [0.5, -0.5]]


def test_another_number_of_coordinates_a_token_is_refused() -> None:
    pairs = torch.zeros(1, 2, 2)
    for start in (growing(1, placed=True), rolling(1, 4, placed=True)):
        state = kept(put(start, [[1, 2]]))
        with pytest.raises(InputError, match=r"span.coordinates: \[2\] coordinates a token, one in earlier calls. Give "
                                             r"as many coordinates a token in every call of a sequence."):
            put(state, [[1, 2]], coordinates=pairs)


def test_the_first_chunk_looks_only_at_itself() -> None:
    stored = put(growing(1, capacity=9), [[1, 2]], fresh=True)
    assert table(stored.k) == [[1, 2]]
    assert kept(stored).keys.shape[2] == 9


@pytest.mark.parametrize("gradients", [True, False])
def test_more_tokens_than_the_capacity_are_refused(gradients: bool) -> None:
    message = (r"state: a row would consume more than 3 tokens. Start the state with a larger capacity, or give "
               r"span.bound as the largest count after the call.")
    with torch.set_grad_enabled(gradients):
        state = kept(put(growing(capacity=3), [[1, 2], [3, 4]], count=torch.tensor([1, 2])))
        with pytest.raises(StateError, match=message):
            put(state.clone(), [[5, 6], [7, 8]])
        assert kept(put(state, [[5, 6], [7, 8]], count=torch.tensor([2, 1]))).clock.seen.tolist() == [3, 3]
        with pytest.raises(StateError, match=message):
            put(growing(), [[1, 2, 3, 4]] * 2, bound=3)


@pytest.mark.parametrize(("facts", "in_place"), [
    ({}, True), ({"count": torch.tensor([1, 0])}, True), ({"bound": 4}, True)])
def test_a_reserved_buffer_stays_where_it_is_without_gradients(facts: dict[str, Any], in_place: bool) -> None:
    with torch.no_grad():
        state = kept(put(growing(capacity=4), [[1], [2]]))
        after = kept(put(state, [[3], [4]], **facts))
    assert (after.keys.data_ptr() == state.keys.data_ptr()) is in_place
    assert (after.values.data_ptr() == state.values.data_ptr()) is in_place
    row = [2, 4, 0, 0] if "count" not in facts else [2, 0, 0, 0]
    assert table(after.keys) == [[1, 3, 0, 0], row]


def test_with_gradients_a_state_is_a_new_value_and_gradients_flow_across_calls() -> None:
    state = growing(1, capacity=4)
    k = torch.ones(1, 2, 1, 1, dtype=torch.float64, requires_grad=True)
    first = kept(store_growing(state, k, k, Span().resolve(state.clock, k)))
    assert table(state.keys) == [[0, 0, 0, 0]]
    assert first.keys.data_ptr() != state.keys.data_ptr()
    second = store_growing(first, 3 * k, k, Span().resolve(first.clock, k))
    (gradient,) = torch.autograd.grad((second.k[0, :, 0, 0] * torch.tensor([1.0, 2, 4, 8])).sum(), k)
    assert table(gradient) == [[1 + 3 * 4, 2 + 3 * 8]]


def test_positions_are_kept_beside_the_keys() -> None:
    places = torch.tensor([[5, 7], [1, 1]])
    for state in (growing(placed=True), rolling(placed=True)):
        first = kept(put(state, [[1, 2], [3, 4]], coordinates=places))
        stored = put(first, [[5], [6]], coordinates=places[:, 1:])
        assert stored.keys.position.tolist() == [[5, 7, 7], [1, 1, 1]]
    assert first.clock.positions.values.dtype is torch.int64


@pytest.mark.parametrize("more", [1, 2])
def test_a_rolling_buffer_keeps_positions_that_are_no_orders(more: int) -> None:
    """Seen by one token, which reads the buffer, and by several, which read what it held before them."""
    state = kept(put(rolling(1, placed=True), [[0, 1, 2, 3]], coordinates=torch.tensor([[10, 20, 30, 40]])))
    stored = put(state, [[4, 5][:more]], coordinates=torch.tensor([[50, 60][:more]]))
    places = stored.keys.position.expand(1, -1)[0].tolist()
    orders = stored.keys.order.expand(1, -1)[0].tolist()
    assert [place for order, place in zip(orders, places, strict=True) if order >= 0] == [
        10 * (order + 1) for order in orders if order >= 0]


@pytest.mark.parametrize("state", [growing(capacity=4), growing(), rolling(), rolling(first=2)],
                         ids=["reserved", "growing", "rolling", "rolling behind first tokens"])
def test_what_stands_beyond_a_row_s_count_is_not_kept(state: Any) -> None:
    held = kept(put(state, [[1, 2], [3, 99]], count=torch.tensor([2, 1])))
    stored = put(held, [[5], [6]])
    assert [sorted(row, key=lambda pair: pair[1]) for row in seen(stored, 2)] == [
        [(1, 0), (2, 1), (5, 2)], [(3, 0), (6, 1)]]
    assert 99 not in held.keys.flatten().tolist()


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("cuts", [[7], [1] * 7, [2, 5], [4, 0, 3], [3, 3, 1]])
def test_the_token_of_order_i_is_in_slot_i_mod_w(gradients: bool, cuts: list[int]) -> None:
    state, start = rolling(1), 0
    with torch.set_grad_enabled(gradients):
        for size in cuts:
            state = kept(put(state, [list(range(start, start + size))]))
            start += size
    assert table(state.keys) == [[6, 4, 5]]
    assert table(state.values) == [[60, 40, 50]]
    assert state.clock.seen.tolist() == [7]


def test_a_chunk_still_sees_the_keys_that_it_overwrites() -> None:
    state = kept(put(rolling(1), [[0, 1, 2, 3]]))
    stored = put(state, [[4, 5]])
    assert sorted(seen(stored, 1)[0], key=lambda pair: pair[1]) == [(n, n) for n in range(1, 6)]
    assert table(kept(stored).keys) == [[3, 4, 5]]


@pytest.mark.parametrize("gradients", [True, False])
def test_a_document_s_first_tokens_are_in_front_of_a_chunk_that_brings_them(gradients: bool) -> None:
    """And nowhere else, so that a query far behind them reads them there, and one near them reads them once."""
    with torch.set_grad_enabled(gradients):
        state = kept(put(rolling(window=3, first=3, placed=True), [[0, 1], [0, 9]], count=torch.tensor([2, 1]),
                         coordinates=torch.tensor([[0, 10], [0, 90]])))
        stored = put(state, [[2, 3, 4, 5, 6], [1, 2, 3, 4, 9]], count=torch.tensor([5, 4]),
                     coordinates=torch.tensor([[20, 30, 40, 50, 60], [10, 20, 30, 40, 90]]))
    assert stored.k[..., 0, 0].detach()[:, :3].tolist() == [[0, 1, 2]] * 2
    assert stored.keys.position[:, :3].tolist() == [[0, 10, 20]] * 2
    assert [sorted(row) for row in seen(stored, 2)] == [[(n, n) for n in range(7)], [(n, n) for n in range(5)]]


def test_earlier_slots_take_the_number_of_coordinates_of_the_first_call() -> None:
    pairs = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    stored = put(rolling(1, first=1, placed=True), [[1, 2]], coordinates=pairs)
    assert stored.keys.position.shape == (1, 1 + 3 + 2, 2)
    assert stored.keys.position[0, -2:].tolist() == pairs[0].tolist()


def test_rows_roll_each_at_its_own_pace() -> None:
    state = kept(put(rolling(), [[0, 1, 2, 3], [0, 9, 9, 9]], count=torch.tensor([4, 1])))
    assert table(state.keys) == [[3, 1, 2], [0, 0, 0]]
    stored = put(state, [[4, 9], [1, 2]], count=torch.tensor([1, 2]))
    assert [sorted(row, key=lambda pair: pair[1]) for row in seen(stored, 2)] == [
        [(1, 1), (2, 2), (3, 3), (4, 4)], [(0, 0), (1, 1), (2, 2)]]
    assert table(kept(stored).keys) == [[3, 4, 2], [0, 1, 2]]


def test_one_token_sees_the_window_and_no_empty_slot() -> None:
    first = put(rolling(1), [[5]])
    assert seen(first, 1) == [[(5, 0)]]
    state = kept(first)
    for number in (6, 7, 8):
        stored = put(state, [[number]])
        state = kept(stored)
    assert sorted(seen(stored, 1)[0], key=lambda pair: pair[1]) == [(6, 1), (7, 2), (8, 3)]
    assert stored.k.shape[1] == 3


def test_one_token_whose_place_is_a_plain_fact_goes_there_too() -> None:
    """Rows that are level, with the number of tokens known, are written at a slot that no tensor is read for."""
    with torch.no_grad():
        state = kept(put(rolling(), [[0], [10]], bound=1, uniform=True))
        for step in range(1, 5):
            stored = put(state, [[step], [10 + step]], bound=step + 1, uniform=True)
            state = kept(stored)
    assert table(state.keys) == [[3, 4, 2], [13, 14, 12]]
    assert sorted(seen(stored, 2)[1], key=lambda pair: pair[1]) == [(12, 2), (13, 3), (14, 4)]


def test_an_empty_chunk_keeps_the_state() -> None:
    for start in (growing(1, capacity=4), rolling(1)):
        state = kept(put(start, [[1, 2]]))
        after = kept(put(state, [[]]))
        assert_close(after.keys, state.keys, rtol=0, atol=0)
        assert after.clock.seen.tolist() == [2]


def test_keys_are_kept_in_the_state_s_own_dtype() -> None:
    state = start_growing(Clock.start(1), PLAIN, None, torch.bfloat16)
    assert kept(put(state, [[1.0]])).keys.dtype is torch.bfloat16
    state = start_rolling(Clock.start(1), PLAIN, 2, torch.bfloat16)
    assert kept(put(state, [[1.0, 2.0]])).values.dtype is torch.bfloat16


@pytest.mark.parametrize("mask", ["causal", "causal & window(3)"])
def test_scores_see_stored_coordinates_and_not_the_order(mask: str) -> None:
    """Linear biases over coordinates with gaps and returns: in pieces as whole, and other than without them."""
    torch.manual_seed(0)
    config = parse_part(("mixer",), {"kind": "attention", "n_heads": 2, "position": "alibi", "mask": mask})
    layer = config.build(Dims(8)).double()
    x, places = torch.randn(2, 6, 8, dtype=torch.float64), torch.tensor([[0, 4, 9, 2, 30, 31], [7, 5, 3, 1, 0, 2]])
    whole = layer(x, None, Span(coordinates=places)).y
    assert not torch.allclose(whole, layer(x).y, atol=1e-2)
    state, found = layer.init_state(2), []
    for piece in (slice(0, 2), slice(2, 3), slice(3, 6)):
        out = layer(x[:, piece], state, Span(coordinates=places[:, piece]))
        state = out.state
        found.append(out.y)
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=1e-12, atol=1e-12)
