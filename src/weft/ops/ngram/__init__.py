"""N-gram statistics over integer arrays: counting, estimating, asking, and ARPA files. NumPy only."""

from __future__ import annotations

from weft.ops.ngram.arpa import write_arpa
from weft.ops.ngram.arpa_reader import ArpaModel, read_arpa, read_words
from weft.ops.ngram.counts import CountLevel, NgramCounts, count_ngrams
from weft.ops.ngram.kneser_ney import Discounts, estimate_discounts, modified_kneser_ney
from weft.ops.ngram.smoothing import add_k, katz, maximum_likelihood
from weft.ops.ngram.table import NgramTable, TableLevel

__all__ = [
    "ArpaModel",
    "CountLevel",
    "Discounts",
    "NgramCounts",
    "NgramTable",
    "TableLevel",
    "add_k",
    "count_ngrams",
    "estimate_discounts",
    "katz",
    "maximum_likelihood",
    "modified_kneser_ney",
    "read_arpa",
    "read_words",
    "write_arpa",
]
