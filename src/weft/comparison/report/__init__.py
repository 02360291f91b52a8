"""The report of a study: `render` makes one self-contained page from its results."""

from __future__ import annotations

from weft.comparison.report.page import render

__all__ = ["render"]
