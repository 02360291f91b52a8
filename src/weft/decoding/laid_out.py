"""Models laid out for decoding: linear maps in the layouts that this machine multiplies fastest, if steps of decoding,
taken as sessions take them, are then no slower."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

from weft.core.model import LanguageModel
from weft.decoding.prompts import prepare
from weft.decoding.rows import Row
from weft.decoding.session import Session
from weft.decoding.steps import PATIENCE, WORTH
from weft.linear.layout import TURNS, DecodingForm, laid_out

L = TypeVar("L", bound=LanguageModel)


def for_decoding(model: L, *, rows: int = 1) -> DecodingForm[L]:
    """The model in the form that this machine decodes fastest, after some seconds of measuring.

    On devices other than a CPU matrices keep their layout, and so do maps that may not be laid out
    (`weft.linear.linear.allowed`). The others are in memory twice as long as the original is; ``packed`` ones need two
    float32 copies beside the original matrix.

    Args:
        model: any language model.
        rows: rows that will be continued together.

    Raises:
        LawError: the form does not compute what the model does.
    """
    return laid_out(model, rows, _step)


def _step(model: LanguageModel, rows: int) -> Callable[[], float]:
    """Seconds of a step of one token in each row, recorded as in a long text where it can be."""
    new = WORTH + PATIENCE + TURNS + 8
    row = Row((0,), (0,) if model.takes_source else None)
    session = Session(model, prepare(model, [row] * rows, max_new_tokens=new, start=None), max_new_tokens=new)
    tokens = torch.zeros(rows, dtype=torch.long, device=session.device)
    for _ in range(PATIENCE + 2):  # a recording, and its comparison with a plain step
        session.advance(tokens)

    def timed() -> float:
        begun = time.perf_counter()
        session.advance(tokens)
        return time.perf_counter() - begun

    return timed
