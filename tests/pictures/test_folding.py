"""Repeating patterns are written once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from weft.pictures.folding import Fold, Folded, folded, ranges


def written(items: Folded[str]) -> str:
    return " ".join(f"{item.repeat}({written(item.items)})" if isinstance(item, Fold) else item for item in items)


def unfolded(items: Folded[str]) -> Iterator[str]:
    for item in items:
        if isinstance(item, Fold):
            for _ in range(item.repeat):
                yield from unfolded(item.items)
        else:
            yield item


@pytest.mark.parametrize(("items", "expected"), [
    ("", ""), ("A", "A"), ("AB", "A B"), ("AAAA", "4(A)"), ("ABAB", "2(A B)"), ("AAB", "2(A) B"),
    ("LLLLLG" * 4 + "LL", "4(5(L) G) 2(L)"), ("MMMAMMMA", "2(3(M) A)"), ("ABABC", "2(A B) C"), ("XAAAX", "X 3(A) X"),
])
def test_patterns_are_found(items: str, expected: str) -> None:
    assert written(folded(list(items), list(items))) == expected


@pytest.mark.parametrize("items", ["LLLLLGLLLLLGLL", "ABCABCABD", "AABBAABB", "ABABABA"])
def test_what_is_folded_is_the_whole_list(items: str) -> None:
    assert "".join(unfolded(folded(list(items), list(items)))) == items


def test_a_fold_knows_its_first_item() -> None:
    _, fold = folded(["A", "B", "B"], ["A", "B", "B"])
    assert isinstance(fold, Fold) and fold.first == 1


def test_ranges_of_numbers() -> None:
    assert ranges([0, 1, 2, 3, 5, 7, 8]) == "0 to 3, 5, 7, 8"
