"""Generated rows: the answers are what exact solvers find, their statistics those of the published rules, and each row
is a pure function of seed and index."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from data.generated.solvers import NAMES, copied, evaluated, flooded, followed, joined, recalled
from weft.core.errors import DataError
from weft.data.generated import (
    AssociativeRecall,
    Generator,
    InductionHeads,
    ListOps,
    Pathfinder,
    SelectiveCopying,
)
from weft.data.generated.generator import Draws
from weft.data.generated.pathfinder import look_of

SMALL: dict[str, Generator] = {
    "selective_copying": SelectiveCopying(40, 16, 5), "induction_heads": InductionHeads(33, 16),
    "mqar": AssociativeRecall(48, 64, 6, 0.01, True), "listops": ListOps(8, 60, 5, 5),
    "pathfinder": Pathfinder(24, 4, 3, look_of(24))}
FIRST = {"selective_copying": "8b447bb8", "induction_heads": "8bca3499", "mqar": "715704db",
         "listops": "95737370", "pathfinder": "964d7418"}
"""The beginning of the hash of the first rows; raise `Generator.version` where they change."""


@pytest.mark.parametrize("name", SMALL)
def test_rows_are_a_function_of_seed_and_index_alone(name: str) -> None:
    """Whatever stands beside them in a batch, whoever asks, and twice."""
    made, seed = SMALL[name], SMALL[name].seed_of(7, "train")
    whole = made.rows(seed, np.arange(6))
    for index in (np.array([4]), np.array([5, 4, 0])):
        some = made.rows(seed, index)
        for field in ("ids", "places", "answers"):
            np.testing.assert_array_equal(getattr(some, field), getattr(whole, field)[index])
    assert whole.ids.min() >= 0 and max(whole.ids.max(), whole.answers.max()) < made.vocab_size
    others = [made.rows(made.seed_of(*each), np.arange(6)).ids for each in ((7, "validation"), (8, "train"))]
    assert all(not np.array_equal(whole.ids, each) for each in others)
    assert hashlib.sha256(np.concatenate([whole.ids, whole.answers], 1).tobytes()).hexdigest()[:8] == FIRST[name]


def test_selective_copying_is_solved_and_spread_as_published() -> None:
    made = SelectiveCopying(40, 16, 5)
    rows = made.rows(1, np.arange(2000))
    for ids, answers in zip(rows.ids[:200].tolist(), rows.answers.tolist(), strict=False):
        assert copied(ids, 15) == answers
    assert (rows.ids[:, 35:] == 15).all() and (rows.places == np.arange(35, 40)).all()
    # Each of 35 places is taken in a seventh of the rows; each of 14 symbols equally often: within 5 deviations.
    taken = (rows.ids[:, :35] > 0).mean(0)
    np.testing.assert_allclose(taken, 1 / 7, atol=5 * np.sqrt(6 / 49 / 2000))
    shares = np.bincount(rows.answers.reshape(-1), minlength=15)[1:] / 10000
    np.testing.assert_allclose(shares, 1 / 14, atol=5 * np.sqrt(1 / 14 / 10000))
    assert made.chance == 1 / 14


def test_induction_heads_are_solved_and_the_trigger_stands_anywhere() -> None:
    rows = InductionHeads(33, 16).rows(1, np.arange(3000))
    assert all(followed(ids) == answer for ids, (answer,) in zip(rows.ids.tolist(), rows.answers.tolist(), strict=True))
    assert ((rows.ids == 15).sum(1) == 2).all() and (rows.ids[:, -1] == 15).all() and (rows.places == 32).all()
    places = np.bincount((rows.ids == 15).argmax(1), minlength=33)
    assert (places[:31] > 0).all() and not places[31:].any()  # 97 expected in each; 31 would leave no token between
    assert set(rows.answers[:, 0]) == set(range(15))


def test_associative_recall_is_solved_and_gaps_follow_the_power_law() -> None:
    made = AssociativeRecall(48, 64, 6, 0.01, True)
    rows = made.rows(1, np.arange(3000))
    for ids, places, answers in zip(rows.ids.tolist(), rows.places.tolist(), rows.answers.tolist(), strict=True):
        assert recalled(ids, 6, places) == answers
        assert len({*ids[:12:2]}) == len({*ids[1:12:2]}) == len({*places}) == 6
    assert ((rows.ids[:, :12:2] >= 1) & (rows.ids[:, :12:2] < 32)).all() and (rows.ids[:, 1:12:2] >= 32).all()
    # The first query to be placed takes slot s with probability s^-0.99 / sum.
    law = np.arange(1, 19) ** -0.99
    first = np.bincount((rows.places[:, 0] - 12) // 2, minlength=18) / 3000
    np.testing.assert_allclose(first, law / law.sum(), atol=5 * np.sqrt(0.3 * 0.7 / 3000))
    blank = AssociativeRecall(48, 64, 6, 1.0, False).rows(1, np.arange(3000))
    assert ((blank.ids > 0).sum(1) == 18).all()
    np.testing.assert_allclose(np.bincount((blank.places[:, 0] - 12) // 2) / 3000, 1 / 18, atol=5 * np.sqrt(1 / 54000))


def test_listops_are_solved_and_distributed_as_published() -> None:
    made = ListOps(8, 60, 5, 5)
    rows = made.rows(1, np.arange(300))
    assert rows.count is not None
    words = [[NAMES[each] for each in ids[:count]] for ids, count in zip(rows.ids, rows.count, strict=True)]
    assert [evaluated(each) for each in words] == rows.answers[:, 0].tolist()
    assert rows.count.min() > 8 and rows.count.max() < 60 and (rows.places[:, 0] == rows.count - 1).all()
    for each in words:
        depth = np.cumsum([word.startswith("[") for word in each]) - np.cumsum([word == "]" for word in each])
        assert depth[:-1].min() == 1 and depth.max() <= 4  # digits at depth 5 at most
    assert {word for each in words for word in each} == set(NAMES)


def test_the_lengths_of_listops_are_those_of_its_rule() -> None:
    """Against expressions drawn from the definition, argument by argument."""
    made, generator = ListOps(3, 20, 4, 4), np.random.default_rng(0)

    def length(depth: int) -> int:
        if depth > 1 and (depth == 4 or generator.random() > 0.25):
            return 1
        return 2 + sum(length(depth + 1) for _ in range(generator.integers(2, 5)))

    drawn = np.array([length(1) for _ in range(10000)])
    shares = np.bincount(drawn[drawn < 20], minlength=20) / len(drawn)
    np.testing.assert_allclose(made.lengths, shares, atol=5 * np.sqrt(0.15 / 10000))
    wanted = drawn[(drawn > 3) & (drawn < 20)]
    assert made.likelihood == pytest.approx(len(wanted) / len(drawn), abs=0.02)
    assert made.mean_length == pytest.approx(wanted.mean(), abs=0.15)
    rows = made.rows(2, np.arange(500))
    assert rows.count is not None
    assert rows.count.mean() == pytest.approx(made.mean_length, abs=5 * wanted.std() / np.sqrt(500))


@pytest.mark.parametrize(("size", "contour"), [(24, 4), (32, 14), (64, 14), (128, 14)])
def test_pathfinder_is_solved_by_its_dashes_alone(size: int, contour: int) -> None:
    """Neighbours in a path are at most two gaps apart, all others more: whoever steps no further than two gaps stays on
    the path."""
    look = look_of(size)
    made = Pathfinder(size, contour, look.distracting // (contour // 3), look)
    for index in range(2):
        picture = made.picture(3, index)
        assert joined(picture.starts, picture.ends, picture.dots, 2 * picture.gap) == bool(picture.joined)
        assert np.bincount(picture.owners)[:2].tolist() == [contour, contour]
        points = np.concatenate([picture.starts, picture.ends])
        assert min(points.real.min(), points.imag.min()) >= look.border
        assert max(points.real.max(), points.imag.max()) <= size - 1 - look.border
        np.testing.assert_allclose(np.abs(picture.ends - picture.starts), look.dash)


def test_pathfinder_is_solved_from_its_pixels() -> None:
    """Strokes are wide here, so that 4 dark pixels in a path can be told from 8 between two."""
    look = look_of(128).changed({"gaps": (4,), "thickness": 4.0, "dash": 6, "dot": 5.0, "border": 7})
    made = Pathfinder(128, 5, 5, look)
    rows = made.rows(5, np.arange(10))
    for ids, (answer,) in zip(rows.ids, rows.answers, strict=True):
        assert flooded(ids.reshape(128, 128), 6.5, look.dot) == (answer == 257)
    assert set(rows.answers[:, 0]) == {256, 257} and rows.ids.max() == 255


def test_paths_that_do_not_fit_are_refused_with_a_remedy() -> None:
    look = look_of(12).changed({"dash": 30.0})
    with pytest.raises(DataError, match=r"no two paths of 2 dashes were found in 5,000 trials. Lower task.contour"):
        Pathfinder(12, 2, 0, look).picture(0, 0)


def test_draws_without_putting_back_have_the_probabilities_of_one_after_another() -> None:
    weights = np.array([1.0, 2.0, 5.0])
    pairs = Draws(4, np.arange(8000)).different(3, 2, weights)
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            expected = weights[first] / 8 * weights[second] / (8 - weights[first])
            share = ((pairs[:, 0] == first) & (pairs[:, 1] == second)).mean()
            assert share == pytest.approx(expected, abs=5 * np.sqrt(0.25 / 8000))
