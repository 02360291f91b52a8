"""Two models share a letter exactly where they are not told apart."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.comparison.verdict import letter, letters, tied_sets, tied_with


def _tied(*pairs: str, of: str) -> dict[frozenset[str], bool]:
    return {frozenset(pair): "".join(pair) in pairs for pair in itertools.combinations(of, 2)}


def test_a_head_and_its_ties_are_no_set_where_the_ties_are_told_apart() -> None:
    """As in a study whose second was not told apart from two others, which were told apart from each other."""
    means = {"a": 1.0, "b": 1.1, "c": 1.2}
    found = tied_sets(means, _tied("ab", "ac", of="abc"))
    assert found == (("a", "b"), ("a", "c"))
    assert [letters(name, found) for name in "abc"] == [("a", "b"), ("a",), ("b",)]


def test_sets_stand_from_best_to_worst() -> None:
    means = {"c": 1.2, "a": 1.0, "b": 1.1, "d": 2.0}
    assert tied_sets(means, _tied("ab", "bc", of="abcd")) == (("a", "b"), ("b", "c"), ("d",))
    assert tied_sets(means, _tied("ab", "ac", "bc", of="abcd")) == (("a", "b", "c"), ("d",))
    assert tied_sets({}, {}) == ()
    assert tied_with("b", (("a", "b"), ("b", "c"))) == {"a", "c"}


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 7).flatmap(lambda n: st.tuples(
    st.lists(st.floats(0, 1), min_size=n, max_size=n),
    st.lists(st.booleans(), min_size=n * (n - 1) // 2, max_size=n * (n - 1) // 2))))
def test_sets_are_those_that_trying_all_of_them_finds(case: tuple[list[float], list[bool]]) -> None:
    values, answers = case
    names = [f"m{place}" for place in range(len(values))]
    means = dict(zip(names, values, strict=True))
    tied = {frozenset(pair): answer for pair, answer in zip(itertools.combinations(names, 2), answers, strict=True)}
    found = tied_sets(means, tied)
    cliques = [set(some) for size in range(1, len(names) + 1) for some in itertools.combinations(names, size)
               if all(tied[frozenset(pair)] for pair in itertools.combinations(some, 2))]
    assert {frozenset(each) for each in found} == {frozenset(each) for each in cliques
                                                   if not any(each < other for other in cliques)}
    assert len(set(found)) == len(found)
    for first, second in itertools.combinations(names, 2):
        share = set(letters(first, found)) & set(letters(second, found))
        assert bool(share) == tied[frozenset((first, second))]
    rank = {name: place for place, name in enumerate(sorted(names, key=lambda name: (means[name], name)))}
    places = [[rank[name] for name in each] for each in found]
    assert places == sorted(sorted(each) for each in places)


def test_twenty_models_in_the_worst_case_are_quick() -> None:
    """Seven groups of which each leaves its own members alone: 3^6 * 2 sets, the most there can be for twenty."""
    names = [f"m{place:02d}" for place in range(20)]
    tied = {frozenset((a, b)): int(a[1:]) // 3 != int(b[1:]) // 3 for a, b in itertools.combinations(names, 2)}
    found = tied_sets({name: float(place) for place, name in enumerate(names)}, tied)
    assert len(found) == 3**6 * 2
    assert letters("m19", found)[-1] == letter(len(found) - 1) == "bdb"


def test_letters_go_on_behind_z() -> None:
    assert [letter(place) for place in (0, 25, 26, 27, 51, 52, 701, 702)] == [
        "a", "z", "aa", "ab", "az", "ba", "zz", "aaa"]
    assert letters("x", [("y",)] * 26 + [("x",)]) == ("aa",)
