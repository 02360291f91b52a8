"""The published record of a verdict: `Verdict` and what it holds, as JSON by one schema."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Literal["weft.verdict/1"] = "weft.verdict/1"
Word = Literal["lawful", "unlawful", "not judged"]
Kind = Literal["file", "configuration", "run", "folder", "endpoint"]
"""A preset is a configuration, a checkpoint a run, and a folder is one of `transformers`."""
EXIT: dict[str, int] = {"lawful": 0, "unlawful": 1, "not judged": 2}
"""The exit code of the command for each verdict."""

NEEDED = ("sums-to-one", "causality", "separate-rows", "repeats")
"""Laws without which nothing is called lawful."""


class PublishedRecord(BaseModel):
    """Base of the records of a verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Found(PublishedRecord):
    """The evidence that a law is broken."""

    sentence: str = Field(description="What happened, in plain words.")
    row: int = Field(0, description="The row of the batch, counted from 0.")
    token: int | None = Field(None, description="The position in the row at which the output is wrong, counted from 0.")
    input: tuple[tuple[int, ...], ...] = Field((), description="The smallest rows of ids that show it; where an output "
                                                               "must not change, the row before and after the change.")
    measured: float | None = Field(None, description="The sum, or the largest difference in nats; null where "
                                                                "it is infinite or no number.")
    allowed: float | None = Field(None, description="What rounding explains.")
    resembles: str | None = Field(None, description="An exploit of the museum that breaks the law in this way.")


class LawResult(PublishedRecord):
    """The outcome of one law."""

    name: str
    outcome: Literal["held", "broken", "not tried"]
    why: str = Field("", description="Why it was not tried, or not in full.")
    tried: str = Field("", description="What was asked, in words.")
    seconds: float = 0.0
    found: Found | None = None
    figures: Mapping[str, float] = Field({}, description="The figures of a test by name, such as p and level.")


class Thing(PublishedRecord):
    """The thing that was judged."""

    kind: Kind
    path: str
    sha256: str | None = None
    call: str | None = None
    gives: str | None = Field(None, description="How its output was read.")
    parameters: int | None = None


class StudyAnswer(PublishedRecord):
    """The answer of a matched study to the question whether the thing is better than a baseline."""

    outcome: Literal["better", "worse", "as good", "not told apart", "not done"]
    sentence: str
    baseline: str
    power: str = Field("", description="The differences that so many runs can show, as it was told before the first.")
    protocol: str | None = Field(None, description="The file of the protocol, written before the first run.")
    protocol_sha256: str | None = None
    report: str | None = None
    runs: int = Field(0, description="Of each model.")
    difference: float | None = Field(None, description="Bits per byte of the thing minus those of the baseline.")
    low: float | None = Field(None, description="The ends of its interval over other runs and other text.")
    high: float | None = None
    p: float | None = None


class Verdict(PublishedRecord):
    """A verdict: lawful if every law that must be tried was held, unlawful if one is broken."""

    format: Literal["weft.verdict/1"] = FORMAT
    thing: Thing
    verdict: Word
    why: str = Field("", description="Why nothing was judged, or what is reported beside the laws.")
    laws: tuple[LawResult, ...] = ()
    seconds: float = 0.0
    study: StudyAnswer | None = Field(None, description="On request; it changes neither the verdict nor the exit code.")
    limits: str = Field("", description="The limits of its process and what confined it.")

    @property
    def exit_code(self) -> int:
        """0 lawful, 1 unlawful, 2 not judged."""
        return EXIT[self.verdict]


def result(name: str, tried: str, found: Found | None, why: str = "", **figures: float) -> LawResult:
    """A law that was tried: held unless something was found."""
    return LawResult(name=name, outcome="held" if found is None else "broken", tried=tried, found=found, why=why,
                     figures=figures)


def ids(*rows: object) -> tuple[tuple[int, ...], ...]:
    """Rows of ids, arrays or lists, as a record holds them."""
    return tuple(tuple(int(each) for each in row) for row in rows)  # type: ignore[attr-defined]


def word_of(laws: Sequence[LawResult], asked: Collection[str] = ()) -> tuple[Word, str]:
    """The verdict that the laws give, and why where nothing is judged: one was not tried that is needed or was asked
    for by name."""
    if any(law.outcome == "broken" for law in laws):
        return "unlawful", ""
    missing = [law.name for law in laws if law.name in (*NEEDED, *asked) and law.outcome == "not tried"]
    return ("not judged", f"not tried: {', '.join(missing)}") if missing else ("lawful", "")
