"""A tiny model for the tests of checkpoints."""

from __future__ import annotations

from typing import Any

import torch

from weft.core.config import parse
from weft.core.model import LanguageModel
from weft.models.decoder import DecoderConfig

CONFIG: dict[str, Any] = {"vocab_size": 19, "d_model": 8, "context": 8,
                          "blocks": [{"kind": "pre", "layers": ["lstm"]}]}


def model_of() -> LanguageModel:
    """Always the same weights."""
    torch.manual_seed(0)
    return parse(DecoderConfig, CONFIG).build()
