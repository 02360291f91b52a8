"""Spans: their facts, their shapes, and what they do to padding."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from weft.core.clock import Clock
from weft.core.errors import InputError, StateError
from weft.core.span import WHOLE, Memory, Span
from weft.core.state import concat, state_arrays

X = torch.ones(2, 3, 4)


@pytest.mark.parametrize(("name", "value", "shape"), [
    ("count", torch.ones(3, dtype=torch.int64), r"\(3,\) for 2 rows of 3 tokens. Give shape \(2,\)"),
    ("begins", torch.zeros(2, 4, dtype=torch.bool), r"\(2, 4\) for 2 rows of 3 tokens. Give shape \(2, 3\)"),
    ("prefix", torch.zeros(1, 3, dtype=torch.bool), r"\(1, 3\) for 2 rows of 3 tokens. Give shape \(2, 3\)"),
    ("horizon", torch.ones(1, dtype=torch.int64), r"\(1,\) for 2 rows of 3 tokens. Give shape \(2,\)"),
    ("coordinates", torch.ones(2, 4), r"\(2, 4\) for 2 rows of 3 tokens. Give shape \(2, 3\) or \(2, 3, 'n'\)"),
    ("coordinates", torch.ones(3), r"\(3,\) for 2 rows"),
])
def test_wrong_shapes_are_named(name: str, value: torch.Tensor, shape: str) -> None:
    with pytest.raises(InputError, match=rf"span.{name}: shape {shape}"):
        Span(**{name: value}).resolve(None, X)


@pytest.mark.parametrize("count", [[0, 4], [-1, 3]])
def test_a_count_outside_the_chunk_is_refused(count: list[int]) -> None:
    with pytest.raises(InputError, match=r"span.count: a count outside 0 to 3. Rows of 3 tokens can advance by 0 to 3"):
        Span(count=torch.tensor(count)).resolve(None, X)


def test_full_and_packed_are_facts_of_what_is_given() -> None:
    assert WHOLE.full
    assert not WHOLE.packed
    assert not Span(count=torch.tensor([1, 2])).full
    assert Span(begins=torch.zeros(2, 3, dtype=torch.bool)).packed


def used() -> Clock:
    """A clock after three tokens in both rows."""
    return WHOLE.resolve(Clock.start(2), X).after


@pytest.mark.parametrize(("clock", "facts", "fresh", "packed"), [
    (None, {}, True, False),
    (Clock.start(2), {}, False, True),
    (Clock.start(2), {"fresh": True}, True, False),
    (used(), {}, False, True),
    (used(), {"uniform": True, "bound": 6}, False, False),
    (None, {"begins": torch.zeros(2, 3, dtype=torch.bool)}, True, True),
    (Clock.start(2), {"fresh": True, "begins": torch.zeros(2, 3, dtype=torch.bool)}, True, True),
    (used(), {"uniform": True, "bound": 6, "begins": torch.zeros(2, 3, dtype=torch.bool)}, False, True),
])
def test_a_call_without_a_state_is_fresh_and_documents_are_fenced_where_they_may_be(
        clock: Clock | None, facts: dict[str, Any], fresh: bool, packed: bool) -> None:
    span = Span(**facts).resolve(clock, X)
    assert span.fresh is fresh
    assert span.ticks.packed is packed


def test_a_span_resolved_on_a_clock_is_not_worked_out_again() -> None:
    clock = Clock.start(2)
    span = WHOLE.resolve(clock, X)
    assert span.resolve(clock, X) is span
    assert span.after is span.after
    other = span.resolve(Clock.start(2).replace(seen=torch.tensor([5, 5])), X)
    assert other.ticks.order.tolist() == [[5, 6, 7], [5, 6, 7]]


def test_resolving_keeps_all_that_the_caller_gave() -> None:
    worked_out = {"fresh", "moment", "ticks", "before", "after"}
    given = {field.name: object() for field in dataclasses.fields(Span)} | {"pieces": None}
    given |= dict.fromkeys(("count", "begins", "prefix", "horizon", "coordinates", "facts", "moment", "ticks", "before",
                            "after")) | {"fresh": False, "uniform": False, "bound": 3}
    whole: Any = given
    resolved = Span(**whole).resolve(None, X)
    for name in given.keys() - worked_out:
        assert getattr(resolved, name) is given[name], name
    tensors: Any = {"count": torch.tensor([3, 2]), "begins": torch.zeros(2, 3, dtype=torch.bool),
                    "prefix": torch.zeros(2, 3, dtype=torch.bool), "horizon": torch.tensor([3, 3]),
                    "coordinates": torch.zeros(2, 3), "facts": {"mark": torch.zeros(2, 3, dtype=torch.int64)}}
    resolved = Span(**tensors).resolve(None, X)
    assert all(getattr(resolved, name) is value for name, value in tensors.items())


def test_replace_forgets_what_was_worked_out() -> None:
    changed = WHOLE.resolve(None, X).replace(count=torch.tensor([1, 2]))
    assert changed.moment is None
    valid = changed.resolve(None, X).ticks.valid
    assert valid is not None
    assert valid.tolist() == [[True, False, False], [True, True, False]]


def test_clean_zeroes_padding_even_where_it_is_not_a_number_and_stops_its_gradient() -> None:
    x = torch.full((2, 3, 4), 2.0)
    x[0, 1:] = torch.nan
    x.requires_grad_()
    y = Span(count=torch.tensor([1, 3])).resolve(None, x).clean(x)
    assert y[0].sum(-1).tolist() == [8.0, 0.0, 0.0]
    assert y[1].sum(-1).tolist() == [8.0, 8.0, 8.0]
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient[..., 0].tolist() == [[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    assert WHOLE.resolve(None, x).clean(x) is x


def test_a_memory_knows_its_padding_and_its_rows() -> None:
    memory = Memory(torch.arange(6.0).reshape(2, 3, 1), torch.tensor([3, 1]))
    valid = memory.valid()
    assert valid is not None
    assert valid.tolist() == [[True, True, True], [True, False, False]]
    chosen = memory.select(torch.tensor([1, 1]))
    assert chosen.h.flatten().tolist() == [3.0, 4.0, 5.0] * 2
    assert chosen.count is not None
    assert chosen.count.tolist() == [1, 1]
    assert Memory(memory.h).valid() is None
    assert Memory(memory.h).select(torch.tensor([0])).count is None


def test_a_used_state_is_not_believed_to_be_fresh() -> None:
    with pytest.raises(StateError, match=r"span.fresh: fresh is set for a state that has consumed tokens. Leave it ou"):
        Span(fresh=True).resolve(used(), X)


def test_freshness_is_lost_by_tokens_and_joined_by_all_rows() -> None:
    start = Clock.start(2)
    assert start.fresh and WHOLE.resolve(start, X[:, :0]).after.fresh
    assert not Span(count=torch.tensor([0, 1])).resolve(Clock.start(2), X).after.fresh
    assert concat([start, Clock.start(1)]).fresh
    assert not concat([start, used()]).fresh
    assert start.select([1]).fresh and not used().select([1]).fresh


def test_a_call_without_gradients_consumes_the_state_unless_it_has_no_tokens() -> None:
    clock = Clock.start(2)
    with torch.no_grad():
        assert WHOLE.resolve(clock, X[:, :0]).after is clock
        after = WHOLE.resolve(clock, X).after
        fork = after.clone()
        WHOLE.resolve(after, X)
        for again in (lambda: WHOLE.resolve(after, X), after.clone, lambda: after.select([0]),
                      lambda: concat([fork, after]), lambda: state_arrays(after)):
            with pytest.raises(StateError, match=r"state: an earlier call has consumed this state.* Go on with the "
                                                 r"state that the call returned, or clone\(\) or select\(\)"):
                again()
        assert not WHOLE.resolve(fork, X).after.fresh


def test_what_takes_a_state_s_place_is_consumed_with_it() -> None:
    for same in (lambda clock: clock.detach(), lambda clock: clock.to("cpu"), lambda clock: clock.map(lambda x, _: x)):
        clock = Clock.start(2)
        other = same(clock)
        with torch.no_grad():
            WHOLE.resolve(other, X)
        with pytest.raises(StateError, match="consumed"):
            WHOLE.resolve(clock, X)


def test_with_gradients_on_a_state_may_be_used_again() -> None:
    clock = Clock.start(2)
    assert WHOLE.resolve(clock, X).after is not WHOLE.resolve(clock, X).after
