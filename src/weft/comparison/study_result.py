"""A study's result, as plain data: the one thing that the table, the report and later readers are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from weft.comparison.growth import Addition
from weft.comparison.looks import Look, level
from weft.comparison.results import StudyModel
from weft.comparison.statistics import Interval
from weft.comparison.student import SeedTest
from weft.comparison.study_settings import BudgetKind
from weft.core.strict_json import Record

RESULT_FORMAT = 3


@dataclass(frozen=True)
class GapPoint:
    """The difference of a pair at one share of the budget."""

    share: float
    difference: Interval


@dataclass(frozen=True)
class Difference:
    """``first`` minus ``second``, in bits per byte: below zero, ``first`` predicts better.

    Attributes:
        over_seeds: Student's t over the runs, by the study's test: would other runs say the same.
        over_documents: bootstrap clustered by document, over the test text: would another text say the same.
        over_both: by the sum of both variances: would other runs on another text say the same. All three intervals have
            the confidence of the study's look.
        seed_error: standard error of the difference of the means, from run to run; None with a single run.
        document_error: standard error of the same difference, from document to document of the test text.
        p_value: two-sided, of ``over_both``; None when it cannot be had.
        p_holm: after Holm's correction over all pairs of the study and, by one over its share, for the look; None
            also before all runs that were asked for are done.
        tied: the corrected test does not distinguish the two.
        gaps: the difference at several shares of the budget.
        crosses: the sign of the difference changes during training, beyond the interval.
        p_equivalent: of two one-sided tests that the difference is as large as the study's margin, corrected as
            ``p_holm`` is; None where that is, and without a margin.
        equivalent: these tests show that the two are as good as each other within the margin.
    """

    first: str
    second: str
    over_seeds: Interval
    over_documents: Interval
    over_both: Interval
    seed_error: float | None
    document_error: float
    p_value: float | None
    p_holm: float | None
    tied: bool
    gaps: tuple[GapPoint, ...]
    crosses: bool
    p_equivalent: float | None = None
    equivalent: bool = False


@dataclass(frozen=True)
class Matched:
    """One quantity of the table and whether the study held it equal.

    Attributes:
        quantity: such as ``parameters``.
        matched: the study aimed to hold it equal, or it came out equal.
        spread: largest over smallest value, minus one.
        tolerance: the spread up to which it counts as held equal.
    """

    quantity: str
    matched: bool
    spread: float
    tolerance: float = 0.1

    @property
    def held(self) -> bool:
        """Whether it came out equal, up to the tolerance, as was meant."""
        return self.matched and self.spread <= self.tolerance

    @property
    def missed(self) -> bool:
        """Whether it was meant to be equal and is not."""
        return self.matched and not self.held


@dataclass(frozen=True)
class Setting:
    """A setting of training over the models that gradients train.

    Attributes:
        name: such as ``schedule``.
        equal: every model has the same, as far as it applies to it.
        values: of each model, in words, by its name.
    """

    name: str
    equal: bool
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Budget:
    """The budget that was held equal.

    Attributes:
        amount: in the unit of ``kind``.
        settings: of training; empty in results of before they were compared.
    """

    kind: BudgetKind
    amount: float
    statement: str
    matched: tuple[Matched, ...]
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True)
class CorpusFacts:
    """The data.

    Attributes:
        train_tokens: under the study's tokenizer, before any repetition.
        document_bytes: of each document of the test text, or of each block where it has few; empty before a run has
            finished.
        duplicated_documents: documents of the test text that stand in the training text, too.
        duplicated_share: the part of the test text that does, see `weft.data.duplicates`.
        document_overlaps: of each document of the test text, the part that does.
    """

    name: str
    sha256: str
    train_bytes: int
    validation_bytes: int
    validation_documents: int
    document_bytes: tuple[int, ...]
    duplicated_documents: int
    train_tokens: int
    validation_tokens: int
    tokenizer: str
    tokenizer_sha256: str
    vocab_size: int
    duplicated_share: float = 0.0
    document_overlaps: tuple[float, ...] = ()


@dataclass(frozen=True)
class Machine:
    """Where it ran.

    Attributes:
        commit: of the code, see `weft.comparison.assemble.commit`; empty where it is not known.
        determinism: how exactly the runs repeat, in a phrase; empty in results of before.
    """

    processor: str
    cores: int
    threads: int
    memory_bytes: int
    device: str
    system: str
    python: str
    torch: str
    weft: str
    commit: str = ""
    determinism: str = ""


@dataclass(frozen=True)
class Detectable:
    """The smallest difference that so many runs of each model can be expected to show, with a power of 0.8.

    Attributes:
        difference: in bits per byte; None where nothing says before the runs how far they lie apart, or a single one
            cannot show any.
        spreads: the same in standard deviations from run to run (with ``test: paired``, of the difference between two
            models); None for a single run, and in results of before.
    """

    runs: int
    difference: float | None
    spreads: float | None = None


@dataclass(frozen=True)
class StudyResult(Record):
    """A study.

    Attributes:
        started: and ``finished``: date and time, ISO 8601, UTC.
        confidence: of every interval, of a study that is looked at once; see ``level``.
        test: of a difference over runs, as stated before the first of them.
        resamples: of the bootstrap over documents.
        detectable: for 3, 5 and 10 runs and the study's own number, known before the first run.
        detectable_basis: what that rests on, in sentences.
        tied_sets: names from best to worst; two models share a set exactly where the study does not distinguish them.
        protocol: how tokens were counted, in sentences.
        notes: what a reader must know to judge, one sentence each.
        additions: what was added after the study had begun, in order.
        looks: every time that all runs that were then asked for were judged, in order; empty in results of before.
        share: of the study's chance of error, that this look has, or the next one where runs are still to come.
        margin: bits per byte within which two models count as equally good, stated before the runs; None in results of
            before, which say of none that it is as good as another.
        planned_runs: of each model, which the looks share, as the study states it; None: those it began with.
    """

    name: str
    started: str
    finished: str
    confidence: float
    seeds: int
    budget: Budget
    corpus: CorpusFacts
    machine: Machine
    entries: tuple[StudyModel, ...]
    differences: tuple[Difference, ...]
    tied_sets: tuple[tuple[str, ...], ...]
    test: SeedTest
    resamples: int
    detectable: tuple[Detectable, ...]
    detectable_basis: str
    protocol: tuple[str, ...]
    command: str
    study_config: str
    study_sha256: str
    notes: tuple[str, ...]
    additions: tuple[Addition, ...] = ()
    looks: tuple[Look, ...] = ()
    share: float = 1.0
    planned_runs: int | None = None
    margin: float | None = None

    @property
    def level(self) -> float:
        """The confidence of every interval, which rests on the look."""
        return level(self.confidence, self.share)

    @property
    def complete(self) -> bool:
        """Whether no run is still to come: before that nothing is told apart."""
        return not any(run.status == "pending" for entry in self.entries for run in entry.runs)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data, with the number of its format."""
        return {"format": RESULT_FORMAT, **super().to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """A result from the output of `to_json`. Raises `ValueError`: of a newer format, or not a study."""
        version = data.get("format")
        if version != RESULT_FORMAT:
            raise ValueError(f"study format {version!r}, and this Weft reads {RESULT_FORMAT}")
        return super().from_json({key: value for key, value in data.items() if key != "format"})
