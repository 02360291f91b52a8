"""The report of a study: `render` makes one self-contained page from its result.

`page` puts the sections together, and `view` is the study as all of them read it. Of the sections, `verdict` holds the
findings, `ranking` the main table, `differences` and `gaps` the pairs at the end and during training, `training` the
curves and learning rates, `context` what context is worth and a token costs, and `details` what a reader looks up.
"""

from __future__ import annotations

from weft.comparison.report.page import render

__all__ = ["render"]
