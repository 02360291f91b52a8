"""Prefixes of documents in rows of text, against loops over the tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from weft.data import Batch, Corpus, Document, PackedBatches, ShuffledBatches, encode_corpus
from weft.data.masking import PrefixedRows, with_drawn_prefixes, with_prompts
from weft.tokenizers import ByteTokenizer

LINES = [f"line {i} of {'some ' * (i % 4)}text" for i in range(40)]
PROMPTED = [(f"ask {'me ' * (i % 3)}", f"answer {i}") for i in range(40)]


def batches_of(packed: bool, *, prompted: bool) -> ShuffledBatches | PackedBatches:
    documents = [Document(str(i), a + b, (0, len(a))) for i, (a, b) in enumerate(PROMPTED)] if prompted else [
        Document(str(i), line) for i, line in enumerate(LINES)]
    stream = encode_corpus(Corpus("lines", tuple(documents)), ByteTokenizer())
    return (PackedBatches if packed else ShuffledBatches)(stream, rows=4, length=24)


def documents(batch: Batch) -> list[tuple[int, int, int]]:
    """Row, first input and end of each document in a batch."""
    found = []
    for row in range(len(batch.inputs)):
        count = batch.inputs.shape[1] if batch.count is None else int(batch.count[row])
        starts = [place for place in range(count) if place == 0 or batch.begins[row, place]]
        found += [(row, first, last) for first, last in zip(starts, [*starts[1:], count], strict=True)]
    return found


def drawn(batch: Batch) -> PrefixedRows:
    return with_drawn_prefixes(batch, 5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("prompted", "made"), [(False, drawn), (True, drawn), (True, with_prompts)])
def test_a_prefix_is_the_beginning_of_its_document_and_predicts_what_follows_it_alone(
        packed: bool, prompted: bool, made: Callable[[Batch], PrefixedRows]) -> None:
    batches = batches_of(packed, prompted=prompted)
    for step in range(4):
        text = batches.batch(step)
        found = made(text)
        outside = np.ones_like(found.prefix)
        for row, first, last in documents(text):
            outside[row, first:last] = False
            flags = found.prefix[row, first:last]
            length = int(flags.sum())
            assert 1 <= length <= last - first and flags[:length].all(), "it begins with the document"
            assert not found.text.scored[row, first:first + length - 1].any(), "no token that is seen is predicted"
            behind = slice(first + length - 1, last)
            np.testing.assert_array_equal(found.text.scored[row, behind], text.scored[row, behind])
            if made is with_prompts:
                scored = [place for place in range(first, last) if text.scored[row, place]]
                assert first + length == (scored[0] + 1 if scored else last)
        assert not found.prefix[outside].any(), "padding is none"


def test_random_places_are_equally_likely_and_belong_to_the_document() -> None:
    """Lengths of prefixes of documents of 12 inputs, by chance; the bound is passed once in a thousand."""
    stream = encode_corpus(Corpus("c", tuple(Document(str(i), "abcdefghijk") for i in range(3000))), ByteTokenizer())
    whole = PackedBatches(stream, rows=3000, length=12).batch(0)
    lengths = with_drawn_prefixes(whole, 5).prefix.sum(1)
    assert stats.chisquare(np.bincount(lengths, minlength=13)[1:]).pvalue > 1e-3 and lengths.min() == 1
    batches = batches_of(True, prompted=False)
    first = drawn(batches.batch(3))
    parts = [drawn(batches.batch(3, rank=rank, world=2)) for rank in range(2)]
    np.testing.assert_array_equal(np.concatenate([part.prefix for part in parts]), first.prefix)
    assert (with_drawn_prefixes(batches.batch(3), 6).prefix != first.prefix).any()
    assert whole.epoch is not None
    later = Batch(whole.inputs, whole.targets, whole.begins, whole.scored, whole.target_bytes, count=whole.count,
                  places=whole.places, epoch=whole.epoch + 1)
    assert (with_drawn_prefixes(later, 5).prefix.sum(1) != lengths).mean() > 0.8
