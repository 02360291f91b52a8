"""Pairs of a source and a target as tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64, Int64

from weft.core.errors import DataError
from weft.data.corpus import Corpus
from weft.data.document import Document
from weft.data.duplicates import Repeated
from weft.data.layout import NO_IDS, layout_of
from weft.data.rows import values_of
from weft.data.sequences import Sequences, SequenceWriter, encoded_texts
from weft.tokenizers import Tokenizer
from weft.tokenizers.lost import lost_nats


def texts_of(corpus: Corpus) -> Iterator[str]:
    """Sources and targets alternately."""
    return (text for row in corpus.documents for text in values_of(row))


@final
@dataclass(frozen=True, eq=False)
class Pairs:
    """Sources and targets as tokens. A source is followed by a closing token; a target is between an opening and a
    closing token.

    Attributes:
        sources: their tokens.
        targets: their tokens.
        target_bytes: bytes of text of each target's tokens.
        cut: number of pairs whose source or target was longer than the context.
        corpus: name of the records.
        repeated: see `weft.tasks.base.Examples`.
        lost: nats for text that each target's tokens do not tell, see `weft.tokenizers.lost`.
    """

    sources: Sequences
    targets: Sequences
    target_bytes: Sequences
    cut: int
    corpus: str
    repeated: Repeated | None
    lost: Float64[np.ndarray, " P"]

    def __len__(self) -> int:
        """Tokens to predict."""
        return len(self.targets.ids) - len(self.targets)


def encode_pairs(corpus: Corpus, tokenizer: Tokenizer, source_context: int, context: int, repeated: Repeated | None, *,
                 cut: bool) -> Pairs:
    """Encode every record's source and target.

    Args:
        corpus: of records that hold a source and a target.
        tokenizer: of both.
        source_context: tokens of a source at most; fewer than ``context`` where the encoder has no more positions.
        context: tokens of a target without its opening token at most.
        repeated: see `weft.tasks.base.Examples`.
        cut: whether longer ones are cut at their ends.

    Raises:
        TokenizerError: the tokenizer cannot express a text; ``where`` names the record, or the text's file and line.
        DataError: a source or a target is longer, and ``cut`` is False.
    """
    opening, closing = ends_of(tokenizer)
    sources, targets, sizes = (SequenceWriter(corpus.name, most) for most in
                               (tokenizer.vocab_size - 1, tokenizer.vocab_size - 1, 1 << 31))
    named = ((corpus.place_of(row, value), text) for row in corpus.documents for value, text in
             enumerate(values_of(row)))
    encoded, longer, lost = encoded_texts(named, tokenizer), 0, list[float]()
    for row, source, target in zip(corpus.documents, encoded, encoded, strict=True):
        whole = np.concatenate([source.ids, closing])
        ids = np.concatenate([opening, target.ids, closing])
        lengths = np.concatenate([np.zeros_like(opening), target.byte_lengths, np.zeros_like(closing)])
        if len(whole) > source_context or len(ids) > context + 1:
            if not cut:
                raise _too_long(corpus, row, len(whole), len(ids) - 1, source_context, context)
            longer += 1
        untold = lost_nats(tokenizer, values_of(row)[1], target) if len(target.ids) else None
        lost.append(0.0 if untold is None else float(untold[:context].sum(dtype=np.float64)))
        sources.add(whole[:source_context])
        targets.add(ids[:context + 1])
        sizes.add(lengths[:context + 1])
    return Pairs(sources.done(), targets.done(), sizes.done(), longer, corpus.name, repeated, np.array(lost))


def ends_of(tokenizer: Tokenizer) -> tuple[Int64[np.ndarray, " o"], Int64[np.ndarray, " c"]]:
    """The token before each target, and the one after each source and each target; empty where there is none."""
    layout = layout_of(tokenizer)
    opening, closing = (NO_IDS if token is None else np.array([token], dtype=np.int32)
                        for token in (layout.opening, layout.final if layout.closing is None else layout.closing))
    return opening, closing


def _too_long(corpus: Corpus, row: Document, source: int, target: int, source_context: int,
              context: int) -> DataError:
    """The error about a pair of which one side has more tokens than it may."""
    side, length = ("source", source) if source > source_context else ("target", target)
    limit, raised = (f"the encoder has positions for {source_context}", "Give the encoder more positions") if (
        side == "source" and source_context < context) else (f"the context is {context}", "Raise training.context")
    return DataError(f"the {side} has {length} tokens with the one that ends it, and {limit}.",
                     where=corpus.place_of(row, ("source", "target").index(side)),
                     remedy=f"{raised}, remove that pair, or set task.cut: true, and all such pairs are cut and "
                     "counted.")
