"""Batches by length under a budget of tokens, against the definition."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from weft.core.errors import DataError
from weft.data.orders import LengthOrder
from weft.data.sequences import Sequences


def rows_of(lengths: np.ndarray) -> Sequences:
    return Sequences(np.zeros(int(lengths.sum()), dtype=np.int64), lengths)


def columns(seed: int, size: int = 300) -> tuple[Sequences, Sequences]:
    random = np.random.default_rng(seed)
    source = random.integers(1, 30, size)
    return rows_of(source), rows_of(np.clip(source + random.integers(-5, 6, size), 1, None))


def order(columns: tuple[Sequences, ...], budget: int = 120, **options: object) -> LengthOrder:
    settings: dict[str, object] = {"seed": 3, "reshuffle": True, "where": "rows", **options}
    return LengthOrder(*columns, budget=budget, **settings)  # type: ignore[arg-type]


def test_every_batch_is_within_the_budget_and_as_large_as_it_can_be() -> None:
    pair = columns(0)
    made = order(pair)
    batches = [made.sorted_batch(place) for place in range(made.batches)]
    for place, rows in enumerate(batches):
        widest = max(int(column.lengths[rows].max()) for column in pair)
        assert len(rows) * widest <= 120
        if place + 1 < made.batches:
            more = [*rows, batches[place + 1][0]]
            assert len(more) * max(int(column.lengths[more].max()) for column in pair) > 120
    longest = np.maximum(pair[0].lengths, pair[1].lengths)[np.concatenate(batches)]
    assert (np.diff(longest) >= 0).all(), "sorted by the longer of both"


def test_every_example_comes_once_an_epoch_and_epochs_differ() -> None:
    pair = columns(1)
    made = order(pair)
    epochs = [[made.of(epoch * made.batches + step).tolist() for step in range(made.batches)] for epoch in range(3)]
    for epoch in epochs:
        assert sorted(chain.from_iterable(epoch)) == list(range(300))
    assert epochs[0] != epochs[1] != epochs[2]
    as_sets = [{frozenset(rows) for rows in epoch} for epoch in epochs]
    assert as_sets[0] != as_sets[1], "examples of the same lengths change batches"
    sizes = [[len(rows) for rows in epoch] for epoch in epochs]
    assert sizes[0] != sizes[1] and sorted(sizes[0]) == sorted(sizes[1])
    means = [np.mean([pair[0].lengths[rows].mean() for rows in epoch[:10]]) for epoch in epochs]
    assert all(5 < mean < 25 for mean in means), "batches come in shuffled order, not by length"
    assert made.rows == pytest.approx(300 / made.batches)


def test_a_step_is_a_function_of_seed_and_step_alone() -> None:
    pair = columns(2)
    forward = [order(pair).of(step).tolist() for step in range(40)]
    made = order(pair)
    assert [made.of(step).tolist() for step in reversed(range(40))] == forward[::-1]
    assert [order(pair, seed=4).of(step).tolist() for step in range(5)] != forward[:5]
    still = order(pair, reshuffle=False)
    assert [still.of(step).tolist() for step in range(still.batches)] == [
        still.of(still.batches + step).tolist() for step in range(still.batches)]


@pytest.mark.parametrize(("rows", "world"), [(7, 2), (5, 3), (8, 4), (3, 3), (1, 3)])
def test_ranks_share_a_batch_without_gaps(rows: int, world: int) -> None:
    made = order(columns(0))
    parts = [list(range(rows))[made.share(rows, rank, world)] for rank in range(world)]
    assert list(chain.from_iterable(parts)) == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_cannot_be_batched_is_refused() -> None:
    pair = columns(0)
    with pytest.raises(DataError, match=r"rows: a row has 34 tokens, and a batch 20\. Give a larger budget of tokens"):
        order((*pair, rows_of(np.array([34] + [1] * 299))), budget=20)
    with pytest.raises(DataError, match=r"rows: no example to train on\. Give more records"):
        order((rows_of(np.array([], dtype=np.int64)),))
    made = order(pair)
    with pytest.raises(DataError, match=r"rank: must be from 0 to 2, received 3"):
        made.share(9, 3, 3)
