"""Batches of a mixture against the rows of its sources, each read by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.core.errors import DataError
from weft.data import Corpus, Document, PackedBatches, ShuffledBatches, TokenStream, encode_corpus
from weft.data.array import JoinedArray
from weft.data.joining import joined, parted
from weft.data.mixed_batches import MixedBatches, mixed_batches, seed_of
from weft.data.spooled import spooled_corpus
from weft.tokenizers import ByteTokenizer

WEIGHTS = {"a": 3.0, "b": 1.0, "c": 2.0}
KINDS = {"stream": ShuffledBatches, "documents": PackedBatches}
PACKINGS = pytest.mark.parametrize("packing", list(KINDS))


def stream_of(name: str, words: int, borders: tuple[int, ...] = ()) -> TokenStream:
    texts = [f"{name}{i} " * (1 + i * 7 % 11) for i in range(words)]
    documents = tuple(Document(f"{name}{i}", text, borders) for i, text in enumerate(texts))
    return encode_corpus(Corpus(name, documents), ByteTokenizer())


def streams() -> dict[str, TokenStream]:
    return {"a": stream_of("a", 90), "b": stream_of("b", 60, (0, 2)), "c": stream_of("c", 25)}


def batches(packing: Any, caps: dict[str, float | None] | None = None, rows: int = 8) -> MixedBatches:
    return mixed_batches(joined(streams(), WEIGHTS, caps), packing=packing, rows=rows, length=16, seed=5)


def column(found: Any, name: str, packing: str) -> list[Any]:
    """A field of the rows of a batch without padding."""
    return [row[:count].tolist() for row, count in zip(getattr(found, name), found.tokens_of_rows, strict=True)]


@PACKINGS
def test_rows_are_those_of_the_sources_in_their_own_orders(packing: str) -> None:
    mixed, whole = batches(packing), joined(streams(), WEIGHTS)
    own = {name: KINDS[packing](each, rows=1, length=16, seed=seed_of(5, name)) for name, each in streams().items()}
    had = dict.fromkeys(own, 0)
    for step in range(66):  # past the 64 steps that are found together
        found = mixed.batch(step)
        assert found.source is not None and found.epoch is not None and found.places is not None
        for row, source in enumerate(found.source.tolist()):
            name = list(own)[source]
            wanted = own[name].batch(had[name])
            had[name] += 1
            count = int(wanted.tokens_of_rows[0])
            assert count == found.tokens_of_rows[row] and wanted.epoch is not None
            assert found.epoch[row] == wanted.epoch[0]
            for field in ("inputs", "targets", "begins", "scored", "target_bytes"):
                np.testing.assert_array_equal(getattr(found, field)[row], getattr(wanted, field)[0])
            places = found.places[row, :count]
            np.testing.assert_array_equal(whole.tokens[places], found.inputs[row, :count])
            assert whole.sources is not None
            assert whole.sources.each[source].first <= places.min() and places.max() < whole.sources.each[source].last
    assert had["c"] > mixed.own[2].windows  # its second pass has begun


@PACKINGS
def test_one_two_and_four_ranks_read_the_same_tokens(packing: str) -> None:
    mixed = batches(packing)
    for step in (0, 63, 64, 1000):
        whole = mixed.batch(step)
        for world in (2, 4):
            shares = [mixed.batch(step, rank=rank, world=world) for rank in range(world)]
            for field in ("inputs", "targets", "begins", "scored", "places", "source", "epoch"):
                np.testing.assert_array_equal(np.concatenate([getattr(share, field) for share in shares]),
                                              getattr(whole, field))


def test_the_order_of_a_source_is_its_own() -> None:
    """Of sources with as many rows; and it stays when others come or go."""
    same = {name: stream_of("x", 40) for name in ("a", "b")}
    mixed = mixed_batches(joined(same, {"a": 1, "b": 1}), packing="stream", rows=8, length=16)
    alone = mixed_batches(joined({"b": same["b"]}, {"b": 1}), packing="stream", rows=8, length=16)
    rows = np.arange(mixed.own[0].windows)
    orders = [batches.placed(rows)[0].tolist() for batches in (*mixed.own, *alone.own)]
    assert orders[0] != orders[1] and orders[1] == orders[2]


@PACKINGS
def test_weights_are_shares_of_tokens(packing: str) -> None:
    mixed = batches(packing)
    tokens = np.zeros(3)
    for step in range(400):
        found = mixed.batch(step)
        tokens += np.bincount(found.source, weights=found.tokens_of_rows, minlength=3)
    # Packed rows differ in length, which evens out over each pass; within one they are off by a row or two.
    assert tokens == pytest.approx(tokens.sum() * np.array([3 / 6, 1 / 6, 2 / 6]), abs=2 * 16)
    assert tokens.sum() / 400 == pytest.approx(mixed.tokens_per_batch, rel=1e-3)


def test_a_capped_source_stops_and_the_whole_may_end() -> None:
    mixed = batches("stream", {"a": 1.0, "b": 1.0, "c": 0.5})
    rows = [each.windows for each in mixed.own]
    limits = [rows[0], rows[1], rows[2] // 2]
    assert mixed.order.total == sum(limits)
    steps = sum(limits) // 8
    found = np.concatenate([mixed.batch(step).source for step in range(steps)])
    assert np.bincount(found)[2] == limits[2] and np.bincount(found)[0] >= limits[0] - 8
    with pytest.raises(DataError, match="Raise max_epochs, or train for fewer steps"):
        mixed.batch(steps)


def test_parts_of_a_joined_stream_are_the_streams() -> None:
    own = streams()
    for name, part in parted(joined(own, WEIGHTS)).items():
        for field in ("tokens", "begins", "byte_lengths"):
            np.testing.assert_array_equal(np.asarray(getattr(part, field)), np.asarray(getattr(own[name], field)))
        np.testing.assert_array_equal(part.scored(np.arange(len(part))), own[name].scored(np.arange(len(part))))
        assert part.corpus == name and part.sources is None


def test_tokens_on_disk_are_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a word is so long that its bytes need a wider dtype, from which on a stretch of the file is wider."""
    monkeypatch.setattr("weft.data.spooled.HELD_BYTES", 64)
    documents = tuple(Document(str(i), "ab cd " * 9, (0, i)) for i in range(1, 6))
    held, spooled = (make(Corpus("x", documents), ByteTokenizer()) for make in (encode_corpus, spooled_corpus))
    for field in ("tokens", "begins", "byte_lengths", "flags"):
        np.testing.assert_array_equal(np.asarray(getattr(spooled, field)), getattr(held, field))
        assert getattr(spooled, field).dtype == getattr(held, field).dtype
    wide = JoinedArray([np.array([1, 2], np.uint8), np.array([300], np.uint16)])
    assert wide[np.array([0, 2])].tolist() == [1, 300]


@pytest.mark.parametrize(("caps", "context", "message"), [
    ({"c": 0.01}, 16, r"max_epochs 0\.01 of 34 rows is less than one row\. Raise it, or leave the source out"),
    ({}, 4000, r"tokens are too few: one window of context 4000 needs 4001"),
])
def test_a_source_without_one_row_is_refused_by_name(caps: dict[str, float | None], context: int,
                                                     message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        mixed_batches(joined(streams(), WEIGHTS, caps), packing="stream", rows=8, length=context)
    assert error.value.where in ("data.sources.c", "a")
