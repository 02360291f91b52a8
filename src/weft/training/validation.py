"""How well a model predicts the text held out, in bits per byte of that text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from weft.core.errors import DataError
from weft.core.model import LanguageModel
from weft.core.strict_json import number
from weft.data import TokenStream
from weft.evaluation.evaluate import evaluate


@final
@dataclass(frozen=True)
class Validation:
    """Means over the tokens that were predicted.

    Attributes:
        bits_per_byte: summed negative log2-likelihood over the bytes of text that the tokens stand for, exactly.
        loss: nats per token.
        tokens: predicted.
        bytes: of text they stand for.
        protocol: how tokens were counted.
    """

    bits_per_byte: float
    loss: float
    tokens: int
    bytes: int
    protocol: str

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Validation:
        """What `dataclasses.asdict` and JSON made of one."""
        means = {name: number(plain[name]) for name in ("bits_per_byte", "loss")}
        return Validation(**{**plain, **means})


def validate(model: LanguageModel, stream: TokenStream, *, context: int, rows: int = 16,
             batches: int | None = None) -> Validation:
    """Score the stream in windows of ``context``, each token once, with its documents fenced.

    Args:
        model: any language model; its training mode is put back afterwards.
        stream: tokens held out.
        context: inputs of a window.
        rows: windows of a batch.
        batches: score only so many batches, spread evenly over the stream; None: all.

    Raises:
        DataError: nothing to predict, or only tokens that stand for no text.
        FailedError: the model gives NaN.
    """
    found = evaluate(model, stream, context=context, batch_size=rows, batches=batches)
    if found.bits_per_byte is None:
        raise DataError(f"the {found.tokens} tokens to predict stand for no text, so there are no bits per byte.",
                        where=stream.corpus, remedy="Give more text to hold out.")
    return Validation(found.bits_per_byte, found.loss, found.tokens, found.bytes, found.protocol.describe())
