"""What modelling files in folders of earlier versions import; it is in `weft.interop.huggingface.columns`."""

from __future__ import annotations

from weft.interop.huggingface.columns import Reading, in_rows, read

__all__ = ["Reading", "in_rows", "read"]
