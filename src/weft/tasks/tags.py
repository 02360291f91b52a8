"""Measures of labelled words: accuracy, F1 of classes, and F1 of whole spans where labels are in BIO form."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, final

import numpy as np
from jaxtyping import Int64

from weft.tasks.classes import macro_f1
from weft.tasks.correlations import GROUPS, error_of

OUTSIDE = "O"
IN_SPAN = re.compile(r"[BI]-.+", re.DOTALL)


class TaggedSpan(NamedTuple):
    """Words that stand for one thing: the first of them, the one behind the last, and their type."""

    first: int
    behind: int
    type: str


def in_bio(names: Sequence[str]) -> bool:
    """Whether labels are in BIO form: ``B-x`` and ``I-x`` for words of a span of the type x, and ``O`` for others."""
    return any(IN_SPAN.fullmatch(name) for name in names) and all(
        name == OUTSIDE or IN_SPAN.fullmatch(name) for name in names)


def spans_in(labels: Sequence[str]) -> list[TaggedSpan]:
    """The spans of one text from its words' labels in BIO form, as CoNLL-2003's program ``conlleval`` finds them.

    A span begins at a B-x, and at an I-x that does not continue a span of the type x. So texts in which only spans next
    to one of the same type begin with B (CoNLL-2003's own files, IOB1) have the same spans as those in which all do.
    """
    found: list[TaggedSpan] = []
    for place, label in enumerate(labels):
        if label == OUTSIDE:
            continue
        form, kind = label.split("-", 1)
        if form == "I" and found and found[-1].behind == place and found[-1].type == kind:
            found[-1] = found[-1]._replace(behind=place + 1)
        else:
            found.append(TaggedSpan(place, place + 1, kind))
    return found


Totals: TypeAlias = Callable[[np.ndarray, np.ndarray, np.ndarray], float]
"""A measure of counts: of right predictions, of what is true and of what is predicted."""


@final
class TagCounts:
    """Counts over the words of texts.

    The words of a text are not independent, so standard errors are those of the jackknife over texts: each is left out
    by itself, or with more than `weft.tasks.correlations.GROUPS` texts one of that many groups.

    Args:
        names: of the classes, in the order of their ids.
        texts: how many will be added.
    """

    def __init__(self, names: Sequence[str], texts: int) -> None:
        self._names, self._added = tuple(names), 0
        groups = min(texts, GROUPS)
        self._classes = np.zeros((groups, 3, len(names)), dtype=np.int64)
        self._spans = np.zeros((groups, 3, 1), dtype=np.int64) if in_bio(names) else None

    def add(self, true: Int64[np.ndarray, " W"], predicted: Int64[np.ndarray, " W"]) -> None:
        """Count one more text, from the classes of its words."""
        group, size = self._added % len(self._classes), len(self._names)
        self._added += 1
        for place, chosen in enumerate((true[true == predicted], true, predicted)):
            self._classes[group, place] += np.bincount(chosen, minlength=size)
        if self._spans is not None:
            wanted, found = ({*spans_in([self._names[each] for each in labels])} for labels in (true, predicted))
            self._spans[group, :, 0] += [len(wanted & found), len(wanted), len(found)]

    def measures(self) -> dict[str, float]:
        """Every measure by its name, each with its standard error; those of spans only for labels in BIO form."""
        found: list[tuple[str, Totals, np.ndarray]] = [
            ("accuracy", _recall, self._classes), ("macro_f1", macro_f1, self._classes)]
        if self._spans is not None:
            found += [("span_precision", _precision, self._spans), ("span_recall", _recall, self._spans),
                      ("span_f1", _f1, self._spans)]
        measures: dict[str, float] = {}
        for name, measure, counts in found:
            total = counts.sum(0)
            measures |= {name: measure(*total),
                         f"{name}_standard_error": error_of([measure(*(total - group)) for group in counts])}
        return measures


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _precision(both: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> float:
    return _share(int(both.sum()), int(predicted.sum()))


def _recall(both: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> float:
    """The recall of words, of which each has one true and one predicted class; it is the accuracy."""
    return _share(int(both.sum()), int(true.sum()))


def _f1(both: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> float:
    return _share(2 * int(both.sum()), int(true.sum() + predicted.sum()))
