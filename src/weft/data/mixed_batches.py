"""Batches of a mixture: each row is of one source, and every source has its share of the tokens at every prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Int64

from weft.core.errors import DataError
from weft.data.batch import Batch
from weft.data.batch_source import BatchSource
from weft.data.batches import Batches, MadeOfText, ShuffledBatches
from weft.data.joining import parted
from weft.data.mixed_order import MixedOrder
from weft.data.packed import PackedBatches
from weft.data.stream import JoinedSource, TokenStream


def mixed_batches(stream: TokenStream, *, packing: Literal["stream", "documents"], rows: int, length: int,
                  seed: int = 0, reshuffle: bool = True) -> MixedBatches:
    """The batches of a joined stream.

    Args:
        packing: how the documents of each source fill its rows.
        rows: B, rows per batch.
        length: T, inputs of a row at most.
        reshuffle: see `Batches`.

    Raises:
        DataError: a source is too short for a row, or may not be read long enough for one; ``where`` names it.
    """
    assert stream.sources is not None, "called for a joined stream"
    kind = PackedBatches if packing == "documents" else ShuffledBatches
    own = {name: kind(each, rows=rows, length=length, seed=seed_of(seed, name), reshuffle=reshuffle)
           for name, each in parted(stream).items()}
    return MixedBatches(stream, own, rows=rows, length=length, seed=seed, reshuffle=reshuffle)


def seed_of(seed: int, name: str) -> int:
    """The seed of a source's order, which depends on no other source."""
    return int.from_bytes(hashlib.sha256(f"source\0{seed}\0{name}".encode()).digest()[:8], "big")


class MixedBatches(Batches):
    """Rows of several sources, each in its own shuffled order, which begins anew in another order when the source has
    been read once.

    Weights are shares of tokens. Where rows of the sources hold different numbers of tokens, as packed ones do, a
    source has rows in proportion to its weight divided by the tokens of its rows. Which source a row is of is no random
    choice: see `weft.data.mixed_order`.

    Args:
        own: the rows of each source, by name, in the order of ``stream.sources``.
        rows: B, rows per batch.
        length: T, inputs of a row at most.
        reshuffle: see `Batches`.

    Raises:
        DataError: a source may not be read long enough for one row.
    """

    def __init__(self, stream: TokenStream, own: Mapping[str, ShuffledBatches | PackedBatches], *, rows: int,
                 length: int, seed: int = 0, reshuffle: bool = True) -> None:
        super().__init__(stream, rows=rows, length=length, seed=seed, reshuffle=reshuffle)
        assert stream.sources is not None, "made of a joined stream"
        self.sources = stream.sources.each
        self.own: list[Batches] = list(own.values())
        self.notices = [f"{name}: {each.notice}" for name, each in own.items() if isinstance(each, PackedBatches)]
        weights = zip(stream.sources.weights(), self.own, strict=True)
        self.order = MixedOrder([weight / each.tokens_per_row for weight, each in weights],
                                [_limit(source, each) for source, each in zip(self.sources, self.own, strict=True)])
        self.total = self.order.total

    @property
    def tokens_per_epoch(self) -> list[float]:
        """Inputs that one pass over each source reads, without padding."""
        return [each.windows * each.tokens_per_row for each in self.own]

    @property
    def steps_per_epoch(self) -> float:
        """Steps that read as many tokens as all sources hold."""
        return sum(self.tokens_per_epoch) / self.tokens_per_batch

    @property
    def tokens_per_batch(self) -> float:
        weights = self.stream.sources.weights() if self.stream.sources is not None else ()
        # Rows of a source are w / t of all, divided by the sum of these.
        return self.rows / sum(weight / each.tokens_per_row for weight, each in zip(weights, self.own, strict=True))

    @property
    def notice(self) -> str | None:
        """The result of packing, a line for each source; None where documents are not packed."""
        return "\n".join(self.notices) or None

    def placed(self, samples: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "columns n"]:
        """The sources of consecutive rows, their content there, and their epochs there."""
        drawn = self.order.rows(int(samples[0]), int(samples[-1]) + 1) if len(samples) else self.order.rows(0, 0)
        found = np.stack([drawn.source, drawn.number, drawn.number])
        for each in np.unique(drawn.source).tolist():
            here = np.flatnonzero(drawn.source == each)
            found[1:, here] = self.own[each].placed(drawn.number[here])
        return found

    def filled(self, rows: Int64[np.ndarray, "columns B"]) -> Batch:
        """The rows of each source, at their places in the whole stream."""
        source, _, epoch = rows
        here = {each: np.flatnonzero(source == each) for each in np.unique(source).tolist()}
        parts = [self.own[each].filled(rows[1:, places]) for each, places in here.items()]
        together = [replace(found, places=found.places + self.sources[each].first) for each, found in
                    zip(here, parts, strict=True) if found.places is not None]
        return _merged(list(here.values()), together, source, epoch)


def mixture_of(batches: BatchSource[Any]) -> MixedBatches | None:
    """The batches of a mixture of sources that ``batches`` are or are made of; None where the data are one text."""
    text = batches.text if isinstance(batches, MadeOfText) else batches
    return text if isinstance(text, MixedBatches) else None


def _limit(source: JoinedSource, own: Batches) -> int | None:
    """The most rows of a source."""
    if source.max_epochs is None:
        return None
    found = int(source.max_epochs * own.windows + 1e-6)  # 0.29 x 100 is 28.999...
    if not found:
        raise DataError(f"max_epochs {source.max_epochs:g} of {own.windows} rows is less than one row.",
                        where=f"data.sources.{source.name}", remedy="Raise it, or leave the source out.")
    return found


def _merged(rows: list[np.ndarray], parts: list[Batch], source: Int64[np.ndarray, " B"],
            epoch: Int64[np.ndarray, " B"]) -> Batch:
    """One batch of the rows of several, each at its place."""
    def together(columns: list[np.ndarray]) -> np.ndarray:
        out = np.empty((len(source), *columns[0].shape[1:]), dtype=columns[0].dtype)
        for here, column in zip(rows, columns, strict=True):
            out[here] = column
        return out

    count = together([part.tokens_of_rows for part in parts])
    full = bool((count == parts[0].inputs.shape[1]).all())
    lost = [part.target_lost for part in parts if part.target_lost is not None]  # one tokenizer: of all parts, or none
    return Batch(
        inputs=together([part.inputs for part in parts]), targets=together([part.targets for part in parts]),
        begins=together([part.begins for part in parts]), scored=together([part.scored for part in parts]),
        target_bytes=together([part.target_bytes for part in parts]), count=None if full else count,
        places=together([part.places for part in parts if part.places is not None]), epoch=epoch, source=source,
        target_lost=together(lost) if lost else None)
