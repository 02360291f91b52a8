"""The one seam of linear maps: what a model projects by, what may be made of it, and what is put in its place."""

from __future__ import annotations

from weft.linear.inference import inference_form
from weft.linear.linear import Linear
from weft.linear.rewrite import require_rewritten, rewritten

__all__ = ["Linear", "inference_form", "require_rewritten", "rewritten"]
