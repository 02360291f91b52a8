"""Models of a study made of nothing but their runs' figures, for tests of what is concluded from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from comparison.report.fixture import study
from weft.comparison.results import CurvePoint, RunResult, StudyModel
from weft.comparison.student import SeedTest
from weft.comparison.study_result import StudyResult
from weft.comparison.verdict import judged

CLUSTER = 100
"""Bytes of every cluster of the test text."""


def run(index: int, nats: Sequence[float] | np.ndarray | None, curve: Sequence[float] = ()) -> RunResult:
    """The run of that number with these nats in each cluster; None: it diverged."""
    plain = study(1).entries[0].runs[0]
    points = tuple(CurvePoint(step + 1, step + 1, 0.0, 0.0, bits, bits) for step, bits in enumerate(curve))
    if nats is None:
        return dataclasses.replace(plain, index=index, status="diverged", bits_per_byte=None, loss=None,
                                   document_nats=(), curve=points)
    bits = float(np.sum(nats)) / math.log(2) / CLUSTER / len(nats)
    return dataclasses.replace(plain, index=index, bits_per_byte=bits, curve=points,
                               document_nats=tuple(float(each) for each in nats))


def entry(name: str, runs: Sequence[Sequence[float] | np.ndarray | None], trainable: bool = True) -> StudyModel:
    """A model with these runs' nats in each cluster, with a curve that stays level at the run's figure."""
    made = [run(index, nats) for index, nats in enumerate(runs)]
    level = [dataclasses.replace(each, curve=run(0, None, [each.bits_per_byte or 0.0] * 10).curve) for each in made]
    return dataclasses.replace(study(1).entries[0], name=name, trainable=trainable, runs=tuple(level))


def result_of(entries: Sequence[StudyModel], test: SeedTest = "welch", resamples: int = 200,
              confidence: float = 0.95) -> StudyResult:
    """The study that these models make."""
    clusters = max(len(each.document_nats) for entry in entries for each in entry.runs)
    corpus = dataclasses.replace(study(1).corpus, document_bytes=(CLUSTER,) * clusters)
    return judged(dataclasses.replace(study(1), entries=tuple(entries), corpus=corpus, test=test, resamples=resamples,
                                      confidence=confidence, seeds=max(len(entry.runs) for entry in entries)))
