"""Counting the tokens that a budget paid for, and no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.data import PackedBatches, ShuffledBatches, TokenStream
from weft.training.config import RunConfig


def tokens_paid_for(stream: TokenStream, run: RunConfig, tokens: int) -> TokenStream:
    """The windows that a model trained by gradients would read first in this order of the data, each once, in the
    order of the text; the whole stream where the tokens pay for all windows.

    Windows that do not touch are parted by a mark, so that nothing is counted across the gap.

    Args:
        stream: the training text.
        run: its batch, context and seed of the order.
        tokens: inputs that may be read.
    """
    # A stream of places: its batches say where the windows lie.
    places = replace(stream, tokens=np.arange(len(stream)))
    kind = PackedBatches if run.data.packing == "documents" else ShuffledBatches
    batches = kind(places, rows=1, length=run.context, seed=run.data.order_seed)
    wanted = max(1, int(tokens // batches.tokens_per_batch))
    if wanted >= batches.windows:
        return stream
    chosen = np.zeros(len(stream), dtype=np.bool_)
    for index in range(wanted):
        window = batches.batch(index)
        for read in (window.inputs, window.targets):
            chosen[read[0] if window.count is None else read[0, :window.count[0]]] = True
    gap = chosen & ~np.concatenate([[False], chosen[:-1]])
    return replace(stream, tokens=stream.tokens[chosen], begins=(stream.begins | gap)[chosen],
                   byte_lengths=stream.byte_lengths[chosen],
                   flags=None if stream.flags is None else stream.flags[chosen])
