"""Which batches a run trains on."""

from __future__ import annotations

from weft.data import Batches, PackedBatches, SequentialBatches, ShuffledBatches, TokenStream
from weft.training.config import RunConfig


def batches_of(config: RunConfig, stream: TokenStream) -> Batches:
    """The batches of a run, in its order.

    Raises:
        DataError: a text shorter than one batch needs.
    """
    training = config.training
    kind: type[ShuffledBatches | SequentialBatches | PackedBatches] = ShuffledBatches
    if training.carry_state:
        kind = SequentialBatches
    elif config.data.packing == "documents":
        kind = PackedBatches
    return kind(stream, rows=training.batch_size, length=config.context, seed=config.data.order_seed,
                reshuffle=training.reshuffle)
