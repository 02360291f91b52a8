"""Ratings are those of solvers and loops of others, reproduce known strengths, and say where there are none."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

import weft
from comparison.ratings.games import TRUE, drawn
from weft.api import Resampling
from weft.comparison.ratings import BradleyTerry, Elo, Ratings, games_of
from weft.comparison.ratings.bradley_terry import strengths
from weft.core.errors import DataError, InputError

NONE = Resampling(resamples=0)
Triples = list[tuple[str, str, str | None]]


def means(found: Ratings) -> dict[str, float]:
    return {model.name: model.rating.mean for model in found.models}


def refusal(games: Triples, method: Elo | BradleyTerry | None = None, resampling: Resampling = NONE) -> str:
    with pytest.raises(DataError) as caught:
        weft.rate(games, method, resampling=resampling)
    return str(caught.value)


def by_scipy(games: Triples, scale: float, start: float, virtual: float) -> dict[str, float]:
    """The likelihood written game by game, and maximised by SciPy's BFGS."""
    names = sorted({name for game in games for name in game[:2]})

    def negative(strength: np.ndarray) -> float:
        total = 0.0
        for first, second, winner in games:
            ahead = strength[names.index(first)] - strength[names.index(second)]
            won = 0.5 if winner is None else float(winner == first)
            total -= won * -math.log1p(math.exp(-ahead)) + (1 - won) * -math.log1p(math.exp(ahead))
        tied = sum(0.5 * math.log1p(math.exp(-each)) + 0.5 * math.log1p(math.exp(each)) for each in strength)
        return total + virtual * tied

    found = minimize(negative, np.zeros(len(names)), method="BFGS", options={"gtol": 1e-7}).x
    found = found if virtual else found - found.mean()
    return dict(zip(names, start + scale / math.log(10) * found, strict=True))


@pytest.mark.parametrize(("scale", "start", "virtual"), [(400.0, 1000.0, 0.0), (173.7, 0.0, 2.5)])
def test_bradley_terry_is_what_another_solver_finds(scale: float, start: float, virtual: float) -> None:
    games = drawn(150, ties=0.2)
    found = means(weft.rate(games, BradleyTerry(scale, start, virtual), resampling=NONE))
    # BFGS ends where its numerical gradient, which is good to 1e-7 of some 100 games, vanishes: 1e-3 of a rating.
    assert found == pytest.approx(by_scipy(games, scale, start, virtual), abs=1e-2)


def test_bradley_terry_of_two_models_is_the_logarithm_of_their_odds() -> None:
    found = means(weft.rate([("a", "b", "a")] * 10 + [("b", "a", "b")], resampling=NONE))
    assert found["a"] - found["b"] == pytest.approx(400, abs=1e-9)
    assert found["a"] + found["b"] == pytest.approx(2000)
    tied = means(weft.rate([("a", "b", "a")] * 9 + [("a", "b", None)] * 2, resampling=NONE))
    assert tied == pytest.approx(found)


def test_the_maximum_is_found_where_plain_steps_of_newton_s_method_miss_it() -> None:
    wins = np.array([[0, 22041, 43, 878, 312, 367], [11, 0, 0, 380, 0, 1], [6, 590, 0, 179, 88976, 33],
                     [16, 1, 62897, 0, 14, 1], [17, 95227, 0, 5, 0, 15], [0, 254, 10739, 3491, 0, 0]], np.float64)
    found = strengths(wins[None])[0]
    expected = 1 / (1 + np.exp(found[None, :] - found[:, None]))
    # Where the likelihood is highest, every model has won as often as expected: 1e-6 of some 200,000 games.
    assert wins.sum(1) == pytest.approx(((wins + wins.T) * expected).sum(1), abs=1e-6)
    assert abs(found.sum()) < 1e-9


def test_far_strengths_are_found_too() -> None:
    games: Triples = [("a", "b", "a")] * 100_000 + [("a", "b", "b")] + [("b", "c", "b")] * 100_000 + [("c", "b", "c")]
    found = means(weft.rate(games, resampling=NONE))
    assert found["a"] - found["b"] == pytest.approx(2000, abs=1e-6)
    assert found["b"] - found["c"] == pytest.approx(2000, abs=1e-6)


def test_known_strengths_are_found_in_order_and_inside_the_intervals() -> None:
    found = weft.rate(drawn(4000), resampling=Resampling(200))
    assert [model.name for model in found.models] == list(TRUE)
    for model in found.models:
        low, high = model.rating.low, model.rating.high
        assert low is not None and high is not None and low < model.rating.mean < high
        # About 1,600 games of a model, of which each says 1/4 of a nat^2 or less: an error of 400 / ln 10 / 20 = 9.
        assert abs(model.rating.mean - TRUE[model.name]) < 4 * 9
        assert 18 < high - low < 54


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = [model.rating.low <= TRUE[model.name] <= model.rating.high  # type: ignore[operator]
            for seed in range(40) for model in weft.rate(drawn(400, seed=seed), resampling=Resampling(100)).models]
    # 200 intervals, of which five each share their games: 0.95 within four of their errors, sqrt(0.95 * 0.05 / 40).
    assert 0.95 - 4 * math.sqrt(0.95 * 0.05 / 40) < sum(held) / len(held) <= 1


def test_elo_is_what_a_plain_loop_computes() -> None:
    games = drawn(200, ties=0.2)
    ratings = dict.fromkeys(TRUE, 1500.0)
    for first, second, winner in games:
        expected = 1 / (1 + 10 ** ((ratings[second] - ratings[first]) / 173.0))
        moved = 32 * ((0.5 if winner is None else float(winner == first)) - expected)
        ratings[first] += moved
        ratings[second] -= moved
    found = means(weft.rate(games, Elo(32, 173, 1500), resampling=NONE))
    assert found == pytest.approx(ratings, abs=1e-9)


def test_elo_depends_on_the_order_of_the_games_and_its_median_over_orders_does_not() -> None:
    games = drawn(300)
    one, other = (means(weft.rate(each, Elo(32), resampling=NONE)) for each in (games, games[::-1]))
    assert max(abs(one[name] - other[name]) for name in TRUE) > 20
    one, other = (means(weft.rate(each, Elo(32, orders=400), resampling=NONE)) for each in (games, games[::-1]))
    # A rating's variance is near k scale / (2 ln 10) = 53^2 at most; a median of 400 errs by 53 * 1.25 / 20 = 3.3.
    assert max(abs(one[name] - other[name]) for name in TRUE) < 4 * 3.3 * 2 ** 0.5
    assert list(means(weft.rate(drawn(4000), Elo(orders=5), resampling=NONE))) == list(TRUE)


def test_ranks_and_overlaps_follow_from_the_intervals() -> None:
    found = weft.rate(drawn(300), resampling=Resampling(200)).models
    bounds = {model.name: (model.rating.low, model.rating.high) for model in found}
    for model in found:
        low, high = bounds[model.name]
        assert model.rank == 1 + sum(other[0] > high for other in bounds.values())  # type: ignore[operator]
        assert set(model.overlaps) == {name for name, other in bounds.items() if name != model.name
                                       and other[0] <= high and low <= other[1]}  # type: ignore[operator]
    assert any(model.overlaps for model in found) and found[-1].rank > 1
    without = weft.rate(drawn(300), resampling=NONE).models
    assert [model.rank for model in without] == [1, 2, 3, 4, 5] and not any(model.overlaps for model in without)


@pytest.mark.parametrize("method", [BradleyTerry(), BradleyTerry(virtual_ties=1), Elo()])
def test_the_seed_alone_decides_what_is_drawn(method: Elo | BradleyTerry) -> None:
    games = drawn(200)
    one, same, other = (weft.rate(games, method, resampling=Resampling(50, seed=seed)).to_json()["models"]
                        for seed in (0, 0, 1))
    assert one == same != other


def test_what_won_or_lost_everything_has_no_rating() -> None:
    some = drawn(100)
    assert refusal([*some, ("oak", "fir", "oak")]) == (
        "games: 'oak' won all of its games, so that no finite rating is high enough. Leave them out, add games, or "
        "regularise with virtual ties (virtual_ties=1, --virtual-ties 1).")
    assert "'oak' lost all of its games, so that no finite rating is low enough." in refusal(
        [*some, ("oak", "fir", "fir")])
    assert "'oak', 'yew' won every game against the others" in refusal(
        [*some, ("oak", "fir", "oak"), ("oak", "yew", None), ("yew", "elm", "yew")])


def test_groups_that_never_met_have_no_common_scale() -> None:
    text = refusal([*drawn(100), ("oak", "yew", "oak"), ("oak", "yew", "yew")])
    assert "2 groups of models never met: 'ash', 'birch', 'cedar', 'elm', 'fir'; 'oak', 'yew'." in text
    assert "Rate each group alone, add games between them, or regularise" in text


def test_virtual_ties_make_such_ratings_finite() -> None:
    found = means(weft.rate([("a", "b", "a"), ("c", "d", "c")], BradleyTerry(virtual_ties=1), resampling=NONE))
    assert found["a"] == pytest.approx(found["c"]) and found["b"] == pytest.approx(2000 - found["a"])
    assert 1000 < found["a"] < 1400


def test_resamples_without_ratings_are_counted_or_refused() -> None:
    rare = [("a", "b", "a")] * 500 + [("a", "b", "b")] * 5
    found = weft.rate(rare, resampling=Resampling(1000))
    assert 0 < found.left_out < 30  # (1 - 5/505)^505 is 0.7 % of them
    text = refusal([*rare[:500], ("a", "b", "b")], resampling=Resampling(1000))
    assert "of 1,000 resamples have no finite ratings: too few games decide between some models." in text
    assert "or ask for no intervals (resamples=0, --resamples 0)." in text


def test_one_game_has_no_interval() -> None:
    found = weft.rate([("a", "b", "a")], Elo(32))
    assert means(found) == {"a": 1016, "b": 984} and found.models[0].rating.low is None


def test_games_are_counted() -> None:
    games = games_of([("b", "a", "a"), ("a", "c", None), ("a", "b", "model_b")])
    assert games.names == ("a", "b", "c") and games.ties == 1
    assert games.played().tolist() == [3, 2, 1] and games.points().tolist() == [1.5, 1.0, 0.5]


@pytest.mark.parametrize(("make", "what"), [
    (lambda: Elo(k=0), "k: 0, which must be positive and finite. Give a positive number."),
    (lambda: Elo(orders=-1), "orders: -1 orders. Give 0 or more."),
    (lambda: BradleyTerry(scale=math.nan), "scale: nan, which must be positive"),
    (lambda: BradleyTerry(virtual_ties=-1), "virtual_ties: -1 games. Give 0 or more."),
    (lambda: Resampling(1), "resamples: 1 samples give no interval. Give 2 or more, or 0 for no intervals."),
    (lambda: Resampling(confidence=1), "confidence: 1, which must lie between 0 and 1."),
    (lambda: Resampling(seed=-1), "seed: -1, which must not be negative."),
    (lambda: weft.rate([("a", "b", "a")], fields=weft.api.GameFields()), "fields: fields are those of a file")])
def test_wrong_numbers_are_named(make: object, what: str) -> None:
    with pytest.raises(InputError) as caught:
        make()  # type: ignore[operator]
    assert what in str(caught.value)
