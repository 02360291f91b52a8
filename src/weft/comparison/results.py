"""Measurements of a model in a study, as plain data."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Status: TypeAlias = Literal["finished", "diverged", "failed", "interrupted", "pending"]
"""Of a piece of work. Diverged and failed are the model's own doing and stand; what was interrupted (its process was
ended from outside, the disk was full, memory lacked) is no verdict and is tried again by the next call; pending has not
been begun."""


@dataclass(frozen=True)
class CurvePoint:
    """A validation during a run.

    Attributes:
        flops: spent so far, forward and backward.
        loss: the same in nats per token.
    """

    step: int
    tokens: int
    flops: float
    seconds: float
    bits_per_byte: float
    loss: float


def decoding_of(runs: Sequence[Sequence[DecodePoint]]) -> tuple[DecodePoint, ...]:
    """The cost of decoding over the runs of one model, whose states are of one size."""
    found: dict[int, list[DecodePoint]] = {}
    for points in runs:
        for point in points:
            found.setdefault(point.context, []).append(point)
    return tuple(_over_runs(points) for _, points in sorted(found.items()))


def _over_runs(points: Sequence[DecodePoint]) -> DecodePoint:
    seconds = [point.seconds for point in points if point.seconds is not None]
    low = [point.low for point in points if point.low is not None]
    high = [point.high for point in points if point.high is not None]
    return DecodePoint(points[0].context, statistics.median(seconds) if seconds else None, points[0].state_bytes,
                       min(low, default=None), max(high, default=None))


def at_share(curve: Sequence[CurvePoint], share: float) -> float | None:
    """Bits per byte at a share of a run's steps, between two checkpoints on the line that joins them; None before the
    first."""
    if not curve:
        return None
    wanted = share * curve[-1].step
    for before, after in itertools.pairwise(curve):
        if before.step <= wanted <= after.step:
            part = (wanted - before.step) / (after.step - before.step)
            return before.bits_per_byte + part * (after.bits_per_byte - before.bits_per_byte)
    return curve[-1].bits_per_byte if wanted >= curve[-1].step else None


@dataclass(frozen=True)
class PositionPoint:
    """Bits per byte of the targets whose context is ``first`` to ``last`` tokens long."""

    first: int
    last: int
    bits_per_byte: float
    tokens: int


@dataclass(frozen=True)
class LengthPoint:
    """An evaluation with windows of ``context`` tokens, on which the model may have been ``trained``; None beyond its
    reach, infinite where it gives NaN or holds a token impossible."""

    context: int
    bits_per_byte: float | None
    perplexity: float | None
    trained: bool


@dataclass(frozen=True)
class DecodePoint:
    """Decoding one row behind ``context`` tokens.

    Attributes:
        seconds: of a token, the median; of several runs, the median of theirs.
        state_bytes: of the row's state.
        low: the lower quartile of the timed tokens; of several runs, the lowest of theirs. None where none was kept.
        high: the upper quartile; of several runs, the highest of theirs.
    """

    context: int
    seconds: float | None
    state_bytes: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Trial:
    """One learning rate that an attempt tried.

    Attributes:
        bits_per_byte: on the tuning text; None when it did not finish.
        note: why it did not.
    """

    lr: float
    status: Status
    bits_per_byte: float | None
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class RunResult:
    """One attempt at a model: its learning rate chosen with the attempt's own seeds, and the run with that rate.

    Attributes:
        index: i; the i-th run of every model has the i-th pair of seeds.
        seed: of the initial weights and dropout.
        order_seed: of the order of the data.
        lr: that this attempt chose, or the configuration's own where none was tried; None for counting and for a run
            that has not been begun.
        edge: the chosen rate lies at the edge of those that were tried, even after widening.
        trials: of this attempt, by rising rate; empty where none were made.
        bits_per_byte: at the end, on the whole test text; None when it did not finish.
        loss: nats per token.
        document_nats: summed negative log-likelihood of each document of the test text (of each block, where it has
            few documents), in nats, in the order of `CorpusFacts.document_bytes`; empty when it did not finish.
        folder: the run's, relative to the study's.
        note: why it did not finish.
        lost_bits_per_byte: the part of ``bits_per_byte`` that is for text which the tokenizer loses, see
            `weft.tokenizers.lost`.
    """

    index: int
    seed: int
    order_seed: int
    lr: float | None
    edge: bool
    trials: tuple[Trial, ...]
    status: Status
    bits_per_byte: float | None
    loss: float | None
    document_nats: tuple[float, ...]
    steps: int
    tokens: int
    flops: float
    seconds: float
    tokens_per_second: float
    peak_memory_bytes: int
    curve: tuple[CurvePoint, ...]
    by_position: tuple[PositionPoint, ...]
    by_length: tuple[LengthPoint, ...]
    folder: str
    note: str = ""
    lost_bits_per_byte: float = 0.0


@dataclass(frozen=True)
class Sample:
    """A continuation of the study's prompt, and in words ``how`` it was drawn."""

    prompt: str
    text: str
    how: str


@dataclass(frozen=True)
class StudyModel:
    """A model of the study.

    Attributes:
        kind: what it is, in a phrase such as ``4 layers, width 112, 4 heads / 2 kv, RoPE, SwiGLU 290``.
        config: the resolved configuration of the first run (widths solved, its learning rate), as YAML.
        config_sha256: of ``config``, with a text of the study's own named from the study's folder on.
        repeat: the command that repeats its first run, from the study's folder; empty for what is counted on a part of
            the text, which only the whole study does.
        parameters: all, shared ones once.
        embedding_parameters: token embeddings and readout among them.
        solved: what the budget was solved for, such as ``model.d_model: 192``; empty when nothing was.
        trainable: False for a model that is counted, not trained by gradients.
        flops_per_token: of one training token, forward and backward; None for counting.
        context: tokens of a training window.
        runs: one for each pair of seeds.
        sample: None when no run finished.
    """

    name: str
    kind: str
    config: str
    config_sha256: str
    repeat: str
    parameters: int
    embedding_parameters: int
    solved: tuple[str, ...]
    trainable: bool
    flops_per_token: float | None
    context: int
    runs: tuple[RunResult, ...]
    decode: tuple[DecodePoint, ...]
    sample: Sample | None

    @property
    def finished(self) -> tuple[RunResult, ...]:
        """Runs that ended with a figure."""
        return tuple(run for run in self.runs if run.bits_per_byte is not None)

    @property
    def bits_per_byte(self) -> float | None:
        """Mean over the finished runs."""
        values = [run.bits_per_byte for run in self.runs if run.bits_per_byte is not None]
        return sum(values) / len(values) if values else None

    @property
    def rates(self) -> tuple[float, ...]:
        """The distinct learning rates of the finished runs, rising; none for counting."""
        return tuple(sorted({run.lr for run in self.finished if run.lr is not None}))

    @property
    def edge(self) -> bool:
        """Whether the rate of a finished run lies at the edge of those that were tried for it."""
        return any(run.edge for run in self.finished)

    def median(self, read: Callable[[RunResult], float]) -> float | None:
        """The median of a cost over the finished runs that know it: every table and chart shows this one."""
        values = [value for value in map(read, self.finished) if math.isfinite(value)]
        return statistics.median(values) if values else None

    @property
    def state(self) -> DecodePoint | None:
        """Decoding behind a training window, or behind the measured context nearest to it."""
        return min(self.decode, key=lambda point: (abs(point.context - self.context), point.context), default=None)
