"""A study's file: which models, one budget, and what they share."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from weft.comparison.results import BudgetKind
from weft.comparison.statistics import BOOTSTRAP
from weft.core.config import Settings, rule
from weft.training.config import BUDGETS

FEWEST_TRIALS = 3
SIZES = ("parameters", "state_bytes")
"""Budgets that say how large a model is, and not how long it is trained."""


class ModelSpec(Settings):
    """A model of a study. In a file, the name of a preset or a path stands for a mapping with ``config`` alone.

    Attributes:
        config: a preset's name, a path, or a run's or model's configuration written out.
        overrides: ``key.path=value`` changes to it, after what the study shares.
        width: keys that a budget is solved for, each with its proportion to the first; None: `model.d_model` and every
            ``d_ff``, ``d_hidden`` and ``d_embedding`` that the configuration states, in its own proportions. Empty:
            the model stays as it is.
        multiple: of which the first width must be; None: twice the least common multiple of all numbers of heads.
    """

    config: str | dict[str, Any]
    overrides: list[str] = Field(default_factory=list)
    width: dict[str, Annotated[float, Field(gt=0)]] | None = None
    multiple: int | None = Field(default=None, gt=0)


def _spec(value: Any) -> Any:
    return {"config": value} if isinstance(value, str) else value


class BudgetSettings(Settings):
    """What is held equal.

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
    """How long every model is trained, where the budget does not say; exactly one of them."""

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


class TrialSettings(Settings):
    """The search for a learning rate, the same effort for each model that is trained by gradients.

    Attributes:
        count: learning rates that are tried; 1: each model keeps its own, and none is tried.
        ratio: between neighbours, which lie around the model's own.
        values: the learning rates themselves, in place of ``count`` and ``ratio``.
        share: of the training budget, for each trial.
        deviation: standard deviation of the difference between two models from seed to seed, in bits per byte, where
            it is known before; None: the best trial of each model is run once more with other seeds to see.
    """

    count: int = Field(default=FEWEST_TRIALS, gt=0)
    ratio: float = Field(default=3.0, gt=1)
    values: list[Annotated[float, Field(gt=0)]] | None = Field(default=None, min_length=1)
    share: float = Field(default=0.25, gt=0, le=1)
    deviation: float | None = Field(default=None, ge=0)

    @property
    def number(self) -> int:
        """How many learning rates are tried."""
        return self.count if self.values is None else len(set(self.values))

    def rates(self, own: float) -> list[float]:
        """The learning rates, rising, around a model's ``own``."""
        if self.values is not None:
            return sorted(set(self.values))
        return [own * self.ratio ** (place - (self.count - 1) / 2) for place in range(self.count)]


class Seeds(Settings):
    """One run: ``seed`` for the initial weights and dropout, ``order_seed`` for the order of the data."""

    seed: int = Field(ge=0)
    order_seed: int = Field(ge=0)


class MeasureSettings(Settings):
    """What is measured besides the figure at the end.

    Attributes:
        checkpoints: points of a curve.
        curve_bytes: of the test text that curves and other lengths are measured on, whole documents.
        contexts: lengths of window; None: powers of four around the context of training, up to four times it.
        decode_contexts: tokens behind which a token is decoded; None: as ``contexts``.
        decode_steps: tokens that are timed at each.
        prompt: of the sample; None: the first words of the test text.
        new_tokens: of the sample, drawn at ``temperature`` and ``top_p`` with ``sample_seed``.
        resamples: of the bootstrap.
    """

    checkpoints: int = Field(default=10, gt=0)
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


class StudyConfig(Settings):
    """A study.

    Attributes:
        models: by name, at least two.
        budget: what is held equal; None: the ``length`` alone.
        length: how long each is trained, where ``budget`` is a size.
        data: that all models read; None: what their configurations agree on.
        tokenizer: that all models read it with; None: what their configurations agree on.
        training: settings of training that all models share, such as ``context`` and ``batch_size``; these two and
            ``accumulation`` are the first model's where they are left open.
        differ: what models may keep to themselves all the same; it is shown.
        seeds: pairs of seeds, or how many: 0, 1, 2, ... for both.
        confidence: of every interval.
    """

    name: str = "study"
    models: dict[str, Annotated[ModelSpec, BeforeValidator(_spec)]]
    budget: BudgetSettings | None = None
    length: LengthSettings | None = None
    data: dict[str, Any] | None = None
    tokenizer: str | dict[str, Any] | None = None
    training: dict[str, Any] = Field(default_factory=dict)
    differ: list[Literal["tokenizer", "context", "batch_tokens"]] = Field(default_factory=list)
    trials: TrialSettings = TrialSettings()
    seeds: list[Seeds] = Field(default=[Seeds(seed=i, order_seed=i) for i in range(3)], min_length=1)
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    measure: MeasureSettings = MeasureSettings()

    @field_validator("seeds", mode="before")
    @classmethod
    def _count(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return [{"seed": index, "order_seed": index} for index in range(value)]
        return value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: list[Seeds]) -> list[Seeds]:
        if len({(each.seed, each.order_seed) for each in value}) < len(value):
            raise rule("seeds", "a pair of seeds is given twice, and its runs would be the same.", "Give others.")
        return value

    @field_validator("training")
    @classmethod
    def _no_budget(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in BUDGETS:
            if value.get(key) is not None:
                raise rule(key, f"{value[key]} in the training that models share.",
                           f"State it as the study's length: {{{key}: {value[key]}}}, or as its budget.")
        return value

    @field_validator("models")
    @classmethod
    def _several(cls, value: dict[str, ModelSpec]) -> dict[str, ModelSpec]:
        if len(value) < 2:
            raise rule("models", f"{len(value)} model, and a comparison needs two.", "Name another.")
        for name in value:
            if not name or name.startswith(".") or any(sign in name for sign in "/\\:\0"):
                raise rule(name, f"{name!r} cannot be the name of a folder.", "Use letters, digits, - and _.")
        return value

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.budget is None:
            if self.length is None:
                raise rule("budget", "neither a budget nor a length of training.",
                           "Give one, such as budget: {kind: tokens, amount: 1000000}.")
            return self
        kind = self.budget.kind
        if kind in SIZES and self.length is None:
            raise rule("length", f"missing: a budget of {kind} does not say how long models are trained.",
                       "Give length: {tokens: ...}, or steps, flops or seconds.")
        allowed = ("steps", "tokens") if kind == "flops" else ("steps", "tokens", "flops", "seconds")
        if self.length is not None and (kind in ("tokens", "seconds") or self.length.stated[0] not in allowed):
            raise rule("length", f"{self.length.stated[0]} beside a budget of {kind}, which says already how long "
                       "models are trained.", "Leave one of them out.")
        return self

    @property
    def solves_width(self) -> bool:
        """Whether widths are solved for, or else steps alone."""
        return self.budget is not None and (self.budget.kind in SIZES or self.length is not None)

    @property
    def training_budget(self) -> tuple[str, float]:
        """What decides the number of steps: unit and amount."""
        if self.length is not None:
            return self.length.stated
        assert self.budget is not None, "a study has a budget or a length"
        return self.budget.kind, self.budget.amount

    @property
    def trial_seeds(self) -> tuple[Seeds, Seeds]:
        """Two pairs of seeds that no run has."""
        seed = 1 + max(each.seed for each in self.seeds)
        order = 1 + max(each.order_seed for each in self.seeds)
        return Seeds(seed=seed, order_seed=order), Seeds(seed=seed + 1, order_seed=order + 1)


def default_contexts(context: int, reach: int) -> list[int]:
    """Powers of four below ``context``, itself, and up to ``reach`` times it."""
    shorter = [4**power for power in range(2, max(2, math.ceil(math.log(context, 4))))]
    return [each for each in shorter if each < context] + [context * 2**power for power in range(reach)]
