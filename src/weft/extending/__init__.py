"""Extension of a trained model to longer contexts: rotary positions are rescaled, perplexity is measured against length
before and after, and the rescaled model can be trained on for a few steps."""

from __future__ import annotations

from weft.extending.extend import Extended, extend
from weft.extending.lengths import Stage
from weft.extending.scaling import METHODS

__all__ = ["METHODS", "Extended", "Stage", "extend"]
