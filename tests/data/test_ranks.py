"""Data-parallel ranks: together they have the batch of one process, row by row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import DataError
from weft.data import Batches, PackedBatches, SequentialBatches, ShuffledBatches, embedded_corpus, encode_corpus
from weft.tokenizers import ByteTokenizer

STREAM = encode_corpus(embedded_corpus(max_bytes=3000), ByteTokenizer())
KINDS = pytest.mark.parametrize("kind", [ShuffledBatches, SequentialBatches, PackedBatches])


@KINDS
@settings(max_examples=40, deadline=None)
@given(each=st.integers(1, 3), world=st.integers(1, 5), length=st.integers(1, 9), step=st.integers(0, 10**6),
       seed=st.integers(0, 9))
def test_the_ranks_share_one_global_batch(kind: type[Batches], each: int, world: int, length: int, step: int,
                                          seed: int) -> None:
    batches = kind(STREAM, rows=each * world, length=length, seed=seed)
    whole = batches.batch(step)
    shares = [batches.batch(step, rank=rank, world=world) for rank in range(world)]
    for name in ("inputs", "targets", "begins", "scored", "target_bytes"):
        np.testing.assert_array_equal(np.concatenate([getattr(share, name) for share in shares]), getattr(whole, name))
    counts = [share.count if share.count is not None else np.full(each, length) for share in shares]
    np.testing.assert_array_equal(np.concatenate(counts), np.full(len(whole.inputs), length)
                                  if whole.count is None else whole.count)
    assert {share.fresh for share in shares} == {whole.fresh}
    assert sum(share.scored_tokens for share in shares) == whole.scored_tokens


@KINDS
@pytest.mark.parametrize(("rank", "world", "message"), [
    (0, 4, r"world: 6 rows do not divide into 4 ranks\. Choose a batch size that is a multiple"),
    (0, 0, r"world: 6 rows do not divide into 0 ranks"),
    (3, 3, r"rank: must be from 0 to 2, received 3\. Give each process its own number"),
    (-1, 2, r"rank: must be from 0 to 1, received -1"),
])
def test_ranks_that_do_not_fit_are_refused(kind: type[Batches], rank: int, world: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        kind(STREAM, rows=6, length=4).batch(0, rank=rank, world=world)
