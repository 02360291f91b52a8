"""N-gram statistics over integer arrays: counting, estimating and look-up. NumPy only."""

from __future__ import annotations

from weft.ngram.counts import CountLevel, NgramCounts, count_ngrams
from weft.ngram.kneser_ney import Discounts, add_k, estimate_discounts, katz, maximum_likelihood, modified_kneser_ney
from weft.ngram.table import NgramTable, TableLevel

__all__ = ["CountLevel", "Discounts", "NgramCounts", "NgramTable", "TableLevel", "add_k", "count_ngrams",
           "estimate_discounts", "katz", "maximum_likelihood", "modified_kneser_ney"]
