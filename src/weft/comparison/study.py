"""A study's file: which models, one budget, and what they share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from weft.comparison.attempts import Seeds, TrialSettings, pairs_of
from weft.comparison.results import BudgetKind
from weft.comparison.statistics import BOOTSTRAP
from weft.core.config import Settings, rule
from weft.training.config import BUDGETS

RUNS, RUNS_OF_MANY, MANY = 3, 5, 4
"""Runs of each model where the study does not say; and from so many models on, whose many pairs cost certainty."""
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
        seed_offset: added to both seeds of every pair: the same model under another name then has runs of its own, with
            which a study can be asked whether it finds a difference where there is none.
    """

    config: str | dict[str, Any]
    overrides: list[str] = Field(default_factory=list)
    width: dict[str, Annotated[float, Field(gt=0)]] | None = None
    multiple: int | None = Field(default=None, gt=0)
    seed_offset: int = Field(default=0, ge=0)


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
        seeds: pairs of seeds, one for each attempt; or how many; or ``{count: 5, vary: both}``, where
            ``initialisation`` and ``order`` vary one of the two alone. Three, and five from four models on.
        test: of the difference of two models over their runs: ``welch``, of two independent samples, or ``paired``, run
            by run, for seeds that models share; fixed before the runs.
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
    seeds: list[Seeds] = Field(min_length=1)
    test: Literal["welch", "paired"] = "welch"
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    measure: MeasureSettings = MeasureSettings()

    @model_validator(mode="before")
    @classmethod
    def _number_of_runs(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or value.get("seeds") is not None:
            return value
        models = value.get("models")
        many = isinstance(models, Mapping) and len(models) >= MANY
        return {**value, "seeds": RUNS_OF_MANY if many else RUNS}

    @field_validator("seeds", mode="before")
    @classmethod
    def _count(cls, value: Any) -> Any:
        return pairs_of(value)

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
    def tries_rates(self) -> bool:
        """Whether attempts choose a learning rate among several."""
        return self.trials.number > 1

    def seeds_of(self, name: str, index: int) -> Seeds:
        """The pair of a model's attempt."""
        pair, more = self.seeds[index], self.models[name].seed_offset
        return Seeds(seed=pair.seed + more, order_seed=pair.order_seed + more)


def default_contexts(context: int, reach: int) -> list[int]:
    """Powers of four below ``context``, itself, and up to ``reach`` times it."""
    shorter = [4**power for power in range(2, max(2, math.ceil(math.log(context, 4))))]
    return [each for each in shorter if each < context] + [context * 2**power for power in range(reach)]
