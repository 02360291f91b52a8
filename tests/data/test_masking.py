"""Hidden tokens: how many, what stands for them, and that nothing but seed, epoch and place decides."""

from __future__ import annotations

import numpy as np

from weft.data.masking import Masking

V, SPECIAL = 50, np.array([0, 1, 49])


def masking(seed: int = 0, *, rate: float = 0.15, masked: float = 0.8, random: float = 0.1) -> Masking:
    return Masking(49, np.arange(2, 49), SPECIAL, rate, masked, random, seed)


def ids_of(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, V, (1, count))


def test_rates_are_those_of_the_paper() -> None:
    ids, places = ids_of(200_000), np.arange(200_000)[None]
    found = masking().hide(ids, places, np.array([0]), np.ones_like(ids, dtype=bool))
    possible = ~np.isin(ids, SPECIAL)
    assert not found.chosen[~possible].any(), "special tokens are never chosen"
    count, chosen = int(possible.sum()), int(found.chosen.sum())
    # Five standard deviations of a binomial count: what is fixed by the seed would have to be rarer than 1e-6.
    assert abs(chosen - 0.15 * count) < 5 * (0.15 * 0.85 * count) ** 0.5
    new, old = found.inputs[found.chosen], ids[found.chosen]
    hidden, other = (new == 49).sum(), ((new != 49) & (new != old)).sum()
    assert abs(hidden - 0.8 * chosen) < 5 * (0.16 * chosen) ** 0.5
    # One in 47 of the tokens drawn is the token that stood there.
    assert abs(other - 0.1 * 46 / 47 * chosen) < 5 * (0.09 * chosen) ** 0.5
    np.testing.assert_array_equal(found.inputs[~found.chosen], ids[~found.chosen])
    drawn = new[(new != 49) & (new != old)]
    assert not np.isin(drawn, SPECIAL).any() and len(np.unique(drawn)) == 47
    assert np.bincount(drawn).max() < 2.5 * len(drawn) / 47, "drawn evenly"


def test_the_choice_is_of_seed_epoch_and_place_alone() -> None:
    ids, places, every = ids_of(600), np.arange(600)[None], np.ones((1, 600), dtype=bool)
    whole = masking(5).hide(ids, places, np.array([2]), every)
    order = np.random.default_rng(1).permutation(600).reshape(4, 150)
    parts = masking(5).hide(ids[0][order], order, np.full(4, 2), np.ones((4, 150), dtype=bool))
    np.testing.assert_array_equal(parts.inputs, whole.inputs[0][order])
    np.testing.assert_array_equal(parts.chosen, whole.chosen[0][order])
    for seed, shift, epoch in ((6, 0, 2), (5, 0, 3), (5, 600, 2)):
        other = masking(seed).hide(ids, places + shift, np.array([epoch]), every)
        agree = (other.chosen == whole.chosen).mean()
        assert 0.6 < agree < 0.9, "as alike as two draws that have nothing to do with one another: 0.745"


def test_shares_may_be_all_or_nothing() -> None:
    ids, places, every = ids_of(2000), np.arange(2000)[None], np.ones((1, 2000), dtype=bool)
    only = masking(rate=0.5, masked=1.0, random=0.0).hide(ids, places, np.array([0]), every)
    assert (only.inputs[only.chosen] == 49).all()
    kept = masking(rate=0.5, masked=0.0, random=0.0).hide(ids, places, np.array([0]), every)
    np.testing.assert_array_equal(kept.inputs, ids)
    assert kept.chosen.any() and not masking().hide(ids, places, np.array([0]), ~every).chosen.any()
