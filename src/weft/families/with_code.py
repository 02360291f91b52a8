"""What modelling files in folders of earlier versions import; it is in `weft.interop.huggingface.with_code`."""

from __future__ import annotations

from weft.interop.huggingface.with_code import build, set_constants, tied_names

__all__ = ["build", "set_constants", "tied_names"]
