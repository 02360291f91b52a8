"""Linear maps: the class by which every part projects, what may be done with a map, and what replaces it."""

from __future__ import annotations

from weft.linear.inference import inference_form
from weft.linear.linear import Linear
from weft.linear.rewrite import require_rewritten, rewritten

__all__ = ["Linear", "inference_form", "require_rewritten", "rewritten"]
