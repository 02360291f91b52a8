"""Histories against lists of what each row was given, call by call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.core.clock import Clock
from weft.core.config import parse_part
from weft.core.errors import InputError, StateError
from weft.core.history import GrowingHistory, Lookback, RollingHistory, start_history
from weft.core.part_config import Dims
from weft.core.span import Span
from weft.core.state import restore, state_arrays

ROWS, CALLS = 3, 14


def calls(generator: torch.Generator) -> list[Span]:
    """Ragged calls of 0 to 5 tokens with one coordinate each, in some of which documents begin."""
    spans = []
    for _ in range(CALLS):
        steps = int(torch.randint(6, (), generator=generator))
        count = torch.randint(steps + 1, (ROWS,), generator=generator)
        begins = torch.rand(ROWS, steps, generator=generator) < 0.2
        spans.append(Span(count=count, begins=begins, coordinates=torch.rand(ROWS, steps, generator=generator)))
    return spans


@pytest.mark.parametrize(("lookback", "capacity"), [
    (Lookback(None), None), (Lookback(None), 5 * CALLS), (Lookback(3), None), (Lookback(1), None),
    (Lookback(4, first=2), None)])
def test_values_are_those_of_the_tokens_that_were_read(lookback: Lookback, capacity: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    history = start_history([lookback], ROWS, capacity=capacity, device=None)
    clock, given, begin = Clock.start(ROWS, positions=history), [list[float]() for _ in range(ROWS)], [0] * ROWS
    for span in calls(generator):
        assert span.coordinates is not None and span.count is not None and span.begins is not None
        clock = span.resolve(clock, span.coordinates).after
        for row in range(ROWS):
            for t in range(int(span.count[row])):
                begin[row] = len(given[row]) if span.begins[row, t] else begin[row]
                given[row].append(float(span.coordinates[row, t]))
        for row in range(ROWS):
            require_row(clock, row, given[row], begin[row], lookback)


def require_row(clock: Clock, row: int, given: list[float], begin: int, lookback: Lookback) -> None:
    """The last tokens of a row, and the first ones of its document, have the values that they were given."""
    size = len(given) if lookback.size is None else min(lookback.size, len(given))
    early = [order for order in range(begin, begin + lookback.first) if order < len(given)]
    if len(early) < lookback.first or clock.positions is None:
        return
    orders = [*early, *range(len(given) - size, len(given))]
    values = clock.positions.at(torch.tensor([orders]).expand(ROWS, -1), lookback.first)[row]
    assert values.tolist() == pytest.approx([given[order] for order in orders], abs=0)


def test_a_history_grows_only_if_some_part_reads_all_tokens() -> None:
    def kind(*lookbacks: Lookback, capacity: int | None = None) -> Any:
        history = start_history(lookbacks, 2, capacity=capacity, device=None, width=2)
        return None if history is None else (type(history), tuple(history.values.shape))

    assert kind() is None
    assert kind(Lookback(3), Lookback(5, first=1)) == (RollingHistory, (2, 6, 2))
    assert kind(Lookback(3), Lookback(None)) == (GrowingHistory, (2, 0, 2))
    assert kind(Lookback(None), capacity=9) == (GrowingHistory, (2, 9, 2))


def test_coordinates_of_another_number_are_refused_once_some_were_read() -> None:
    clock = Clock.start(1, positions=start_history([Lookback(None)], 1, capacity=None, device=None))
    x = torch.zeros(1, 2)
    clock = Span(coordinates=torch.zeros(1, 2, 3)).resolve(clock, x).after
    with pytest.raises(InputError, match=r"^span.coordinates: \[2\] coordinates a token, \[3\] in earlier calls. Give "
                                         r"as many coordinates a token in every call of a sequence.$"):
        Span(coordinates=torch.zeros(1, 2, 2)).resolve(clock, x)
    with pytest.raises(InputError, match=r"^span.coordinates: one coordinates a token, \[3\] in earlier calls."):
        Span().resolve(clock, x)


def test_a_saved_state_of_another_number_or_dtype_of_facts_is_refused() -> None:
    one, two = (parse_part(("mixer",), {"kind": "attention", "n_heads": 2, "mask": mask}).build(Dims(8))
                for mask in ("causal & same_type", "causal & (same_type | globals)"))
    arrays = state_arrays(one.init_state(2))  # type: ignore[operator]
    with pytest.raises(StateError, match=r"^clock.facts.values: shape \(2, 0, 1\) where this model keeps \(2, 0, 2\)"):
        restore(two.init_state(2), arrays)  # type: ignore[operator]
    path = "clock.facts.values"
    with pytest.raises(StateError, match=r"^clock.facts.values: dtype torch.float32 where this state keeps torch.int"):
        restore(one.init_state(2), {**arrays, path: arrays[path].float()})  # type: ignore[operator]
