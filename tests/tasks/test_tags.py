"""Spans of labels in BIO form, and the measures of labelled words, by hand and against loops over the texts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from weft.tasks.classify_tokens import TagCounts, in_bio, spans_in

NAMES = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
B_LOC, B_PER, I_LOC, I_PER, NONE = range(5)


@pytest.mark.parametrize(("labels", "expected"), [
    ("O B-PER I-PER O B-LOC", [(1, 3, "PER"), (4, 5, "LOC")]),
    ("B-PER B-PER I-PER", [(0, 1, "PER"), (1, 3, "PER")]),
    ("I-PER I-PER O I-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),  # IOB1, as CoNLL-2003's files
    ("I-LOC B-LOC I-LOC", [(0, 1, "LOC"), (1, 3, "LOC")]),
    ("B-PER I-LOC I-LOC", [(0, 1, "PER"), (1, 3, "LOC")]),
    ("B-PER O I-PER", [(0, 1, "PER"), (2, 3, "PER")]),
    ("B-geo-loc I-geo-loc", [(0, 2, "geo-loc")]), ("O O", [])])
def test_spans_are_those_of_conlleval(labels: str, expected: list[tuple[int, int, str]]) -> None:
    assert spans_in(labels.split()) == expected


@pytest.mark.parametrize(("names", "expected"), [
    (NAMES, True), (("B-NP", "I-NP"), True), (("O", "X"), False), (("DET", "NOUN"), False), (("O", "B-"), False),
    (("B-PER", "E-PER", "O"), False), (("0", "1"), False)])
def test_which_labels_are_in_bio_form(names: tuple[str, ...], expected: bool) -> None:
    assert in_bio(names) is expected


def test_precision_recall_and_f1_of_spans_by_hand() -> None:
    """True: PER of words 0 and 1, LOC of 3; PER of 0. Predicted: PER of 0 and 1, LOC of 3 and 4; PER of 0, LOC of 1.
    Two of four predicted are right, and two of three true ones are found; a span of the right type and the wrong end
    is wrong."""
    counts = TagCounts(NAMES, 2)
    counts.add(np.array([B_PER, I_PER, NONE, B_LOC, NONE]), np.array([B_PER, I_PER, NONE, B_LOC, I_LOC]))
    counts.add(np.array([B_PER, NONE]), np.array([I_PER, B_LOC]))
    found = counts.measures()
    assert found["span_precision"] == pytest.approx(2 / 4) and found["span_recall"] == pytest.approx(2 / 3)
    assert found["span_f1"] == pytest.approx(4 / 7)
    assert found["accuracy"] == pytest.approx(4 / 7)
    # By class: B-LOC 1 of (1, 2), B-PER 1 of (2, 1), I-LOC 0 of (0, 1), I-PER 1 of (1, 2), O 1 of (3, 1).
    assert found["macro_f1"] == pytest.approx((2 / 3 + 2 / 3 + 0 + 2 / 3 + 2 / 4) / 5)


def test_spans_end_with_their_text() -> None:
    """I-PER at the start of a text does not continue the text before."""
    counts = TagCounts(NAMES, 2)
    counts.add(np.array([NONE, B_PER]), np.array([NONE, B_PER]))
    counts.add(np.array([I_PER, NONE]), np.array([B_PER, NONE]))
    assert counts.measures()["span_f1"] == 1.0 and counts.measures()["accuracy"] == 3 / 4


def test_nothing_predicted_and_labels_of_another_form() -> None:
    counts = TagCounts(NAMES, 1)
    counts.add(np.array([B_PER]), np.array([NONE]))
    assert {name: counts.measures()[name] for name in ("span_precision", "span_recall", "span_f1", "accuracy")} == {
        "span_precision": 0.0, "span_recall": 0.0, "span_f1": 0.0, "accuracy": 0.0}
    assert set(TagCounts(("DET", "NOUN"), 1).measures()) == {
        "accuracy", "accuracy_standard_error", "macro_f1", "macro_f1_standard_error"}


@pytest.mark.parametrize("texts", [7, 230])
def test_standard_errors_leave_out_texts(texts: int) -> None:
    """Against the definition: the measures without each text; with 230 texts, without each of 200 groups."""
    stream = np.random.default_rng(texts)
    drawn = [(true, np.where(stream.random(len(true)) < 0.7, true, stream.integers(5, size=len(true))))
             for true in (stream.integers(5, size=size) for size in stream.integers(1, 9, size=texts))]

    def counted(chosen: list[int]) -> TagCounts:
        counts = TagCounts(NAMES, len(chosen))
        for text in chosen:
            counts.add(*drawn[text])
        return counts

    groups, found = min(texts, 200), counted([*range(texts)]).measures()
    without = [counted([text for text in range(texts) if text % groups != group]).measures() for group in range(groups)]
    for name in ("accuracy", "macro_f1", "span_precision", "span_recall", "span_f1"):
        left_out = np.array([each[name] for each in without])
        wanted = math.sqrt((groups - 1) / groups * ((left_out - left_out.mean()) ** 2).sum())
        assert found[f"{name}_standard_error"] == pytest.approx(wanted, rel=1e-9) and wanted > 0
