"""The settings in a study's file: its models, its budget, its trials, its seeds and its measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from weft.comparison.statistics import BOOTSTRAP
from weft.core.config import parse, rule
from weft.core.errors import ConfigError
from weft.core.part_config import Settings

BudgetKind: TypeAlias = Literal["parameters", "flops", "tokens", "seconds", "state_bytes"]
Side: TypeAlias = Literal["below", "above"]
UNNAMED = "study"
"""The name of a study that was given none."""
FEWEST_TRIALS = 3
MOST_RATES, MOST_RUNS = 1000, 10_000
"""Of the learning rates that an attempt tries, and of the attempts at a model: each is a training run, and these are
written out before the first."""
FIRST_ORDER = 1000
"""The seed of the order of the data in the first of the pairs that a number of seeds stands for."""


class TrialSettings(Settings):
    """The search for a learning rate in each attempt, the same effort for each model that is trained by gradients.

    Attributes:
        count: learning rates that are tried; 1: each model keeps its own, and none is tried.
        ratio: between neighbours, which lie around the model's own.
        learning_rates: the learning rates themselves, in place of ``count`` and ``ratio``; a single one is every
            model's, and none is tried.
        share: share of the training budget for each trial; with 1 the best trial is the run. Trials of a quarter choose
            worse rates so often that as many runs as their cost pays for say less (`recipes/tuning`).
        widest: how many more are tried on a side where a best rate lies at the edge, by every model in that attempt.
        deviation: standard deviation between the attempts at a model, in bits per byte (with ``test: paired``, of the
            difference between two models), where it is known before; None: it is not known before the first runs.
    """

    count: int = Field(default=FEWEST_TRIALS, gt=0, le=MOST_RATES)
    ratio: float = Field(default=3.0, gt=1)
    learning_rates: list[Annotated[float, Field(gt=0)]] | None = Field(default=None, min_length=1)
    share: float = Field(default=0.5, gt=0, le=1)
    widest: int = Field(default=2, ge=0)
    deviation: float | None = Field(default=None, ge=0)

    @property
    def number(self) -> int:
        """How many learning rates are tried."""
        return self.count if self.learning_rates is None else len(set(self.learning_rates))

    def rates(self, own: float) -> list[float]:
        """The learning rates to begin with, rising, around a model's ``own``, which is always among them; of an even
        number, one more lies above."""
        if self.learning_rates is not None:
            return sorted(set(self.learning_rates))
        return [rounded(own * self.ratio ** (place - (self.count - 1) // 2)) for place in range(self.count)]

    def steps(self, whole: int) -> int:
        """The steps of a trial, for runs of ``whole`` steps."""
        return max(1, round(self.share * whole))


def rounded(rate: float) -> float:
    """To six digits, so that a rate reads as it would be written."""
    return float(f"{rate:.6g}")


def beyond(rates: Sequence[float], side: Side) -> float:
    """The next rate on a side of two or more rising ``rates``: as far from the last, by ratio, as that is from its
    neighbour."""
    edge, neighbour = (rates[0], rates[1]) if side == "below" else (rates[-1], rates[-2])
    return rounded(edge * edge / neighbour)


MOST_SEED = 2**62 - 1
"""Of a seed of a study and of what is added to it, so that their sum has 64 bits."""


class Seeds(Settings):
    """One attempt: ``seed`` for the initial weights and dropout, ``order_seed`` for the order of the data.

    Attributes:
        seed: of the random numbers of the initial weights and of dropout.
        order_seed: of the random order of the data.
    """

    seed: int = Field(ge=0, le=MOST_SEED)
    order_seed: int = Field(ge=0, le=MOST_SEED)


class SeedCount(Settings):
    """So many pairs of seeds, of which some vary and the others stay.

    Attributes:
        count: pairs of seeds.
        vary: which of the two vary: ``both``, the ``initialisation`` or the ``order``.
    """

    count: int = Field(gt=0, le=MOST_RUNS)
    vary: Literal["both", "initialisation", "order"] = "both"

    def pairs(self) -> list[dict[str, int]]:
        """The numbers of a pair differ, so that both never come from one stream of random numbers."""
        return [{"seed": index if self.vary != "order" else 0,
                 "order_seed": FIRST_ORDER + (index if self.vary != "initialisation" else 0)}
                for index in range(self.count)]


def pairs_of(value: Any) -> Any:
    """The pairs that a number of seeds, or a `SeedCount` as plain data, stands for; a list as it is."""
    given = {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(given, Mapping):
        return given
    try:
        return parse(SeedCount, given).pairs()
    except ConfigError as error:
        problems = [each.partition(": ") for each in error.problems]
        raise PydanticCustomError("weft_part", "seeds", {
            "problems": [((name,), what) for name, _, what in problems]}) from None


class ModelSpec(Settings):
    """A model of a study. In a file, the name of a preset or a path stands for a mapping with ``config`` alone.

    Attributes:
        config: a preset's name, a path, or a run's or model's configuration written out.
        overrides: ``key.path=value`` changes to it, after what the study shares.
        solve_for: keys that a budget is solved for, each with its proportion to the first; None: `model.d_model` and
            every ``d_ff``, ``d_hidden`` and ``d_embedding`` that the configuration states, in its own proportions.
            Empty: the model stays as it is.
        multiple: of which the first width must be; None: twice the least common multiple of all numbers of heads.
        seed_offset: added to both seeds of every pair: the same model under another name then has runs of its own, with
            which a study can be asked whether it finds a difference where there is none.
    """

    config: str | dict[str, Any]
    overrides: list[str] = Field(default_factory=list)
    solve_for: dict[str, Annotated[float, Field(gt=0)]] | None = None
    multiple: int | None = Field(default=None, gt=0)
    seed_offset: int = Field(default=0, ge=0, le=MOST_SEED)


def spec_of(value: Any) -> Any:
    """The settings of a model by its entry in a file: a name alone is its ``config``."""
    return {"config": value} if isinstance(value, str) else value


class BudgetSettings(Settings):
    """The quantity that is held equal, and its amount.

    Attributes:
        kind: ``parameters`` and ``state_bytes`` are reached by the width, ``flops`` by the number of steps (by the
            width where ``length`` is stated in tokens or steps), ``tokens`` and ``seconds`` by the number of steps.
        amount: per model and run; bytes for ``state_bytes``.
        at_context: tokens at which ``state_bytes`` counts; None: the context of training.
        embeddings: whether ``parameters`` counts token embeddings and readouts.
        tolerance: how far a solved model may be from the amount, as a share.
    """

    kind: BudgetKind
    amount: float = Field(gt=0, allow_inf_nan=False)
    at_context: int | None = Field(default=None, gt=0)
    embeddings: bool = True
    tolerance: float = Field(default=0.02, gt=0, lt=1)


class LengthSettings(Settings):
    """How long every model is trained, where the budget does not say; exactly one of them.

    Attributes:
        steps: updates of the weights.
        tokens: training tokens; every pass over a token counts.
        flops: operations of the forward and backward passes.
        seconds: seconds of training, without evaluation and saving.
    """

    steps: int | None = Field(default=None, gt=0)
    tokens: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    flops: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @property
    def stated(self) -> tuple[str, float]:
        """Unit and amount."""
        return next((name, value) for name, value in self if value is not None)

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name, value in self if value is not None]
        if len(given) != 1:
            raise rule("steps", f"a length in {' and '.join(given) or 'nothing'}.",
                       "Give one of steps, tokens, flops and seconds.")
        return self


class MeasureSettings(Settings):
    """Measurements besides the figure at the end.

    Attributes:
        curve_points: points of a curve.
        curve_bytes: bytes of the test text that curves and other lengths are measured on, whole documents.
        contexts: lengths of window; None: powers of four around the context of training, up to four times it.
        decode_contexts: tokens behind which a token is decoded; None: as ``contexts``.
        decode_steps: steps of one token that are timed at each.
        prompt: of the sample; None: the first words of the test text.
        new_tokens: tokens of the sample, drawn at ``temperature`` and ``top_p`` with ``sample_seed``.
        resamples: of the bootstrap.
        temperature: of the sample; 0: the most probable token each time.
        top_p: probability that the tokens from which the sample is drawn have together.
        sample_seed: of the random numbers that draw the sample.
    """

    curve_points: int = Field(default=10, gt=0)
    curve_bytes: int = Field(default=50_000, gt=0)
    contexts: list[Annotated[int, Field(gt=0)]] | None = None
    decode_contexts: list[Annotated[int, Field(gt=0)]] | None = None
    decode_steps: int = Field(default=16, gt=0)
    prompt: str | None = None
    new_tokens: int = Field(default=120, gt=0)
    temperature: float = Field(default=0.8, ge=0)
    top_p: float = Field(default=0.95, gt=0, le=1)
    sample_seed: int = 0
    resamples: int = Field(default=BOOTSTRAP, ge=100)
