"""A conversion checked by its numbers: the same rows through the model and through what was written."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.core.errors import FailedError
from weft.core.model import LanguageModel

ROWS, LENGTH, SEED = 2, 16, 0
BOUNDS = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Largest difference that rounding explains, over the largest logit: what is wrong in a conversion (an order of heads,
a transposed matrix) changes logits by their own size."""


def probe(model: LanguageModel) -> Tensor:
    """Rows of random tokens [2,T] that the model can take."""
    reach = min(each for each in (LENGTH, model.config.context, model.limit() or LENGTH))
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(model.vocab_size, (ROWS, reach), generator=generator)


def logits_of(model: LanguageModel, tokens: Tensor) -> Tensor:
    """[B,T,V] in float32 on the CPU."""
    device = next(model.parameters()).device
    with torch.inference_mode():
        logits: Tensor = model(tokens.to(device)).y
    return logits.float().cpu()


def foreign_logits(folder: Path, tokens: Tensor) -> Tensor | None:
    """What `transformers` makes of a folder; None where it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    with torch.inference_mode():
        logits: Tensor = model.eval()(tokens).logits
    return logits.float()


def largest_difference(ours: Tensor, theirs: Tensor) -> float:
    """max |a - b|."""
    return float((ours - theirs).abs().max())


def require_close(difference: float, wanted: Tensor, dtypes: Sequence[torch.dtype], what: str) -> None:
    """Refuse a difference that rounding in any of the dtypes does not explain.

    Raises:
        FailedError: with the difference.
    """
    bound = max(BOUNDS[dtype] for dtype in dtypes) * max(1.0, float(wanted.abs().max()))
    if math.isnan(difference) or difference > bound:
        raise FailedError(f"{what} gives logits that differ by up to {difference:.3g}, where rounding explains "
                          f"{bound:.3g}.", where="convert", remedy="Nothing was written. Please report this model.")
