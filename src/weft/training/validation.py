"""How well a model predicts text held out, in bits per byte of that text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from weft.core.errors import DataError
from weft.core.model import LanguageModel
from weft.data import EvaluationWindows, TokenStream
from weft.training.gradient import negative_log_likelihood


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


def validate(model: LanguageModel, stream: TokenStream, *, context: int, rows: int = 16, batches: int | None = None,
             device: torch.device | str = "cpu") -> Validation:
    """Score the stream in windows of ``context``, each token once.

    Args:
        model: any language model; its training mode is put back afterwards.
        stream: tokens held out.
        context: inputs of a window.
        rows: windows of a batch.
        batches: score only so many batches, spread evenly over the stream; None: all.
        device: the model's.

    Raises:
        DataError: nothing to predict, or only tokens that stand for no text.
    """
    windows = EvaluationWindows(stream, context=context, rows=rows)
    chosen = _spread(len(windows), batches)
    was_training = model.training
    model.eval()
    nats, tokens, size = 0.0, 0, 0
    with torch.no_grad():
        for index, batch in enumerate(windows):
            if index in chosen:
                nats += negative_log_likelihood(model, batch, None, device).nats.item()
                tokens += batch.scored_tokens
                size += batch.scored_bytes
    model.train(was_training)
    if size == 0:
        raise DataError(f"the {tokens} tokens to predict stand for no text, so there are no bits per byte.",
                        where=stream.corpus, remedy="Give more text to hold out.")
    part = "" if len(chosen) == len(windows) else f"; {len(chosen)} of {len(windows)} batches, spread evenly"
    return Validation(nats / math.log(2) / size, nats / tokens, tokens, size, windows.protocol + part)


def _spread(available: int, wanted: int | None) -> frozenset[int]:
    count = available if wanted is None else min(wanted, available)
    return frozenset(np.linspace(0, available - 1, count).round().astype(int).tolist())
