"""Scoring of given text by any language model: log-probabilities of rows, perplexity and bits per byte of a corpus."""

from __future__ import annotations

from weft.evaluation.by_document import DocumentScore
from weft.evaluation.evaluate import Evaluation, Protocol, evaluate
from weft.evaluation.score import Scored, ScoredRow, score, write_logits

__all__ = ["DocumentScore", "Evaluation", "Protocol", "Scored", "ScoredRow", "evaluate", "score", "write_logits"]
