"""Benchmarks of language models on published data: prompts and answers, questions with choices, programs."""

from __future__ import annotations

from weft.benchmarks.base import BenchmarkConfig, Conditions
from weft.benchmarks.result import BenchmarkProtocol, BenchmarkResult, Score
from weft.benchmarks.text_model import TextModel

__all__ = ["BenchmarkConfig", "BenchmarkProtocol", "BenchmarkResult", "Conditions", "Score", "TextModel"]
