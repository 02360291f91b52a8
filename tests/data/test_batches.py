"""Training batches: pure in (seed, step), every window once per epoch, contiguous where a state is carried."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.errors import DataError
from weft.data import Batch, Batches, Corpus, Document, SequentialBatches, ShuffledBatches, TokenStream, encode_corpus
from weft.data.orders import permute
from weft.tasks.text import text_columns
from weft.tokenizers import BPETokenizer, ByteTokenizer

KINDS = pytest.mark.parametrize("kind", [ShuffledBatches, SequentialBatches])
SHAPES = {"rows": st.integers(1, 4), "length": st.integers(1, 7), "seed": st.integers(-(2**70), 2**70)}


def numbered(count: int) -> TokenStream:
    """Tokens that name their own position, in documents of 5, so that batches can be read off."""
    places = np.arange(count)
    return TokenStream(
        tokens=places.astype(np.uint32),
        begins=places % 5 == 0,
        byte_lengths=(places % 3).astype(np.uint8),
        begins_scored=True,
        vocab_size=count,
        corpus="numbers",
        corpus_sha256="",
        tokenizer_sha256="",
    )


def same(a: Batch, b: Batch) -> bool:
    fields = ("inputs", "targets", "begins", "scored", "target_bytes")
    return a.fresh == b.fresh and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in fields)


@KINDS
def test_without_reshuffling_every_epoch_is_the_first(kind: type[Batches]) -> None:
    stream = numbered(64)
    fixed, anew = (kind(stream, rows=2, length=3, seed=1, reshuffle=value) for value in (False, True))
    epoch = 21 if kind is ShuffledBatches else 10  # epochs of 21 windows are whole after 21 batches of 2
    first = [fixed.batch(step) for step in range(epoch)]
    assert all(same(fixed.batch(2 * epoch + step), batch) for step, batch in enumerate(first))
    assert all(same(anew.batch(step), first[step]) for step in range(epoch // 2))
    assert not all(same(anew.batch(2 * epoch + step), batch) for step, batch in enumerate(first))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 300), seed=SHAPES["seed"], epoch=st.integers(0, 10**9))
def test_a_permutation_has_every_place_once(size: int, seed: int, epoch: int) -> None:
    found = permute(np.arange(size), size, seed=seed, epoch=np.full(size, epoch))
    assert sorted(found) == list(range(size))


@pytest.mark.parametrize("vary", ["seed", "epoch"])
def test_a_permutation_is_uniform(vary: str) -> None:
    seeds, epochs, size = (400, 2, 10) if vary == "seed" else (1, 800, 10)
    places, epoch = np.tile(np.arange(size), epochs), np.repeat(np.arange(epochs), size)
    counts = np.zeros((size, size))
    for seed in range(seeds):
        np.add.at(counts, (places, permute(places, size, seed=seed, epoch=epoch)), 1)
    expected = seeds * epochs / size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert 30 < chi_square < 150  # 81 degrees of freedom: mean 81, standard deviation 12.7


def mixed(state: int) -> int:
    """One step of SplitMix64 from that state."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def place_by_hand(item: int, size: int, seed: int, epoch: int) -> int:
    """`permute` for one item, in Python's integers."""
    key = mixed((mixed(seed % 2**64) + epoch * 0x9E3779B97F4A7C15) % 2**64)
    bits = 1
    while 4**bits < size:
        bits += 1
    while True:
        left, right = divmod(item, 2**bits)
        for turn in range(8):
            secret = mixed((right + mixed((key + turn) % 2**64)) % 2**64)
            left, right = right, left ^ (secret % 2**bits)
        item = left * 2**bits + right
        if item < size:
            return item


def test_the_generator_is_splitmix64() -> None:
    assert mixed(0) == 0xE220A8397B1DCDAF  # published first output from state 0


@pytest.mark.parametrize("size", [1, 2, 4, 5, 17, 100, 10**9])
@pytest.mark.parametrize("seed", [0, 7, -3, 2**64 - 1])
def test_orders_never_change(size: int, seed: int) -> None:
    items = np.arange(min(size, 20))
    epoch = np.arange(len(items)) * 1000
    by_hand = [place_by_hand(int(item), size, seed, int(number)) for item, number in zip(items, epoch, strict=True)]
    assert permute(items, size, seed=seed, epoch=epoch).tolist() == by_hand


@KINDS
@settings(max_examples=40, deadline=None)
@given(**SHAPES, count=st.integers(30, 120), step=st.integers(0, 10**6))
def test_a_batch_depends_on_seed_and_step_alone(
    kind: type[Batches], rows: int, length: int, seed: int, count: int, step: int
) -> None:
    one, other = (kind(numbered(count), rows=rows, length=length, seed=seed) for _ in range(2))
    for asked in (step + 3, 0, step):
        other.batch(asked)
    assert same(one.batch(step), other.batch(step))


@KINDS
@settings(max_examples=40, deadline=None)
@given(**SHAPES, count=st.integers(30, 120), step=st.integers(0, 10**6))
def test_targets_follow_inputs_and_flags_follow_tokens(
    kind: type[Batches], rows: int, length: int, seed: int, count: int, step: int
) -> None:
    stream = numbered(count)
    batch = kind(stream, rows=rows, length=length, seed=seed).batch(step)
    assert batch.inputs.shape == (rows, length)
    np.testing.assert_array_equal(batch.targets, batch.inputs + 1)
    np.testing.assert_array_equal(np.diff(batch.inputs, axis=1), 1)
    np.testing.assert_array_equal(batch.begins, batch.inputs % 5 == 0)
    np.testing.assert_array_equal(batch.target_bytes, batch.targets % 3)
    assert batch.scored.all() and batch.scored_tokens == rows * length
    assert batch.scored_bytes == (batch.targets % 3).sum()


@settings(max_examples=25, deadline=None)
@given(**SHAPES, count=st.integers(30, 70))
def test_an_epoch_has_every_window_once(rows: int, length: int, seed: int, count: int) -> None:
    batches = ShuffledBatches(numbered(count), rows=rows, length=length, seed=seed)
    windows = (count - 1) // length
    assert batches.windows == windows and batches.steps_per_epoch == windows / rows
    steps = range(-(-2 * windows // rows))
    firsts = np.concatenate([batches.batch(step).inputs[:, 0] for step in steps])
    for epoch in (firsts[:windows], firsts[windows : 2 * windows]):
        offset = epoch.min()
        assert sorted(epoch - offset) == [length * window for window in range(windows)]
        assert offset <= (count - 1) % length
    assert all(batches.batch(step).fresh for step in steps)


def test_seeds_and_epochs_change_the_order_and_every_token_is_reached() -> None:
    stream = numbered(1000)
    orders = [tuple(ShuffledBatches(stream, rows=50, length=9, seed=seed).batch(0).inputs[:, 0]) for seed in range(5)]
    assert len(set(orders)) == 5
    batches = ShuffledBatches(stream, rows=111, length=9, seed=0)
    epochs = [batches.batch(epoch).inputs for epoch in range(12)]
    starts = [(epoch[:, 0] - epoch[:, 0].min()).tolist() for epoch in epochs]
    assert all(a != b for a, b in pairwise(starts))
    batches = ShuffledBatches(stream, rows=100, length=10, seed=0)
    seen = np.concatenate([batches.batch(epoch).targets.ravel() for epoch in range(60)])
    assert set(seen) == set(range(1, 1000))


@settings(max_examples=40, deadline=None)
@given(**SHAPES, count=st.integers(30, 120))
def test_sequential_rows_continue_until_the_lanes_end(rows: int, length: int, seed: int, count: int) -> None:
    batches = SequentialBatches(numbered(count), rows=rows, length=length, seed=seed)
    windows = (count - 1) // (rows * length)
    assert batches.steps_per_epoch == windows
    for epoch in range(3):
        steps = [batches.batch(epoch * windows + place) for place in range(windows)]
        assert [batch.fresh for batch in steps] == [place == 0 for place in range(windows)]
        targets = np.concatenate([batch.targets for batch in steps], axis=1)
        np.testing.assert_array_equal(np.diff(targets, axis=1), 1)
        assert len(set(targets.ravel())) == rows * windows * length


def test_first_tokens_of_documents_do_not_count_without_a_shared_separator() -> None:
    tokenizer = BPETokenizer(BPETokenizer.train(["ab ab ab"], 258).files()["tokenizer.json"])
    corpus = Corpus("c", (Document("x", "zyx"), Document("y", "wvut")))
    batch = SequentialBatches(encode_corpus(corpus, tokenizer), rows=1, length=6).batch(0)
    assert batch.begins.tolist() == [[True, False, False, True, False, False]]
    assert batch.scored.tolist() == [[True, True, False, True, True, True]]
    assert batch.scored_bytes == 5


@KINDS
def test_tensors_hold_the_same_values(kind: type[Batches]) -> None:
    batch = kind(numbered(50), rows=2, length=8, seed=3).batch(1)
    columns = text_columns(batch)
    assert columns.inputs.dtype == columns.targets.dtype == torch.int64 and columns.scored.dtype == torch.bool
    for name in ("inputs", "targets", "scored"):
        np.testing.assert_array_equal(getattr(columns, name).numpy(), getattr(batch, name))
    assert columns.span.fresh == batch.fresh


def test_a_corpus_shorter_than_one_window_is_refused() -> None:
    message = r"^numbers: 37 tokens are too few: one window of context 64 needs 65\. Give .* a context of at most 36\."
    with pytest.raises(DataError, match=message):
        ShuffledBatches(numbered(37), rows=8, length=64)
    assert ShuffledBatches(numbered(37), rows=8, length=36).windows == 1
    message = r"one window of context 64 in each of 8 lanes needs 513\. .* a context of at most 4\."
    with pytest.raises(DataError, match=message):
        SequentialBatches(numbered(37), rows=8, length=64)
    assert SequentialBatches(numbered(37), rows=8, length=4).windows == 1
    with pytest.raises(DataError, match=r"needs 41\. Give more text\.$"):
        SequentialBatches(numbered(3), rows=40, length=1)


@KINDS
@pytest.mark.parametrize(("name", "rows", "length"), [("rows", 0, 4), ("length", 4, 0), ("length", 4, -2)])
def test_empty_batches_are_refused(kind: type[Batches], name: str, rows: int, length: int) -> None:
    with pytest.raises(DataError, match=rf"^{name}: must be at least 1, received {min(rows, length)}\. Raise it\."):
        kind(encode_corpus(Corpus("c", (Document("d", "some text"),)), ByteTokenizer()), rows=rows, length=length)
