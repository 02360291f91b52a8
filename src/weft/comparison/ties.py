"""Who is not told apart from whom, and the letters that say so."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence


def tied_sets(means: Mapping[str, float], tied: Mapping[frozenset[str], bool]) -> tuple[tuple[str, ...], ...]:
    """The sets of models of which no two are told apart and that no other model could join: two models share a set
    exactly where they are not told apart.

    These are the maximal cliques of that graph, by Bron and Kerbosch (1973) with a pivot. Sets, and the models in
    each, stand from best to worst.

    Args:
        means: bits per byte.
        tied: whether the corrected test leaves a pair together.
    """
    order = sorted(means, key=lambda name: (means[name], name))
    rank = {name: place for place, name in enumerate(order)}
    beside = {name: {other for other in order if other != name and tied[frozenset((name, other))]} for name in order}
    found = (sorted(rank[name] for name in members) for members in _cliques(set(), set(order), set(), beside))
    return tuple(tuple(order[place] for place in members) for members in sorted(found) if members)


def _cliques(members: set[str], open_to: set[str], done: set[str],
             beside: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """Maximal cliques that hold ``members``, may hold those of ``open_to``, and none of ``done``."""
    if not open_to and not done:
        yield members
        return
    pivot = max(sorted(open_to | done), key=lambda name: len(beside[name] & open_to))
    for name in sorted(open_to - beside[pivot]):
        yield from _cliques(members | {name}, open_to & beside[name], done & beside[name], beside)
        open_to, done = open_to - {name}, done | {name}


def tied_with(name: str, sets: Sequence[Sequence[str]]) -> frozenset[str]:
    """The models that share a set with ``name``."""
    return frozenset(other for each in sets if name in each for other in each) - {name}


def letters(name: str, sets: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Those of a model's sets: a, b, ..., z, aa, ab, ..."""
    return tuple(letter(place) for place, each in enumerate(sets) if name in each)


def letter(place: int) -> str:
    """Of the set at that place, from zero on."""
    many = len(string.ascii_lowercase)
    return (letter(place // many - 1) if place >= many else "") + string.ascii_lowercase[place % many]
