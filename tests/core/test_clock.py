"""`resolve_call`: order, document and position of every token, against tables worked out by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.core.clock import Clock, Keys, ResolvedCall, resolve_call

F, X = False, True


def call(clock: Clock | None, shape: tuple[int, int], **facts: Any) -> ResolvedCall:
    given: dict[str, Any] = {"count": None, "begins": None, "prefix": None, "coordinates": None, "horizon": None,
                             "one_document": clock is None}
    tensors = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in facts.items()}
    return resolve_call(clock, shape, torch.device("cpu"), **{**given, **tensors})


def at(seen: list[int], begin: list[int], prefix_end: list[int], horizon: list[int] | None = None) -> Clock:
    rows = [seen, begin, prefix_end, [0] * len(seen) if horizon is None else horizon]
    return Clock(*(torch.tensor(row) for row in rows), fresh=False)  # type: ignore[misc]


def table(values: Tensor, rows: int = 2) -> list[list[int]]:
    """Rows written out, however many are stored."""
    return values.expand(rows, -1).tolist()


def clock_of(clock: Clock | None) -> list[list[int]]:
    assert clock is not None
    return [clock.seen.tolist(), clock.begin.tolist(), clock.prefix_end.tolist(), clock.horizon.tolist()]


def test_a_clock_before_the_first_token() -> None:
    assert clock_of(Clock.start(2)) == [[0, 0], [0, 0], [0, 0], [0, 0]]
    assert clock_of(Clock.start(2, horizon=7))[3] == [7, 7]
    assert clock_of(Clock.start(2, horizon=torch.tensor([7, 9])))[3] == [7, 9]


def test_without_a_clock_rows_agree_and_nothing_is_left() -> None:
    moment = call(None, (2, 3))
    assert moment.ticks.order.tolist() == [[0, 1, 2]]
    assert moment.ticks.begin.tolist() == [[0, 0, 0]]
    assert moment.ticks.length.tolist() == [[3, 3, 3]]
    assert moment.ticks.valid is None
    assert not moment.ticks.packed
    assert moment.after is None
    assert moment.ticks.starts().tolist() == [[X, F, F]]


def test_a_continuing_call_counts_on() -> None:
    moment = call(at([5, 2], [3, 0], [4, 0], [9, 0]), (2, 3))
    assert table(moment.ticks.order) == [[5, 6, 7], [2, 3, 4]]
    assert table(moment.ticks.begin) == [[3, 3, 3], [0, 0, 0]]
    assert table(moment.ticks.position) == [[2, 3, 4], [2, 3, 4]]
    assert table(moment.ticks.prefix_end) == [[4, 4, 4], [0, 0, 0]]
    assert table(moment.ticks.length) == [[9, 9, 9], [0, 0, 0]]
    assert clock_of(moment.after) == [[8, 5], [3, 0], [4, 0], [9, 0]]


def test_an_earlier_document_may_have_begun_inside_a_row_unless_the_call_says_otherwise() -> None:
    assert call(at([5], [3], [3]), (1, 1)).ticks.packed
    assert not call(at([5], [0], [0]), (1, 1), one_document=True).ticks.packed


def test_begins_restart_positions() -> None:
    begins = [[F, X, F, F], [X, F, F, X]]
    moment = call(at([4, 4], [1, 1], [1, 1]), (2, 4), begins=begins)
    assert table(moment.ticks.begin) == [[1, 5, 5, 5], [4, 4, 4, 7]]
    assert table(moment.ticks.position) == [[3, 0, 1, 2], [0, 1, 2, 0]]
    assert moment.ticks.starts().tolist() == begins
    assert moment.ticks.packed
    assert clock_of(moment.after)[:2] == [[8, 8], [5, 7]]


def test_a_row_s_first_token_starts_a_document_unmarked() -> None:
    moment = call(None, (1, 4), begins=[[F, F, X, F]])
    assert table(moment.ticks.begin, 1) == [[0, 0, 2, 2]]
    assert moment.ticks.starts().tolist() == [[X, F, X, F]]
    assert table(moment.ticks.length, 1) == [[2, 2, 2, 2]]


def test_tokens_beyond_the_count_do_not_count() -> None:
    moment = call(at([2, 3], [0, 1], [0, 1]), (2, 3), count=[2, 0], begins=[[F, F, X], [X, F, F]])
    assert moment.ticks.valid is not None
    assert moment.ticks.valid.tolist() == [[X, X, F], [F, F, F]]
    assert table(moment.ticks.begin) == [[0, 0, 0], [1, 1, 1]]
    assert clock_of(moment.after)[:2] == [[4, 3], [0, 1]]


def test_the_clock_after_a_count_is_that_of_the_last_counted_token() -> None:
    moment = call(Clock.start(2), (2, 4), count=[3, 1], begins=[[F, X, F, X], [F, X, F, F]])
    assert clock_of(moment.after)[:2] == [[3, 1], [1, 0]]


def test_an_empty_chunk_changes_nothing() -> None:
    clock = at([4, 2], [1, 0], [2, 0], [8, 8])
    for facts in ({}, {"count": [0, 0]}, {"begins": [[], []], "prefix": [[], []]}):
        cast = {name: torch.tensor(value, dtype=torch.int64 if name == "count" else torch.bool).reshape(2, *[0] * (
            name != "count")) for name, value in facts.items()}
        moment = call(clock, (2, 0), **cast)
        assert clock_of(moment.after) == clock_of(clock)
        assert moment.ticks.order.shape[1] == 0


def test_a_prefix_ends_where_its_flags_end() -> None:
    moment = call(None, (2, 4), prefix=[[X, X, F, F], [F, F, F, F]])
    assert table(moment.ticks.prefix_end) == [[2] * 4, [0] * 4]
    after = call(Clock.start(2), (2, 4), prefix=[[X, X, F, F], [F, F, F, F]]).after
    assert clock_of(after) == [[4, 4], [0, 0], [2, 0], [0, 0]]
    assert after is not None
    assert table(call(after, (2, 2)).ticks.prefix_end) == [[2, 2], [0, 0]]


def test_every_packed_document_has_a_prefix_of_its_own() -> None:
    begins, prefix = [[X, F, F, X, F, F]], [[X, F, F, X, X, F]]
    moment = call(None, (1, 6), begins=begins, prefix=prefix)
    assert table(moment.ticks.prefix_end, 1) == [[1, 1, 1, 5, 5, 5]]


def test_a_carried_prefix_ends_with_its_document() -> None:
    # The document in course keeps its prefix end 3; the one that begins at order 6 has a prefix of two tokens.
    moment = call(at([5], [1], [3]), (1, 5), begins=[[F, X, F, F, F]], prefix=[[F, X, X, F, F]])
    assert table(moment.ticks.prefix_end, 1) == [[3, 8, 8, 8, 8]]
    assert clock_of(moment.after)[2] == [8]
    # One that begins without a prefix has none.
    assert table(call(at([5], [1], [3]), (1, 2), begins=[[F, X]]).ticks.prefix_end, 1) == [[3, 6]]


def test_prefix_flags_beyond_the_count_do_not_count() -> None:
    assert table(call(None, (1, 3), count=[1], prefix=[[X, X, X]]).ticks.prefix_end, 1) == [[1, 1, 1]]


def test_lengths_are_the_document_s_own_or_declared() -> None:
    begins = [[F, F, X, F], [F, X, F, F]]
    assert table(call(None, (2, 4), begins=begins).ticks.length) == [[2, 2, 2, 2], [1, 3, 3, 3]]
    assert table(call(None, (2, 4), begins=begins, count=[4, 3]).ticks.length) == [[2, 2, 2, 2], [1, 2, 2, 2]]
    assert table(call(None, (2, 4), count=[4, 3]).ticks.length) == [[4] * 4, [3] * 4]
    assert table(call(None, (2, 2), horizon=[7, 9]).ticks.length) == [[7, 7], [9, 9]]
    assert table(call(Clock.start(2, horizon=5), (2, 2)).ticks.length) == [[5, 5], [5, 5]]


def test_coordinates_stand_in_for_positions_and_not_for_order() -> None:
    places = torch.tensor([[3.5, 1.0, 2.0]])
    ticks = call(None, (1, 3), coordinates=places).ticks
    assert ticks.position is places
    assert ticks.order.tolist() == [[0, 1, 2]]
    keys = Keys.of(ticks)
    assert keys.position is places
    assert keys.order is ticks.order
    assert keys.begin is ticks.begin
