"""Mixtures: published tables against themselves, and shares under a cap against what must hold of them."""

from __future__ import annotations

import pytest

from weft.core.errors import InputError
from weft.data.mixture import DOLMA, GPT3, PILE, Mixture, Source, plan_mixture


def of(*sources: tuple[float, float], target: float | None = 100.0) -> Mixture:
    return Mixture("m", "tokens", "m", target, tuple(Source(str(place), size, weight)
                                                     for place, (size, weight) in enumerate(sources)))


def test_the_rounded_weights_of_gpt3_imply_other_epochs_than_its_table_gives() -> None:
    plan = plan_mixture(GPT3)
    assert [f"{each.implied:.2f}" for each in plan.sources] == ["0.44", "3.47", "2.00", "0.44", "3.00"]
    assert [each.source.epochs for each in plan.sources] == [0.44, 2.9, 1.9, 0.43, 3.4]
    assert plan.sum_of_weights == pytest.approx(1.01)
    assert sum(each.read for each in plan.sources) == pytest.approx(300e9)


def test_the_table_of_the_pile_agrees_with_itself() -> None:
    """Its total of raw sizes, its total of effective ones, and the epochs that its weights imply."""
    plan = plan_mixture(PILE)
    assert len(plan.sources) == 22
    assert sum(each.source.size for each in plan.sources) == pytest.approx(825.18, abs=22 * 0.005)
    assert sum(each.source.size * (each.source.epochs or 0) for each in plan.sources) == pytest.approx(
        1254.20, abs=22 * 0.005 * 3)
    assert plan.sum_of_weights == pytest.approx(1, abs=22 * 0.00005)
    for each in plan.sources:
        # Half of the weight's last digit, as epochs.
        assert each.implied == pytest.approx(each.source.epochs, abs=0.00006 * 1254.20 / each.source.size + 0.005)


def test_the_table_of_dolma_agrees_with_its_total() -> None:
    plan = plan_mixture(DOLMA)
    assert sum(each.source.size for each in plan.sources) == pytest.approx(3059e9, abs=3e9)
    assert [each.epochs for each in plan.sources] == pytest.approx([1] * 6, abs=1e-3)


def test_weights_are_shares_of_their_sum() -> None:
    plan = plan_mixture(of((50, 3), (200, 1)))
    assert [each.read for each in plan.sources] == [75, 25] and [each.epochs for each in plan.sources] == [1.5, 0.125]
    assert plan_mixture(of((50, 3), (200, 1)), target=10).sources[0].read == 7.5


def test_what_a_capped_source_leaves_goes_to_the_others_by_weight() -> None:
    """The first takes 40 of its 60; of the 20 left the second gets two thirds, which puts it above its own cap."""
    plan = plan_mixture(of((20, 6), (12, 2), (100, 1), (100, 1)), max_epochs=2)
    assert [each.capped for each in plan.sources] == [True, True, False, False]
    assert [each.read for each in plan.sources] == pytest.approx([40, 24, 18, 18])
    assert [each.epochs for each in plan.sources] == pytest.approx([2, 2, 0.18, 0.18])


@pytest.mark.parametrize("cap", [0.36, 0.5, 1.0, 2.5, 3.4])
def test_under_every_cap_all_is_read_and_the_order_of_epochs_stays(cap: float) -> None:
    mixture = GPT3 if cap < 2 else PILE
    target = 150e9 if cap < 2 else None
    free, plan = plan_mixture(mixture, target), plan_mixture(mixture, target, cap)
    assert sum(each.share for each in plan.sources) == pytest.approx(1)
    assert all(each.epochs <= cap * (1 + 1e-9) for each in plan.sources)
    ratios = {each.share / each.weight for each in plan.sources if not each.capped}
    assert max(ratios) == pytest.approx(min(ratios)), "those below the cap keep the proportions of their weights"
    assert all(one.epochs >= before.epochs * (1 - 1e-9) for one, before in zip(plan.sources, free.sources, strict=True)
               if not one.capped)


def test_a_source_without_weight_is_not_read() -> None:
    plan = plan_mixture(of((10, 0), (100, 1)), max_epochs=1)
    assert [each.read for each in plan.sources] == [0, 100]


@pytest.mark.parametrize(("mixture", "target", "cap", "what"), [
    (of((10, 1), target=None), None, None, "m: nothing says how many tokens are read in all. Add target to the file"),
    (of((10, 1)), -1.0, None, "target: -1.0, which must be positive and finite."),
    (of((10, 1)), None, 0.0, "max_epochs: 0.0, which must be positive and finite."),
    (of((10, 0)), None, None, "m: all weights are zero. Give one source a weight at least."),
    (of((10, 1), (20, 1), (90, 0)), None, 2.0, "max_epochs: at most 2 epochs of the sources that have a weight are 60 "
     "tokens, less than the 100 to read. Raise the cap, lower the target, or add sources.")])
def test_what_cannot_be_read_is_refused(mixture: Mixture, target: float | None, cap: float | None, what: str) -> None:
    with pytest.raises(InputError) as caught:
        plan_mixture(mixture, target, cap)
    assert what in str(caught.value)
