"""A study, and how it is read from its file and from what the call adds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import BeforeValidator, Field, field_validator, model_validator

from weft.comparison.study_settings import (
    MOST_RUNS,
    UNNAMED,
    BudgetSettings,
    LengthSettings,
    MeasureSettings,
    ModelSpec,
    Seeds,
    TrialSettings,
    pairs_of,
    spec_of,
)
from weft.core.config import parse, rule
from weft.core.errors import ConfigError
from weft.core.part_config import Settings
from weft.training.config import BUDGETS
from weft.training.files import read_plain
from weft.training.overrides import apply_overrides, for_its_text, stated_of_text

RUNS, RUNS_OF_MANY, MANY = 3, 5, 4
"""Runs of each model where the study does not say; and from so many models on, whose many pairs cost certainty."""
THE_DEFAULT = "the default from four models on, whose many pairs take more runs to tell apart"

SIZES = ("parameters", "state_bytes")
"""Budgets that say how large a model is, and not how long it is trained."""

WHOLE = ("budget", "length")
"""Keys that are replaced, not merged: another kind of budget has nothing of the old one."""


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
        planned_runs: of each model, up to which the study may grow, stated before its first run; None: it begins with
            all. Looks at fewer runs share the chance of error, so that all of them together keep what ``confidence``
            says.
        test: of the difference of two models over their runs: ``welch``, of two independent samples, or ``paired``, run
            by run, for seeds that models share; fixed before the runs.
        confidence: of every interval, as a share: 0.95.
        margin: bits per byte within which two models are as good as each other, if two one-sided tests show it; fixed
            before the runs. With 0.01 the probability of a byte is the same to 0.7 %, and the perplexity of tokens of
            four bytes to 3 %.
        name: shown as the title of its report.
        trials: the search for learning rates.
        measure: what is measured besides the figure at the end.
    """

    name: str = UNNAMED
    models: dict[str, Annotated[ModelSpec, BeforeValidator(spec_of)]]
    budget: BudgetSettings | None = None
    length: LengthSettings | None = None
    data: dict[str, Any] | None = None
    tokenizer: str | dict[str, Any] | None = None
    training: dict[str, Any] = Field(default_factory=dict)
    differ: list[Literal["tokenizer", "context", "batch_tokens"]] = Field(default_factory=list)
    trials: TrialSettings = TrialSettings()
    seeds: list[Seeds] = Field(min_length=1)
    planned_runs: int | None = Field(default=None, gt=0, le=MOST_RUNS)
    test: Literal["welch", "paired"] = "welch"
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    margin: float = Field(default=0.01, gt=0, allow_inf_nan=False)
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
            raise rule("", "a pair of seeds is given twice, and its runs would be the same.", "Give others.")
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
            raise rule("", f"{len(value)} model, and a comparison needs two.", "Name another.")
        for name in value:
            if not name or name.startswith(".") or any(sign in name for sign in "/\\:\0"):
                raise rule(name, f"{name!r} cannot be the name of a folder.", "Use letters, digits, - and _.")
        return value

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        if self.budget is None:
            if self.length is None:
                raise rule("budget", "neither a budget nor a length of training.",
                           "Give one, such as budget: {kind: tokens, amount: 1000000} (--budget tokens=1000000).")
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
        """The budget that decides the number of steps: unit and amount."""
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


def attempt_of(seeds: Seeds, lr: float | None) -> dict[str, Any]:
    """The changes to a run by the seeds of an attempt and its learning rate, if it has one."""
    training = {} if lr is None else {"training": {"optimizer": {"lr": lr}}}
    return {"seed": seeds.seed, "data": {"order_seed": seeds.order_seed}, **training}


class KnownStudy(NamedTuple):
    """The names of the models of a study that stands in a folder, and the number of runs of each."""

    models: frozenset[str]
    runs: int


def default_runs_said(study: StudyConfig, known: KnownStudy) -> str | None:
    """How many runs of each model there will be, where so many models are compared that the number of runs of a study
    that states none is a larger one; None where another number is stated, or the study in the folder has it already.

    Args:
        known: the study that stands in its folder.
    """
    runs, models = len(study.seeds), len(study.models)
    if models < MANY or runs != RUNS_OF_MANY or known.runs == runs:
        return None
    if 0 < known.runs < runs:
        return (f"the study in this folder has {known.runs} of each of {len(known.models)} models. With {models} it "
                f"gets {runs} of each, {THE_DEFAULT}: {runs - known.runs} more of every model that it has are made, "
                f"too. --seeds {known.runs} leaves it at {known.runs}.")
    return f"{runs} of each of {models} models, {THE_DEFAULT}. --seeds N makes N."


def default_contexts(context: int, reach: int) -> list[int]:
    """Powers of four below ``context``, itself, and up to ``reach`` times it."""
    shorter = [4**power for power in range(2, max(2, math.ceil(math.log(context, 4))))]
    return [each for each in shorter if each < context] + [context * 2**power for power in range(reach)]


Named: TypeAlias = Sequence[str | Path] | Mapping[str, str | dict[str, Any]]
"""Presets or paths, each named after itself; or what `ModelSpec.config` holds, by name."""


def read_study(models: Named = (), overrides: Iterable[str] = (), *,
               study: str | Path | Mapping[str, Any] | None = None,
               given: Mapping[str, Any] | None = None) -> StudyConfig:
    """The study of a file, with changes. A limit (``data.max_bytes``) that the file states is one on its own text:
    another text is read whole, unless it is limited where it is named.

    Args:
        models: one that is named again after itself gets a number.
        overrides: ``key.path=value`` changes to the study.
        study: the file, or what it holds, whose models ``models`` join; None: there is none.
        given: keys that come before the file's.

    Raises:
        ConfigError: listing every problem.
    """
    stated: Mapping[str, Any] = {} if study is None else study if isinstance(study, Mapping) else read_plain(study)
    where = str(study) if isinstance(study, str | Path) else None
    plain, overrides, given = dict(stated), list(overrides), given or {}
    for key, value in given.items():
        old = plain.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping) and key not in WHOLE:
            plain[key] = {**old, **value}
        else:
            plain[key] = value
    if models or "models" not in plain:
        plain["models"] = _named(plain.get("models") or {}, models)
    plain = apply_overrides(plain, overrides)
    if "data" in plain:
        changed = stated_of_text(overrides) | (given.get("data") or {}).keys()
        plain["data"] = for_its_text(stated.get("data"), plain["data"], stated=changed)
    return parse(StudyConfig, plain, where=where)


def _named(known: Mapping[str, Any], models: Named) -> dict[str, Any]:
    named = dict(known)
    if isinstance(models, Mapping):
        if twice := sorted(named.keys() & models.keys()):
            raise ConfigError([f"models.{name}: the study has a model of that name already. Give another name."
                               for name in twice])
        return named | {name: {"config": model} for name, model in models.items()}
    for model in models:
        path = Path(model)
        name = stem = path.stem if path.suffix in (".yaml", ".yml", ".json") else str(model)
        number = 2
        while name in named:
            name, number = f"{stem}-{number}", number + 1
        named[name] = str(model)
    return named
