"""The configuration of a run: model, task, tokenizer, data, training, reports, seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from weft.core.config import PartField, rule
from weft.core.model import MODELS, ModelConfig
from weft.core.part_config import Settings
from weft.data.settings import DataSettings as DataSettings
from weft.ops.forms import OPERATIONS
from weft.parallel.mesh import MeshSettings
from weft.tasks import AnyTask, ObjectiveSettings, TaskConfig, TaskSettings
from weft.tasks.next_token import NextTokenConfig
from weft.tokenizers.config import ByteTokenizerConfig, TokenizerConfig
from weft.training.averages import AverageSettings
from weft.training.compute import ComputeSettings
from weft.training.optimizers import AdamWConfig, OptimizerConfig
from weft.training.schedules import CosineConfig, ScheduleConfig
from weft.training.unfreezing import UnfreezeSettings
from weft.training.vocabulary import VocabularySettings

DEFAULT_STEPS = 1000
BUDGETS = ("steps", "seconds", "tokens", "flops", "epochs")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
POINTS = 50
"""Default number of progress lines in a run."""
EVALUATIONS = 10
"""Default number of evaluations in a run."""


class TrainingSettings(Settings):
    """How a model is trained. A model that is fitted by counting uses only ``context`` and ``batch_size``, for its
    evaluation.

    Attributes:
        steps: updates of the weights; 1000 when no other budget is given. Any other budget is converted into a number
            of steps once, before the first.
        seconds: a budget of training time in seconds, without evaluation and saving, converted by timing a few steps.
        tokens: a budget of training tokens; every pass over a token counts.
        flops: a budget of operations of the forward and backward pass, padding not counted, see
            `weft.training.rates`.
        epochs: a budget of passes over the training data, rounded up to whole steps.
        batch_size: rows of a batch.
        context: tokens of a row; None: the model's.
        accumulation: batches whose gradients one step sums, with the same weight for every token.
        carry_state: rows continue from batch to batch with the state of the last, gradients cut between them
            (truncated back-propagation through time); otherwise rows are shuffled and each starts afresh.
        reshuffle: every epoch has its own order of rows; False: all have the first one's.
        optimizer: its kind may be left out (adamw).
        schedule: its kind may be left out (cosine).
        train: what trains, by kind or name, see `weft.training.parameter_groups`; the rest is frozen. None: all trains.
        unfreeze: gradual unfreezing, see `weft.training.unfreezing`; None: everything trains from the first step.
        average: moving averages of the weights, which are evaluated and saved in their place, see
            `weft.training.averages`; None: none are kept.
        clip_norm: largest L2 norm of all gradients together; None: no clipping.
        dtype: what the model computes in. bfloat16 keeps and updates the weights in float32. "auto": bfloat16 on a GPU,
            float32 elsewhere.
        objective: what is minimised.
        compute: matrix products, compilation, activation checkpointing.
        mesh: how the processes of the run share the model and its batches, see `weft.parallel.mesh`; None: every
            process holds the whole model and takes its rows of every batch.
    """

    steps: int | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    tokens: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    flops: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    epochs: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    batch_size: int = Field(default=16, gt=0)
    context: int | None = Field(default=None, gt=0)
    accumulation: int = Field(default=1, gt=0)
    carry_state: bool = False
    reshuffle: bool = True
    optimizer: Annotated[OptimizerConfig, PartField("optimizer")] = AdamWConfig()
    schedule: Annotated[ScheduleConfig, PartField("schedule")] = CosineConfig()
    train: list[str] | None = Field(default=None, min_length=1)
    unfreeze: UnfreezeSettings | None = None
    average: AverageSettings | None = None
    clip_norm: float | None = Field(default=1.0, gt=0)
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    objective: ObjectiveSettings = ObjectiveSettings()
    compute: ComputeSettings = ComputeSettings()
    mesh: MeshSettings | None = None

    def dtype_on(self, device: torch.device | str) -> torch.dtype:
        """The dtype that the model computes in there."""
        auto = "bfloat16" if torch.device(device).type == "cuda" else "float32"
        return DTYPES[auto if self.dtype == "auto" else self.dtype]

    @field_validator("optimizer", mode="before")
    @classmethod
    def _default_optimizer(cls, value: Any) -> Any:
        return _with_kind(value, AdamWConfig.kind)

    @field_validator("schedule", mode="before")
    @classmethod
    def _default_schedule(cls, value: Any) -> Any:
        return _with_kind(value, CosineConfig.kind)

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        given = [f"{value:g} {name}" for name in BUDGETS if (value := getattr(self, name)) is not None]
        if len(given) > 1:
            raise rule(given[0].split()[1], f"a budget of {' and one of '.join(given)}.",
                       "Give one of them, and null for the others.")
        return self


class WandbSettings(Settings):
    """A run of Weights & Biases.

    Attributes:
        project: where the run appears.
        name: of the run; None: its folder's.
        mode: "offline" keeps everything in the run folder, for `wandb sync`.
    """

    project: str = Field(min_length=1)
    name: str | None = None
    mode: Literal["online", "offline"] = "online"


class ReportSettings(Settings):
    """The reports and checkpoints of a run, and how often they are made, in steps; None: evenly spread over the run.

    Attributes:
        log_every: steps between progress lines; None: 50 lines in the run.
        eval_every: steps between evaluations on the validation text; None: 10 evaluations in the run.
        eval_batches: batches of an evaluation, spread evenly over the validation text; None: all of it.
        checkpoint_every: steps between checkpoints; None: one with every evaluation.
        keep: how many of the newest checkpoints are kept besides the last and the best.
        async_save: write checkpoints while training goes on, which waits only until the tensors have been copied in
            main memory. They have the form of those that many processes write (`weft.checkpoints.sharded`).
        tensorboard: also write TensorBoard's event files.
        wandb: also log to Weights & Biases.
    """

    log_every: int | None = Field(default=None, gt=0)
    eval_every: int | None = Field(default=None, gt=0)
    eval_batches: int | None = Field(default=20, gt=0)
    checkpoint_every: int | None = Field(default=None, gt=0)
    keep: int = Field(default=0, ge=0)
    async_save: bool = False
    tensorboard: bool = False
    wandb: WandbSettings | None = None


class RunConfig(Settings):
    """Everything that determines what a run computes.

    Attributes:
        vocabulary: how the vocabulary of ``start`` is resized, see `weft.training.vocabulary`; None: it is not.
        start: folder of the checkpoint, Weft's or one that `transformers` wrote, whose weights the model begins with,
            see `weft.training.starting`; None: it begins with random ones.
        task: what the model is trained and measured on.
        seed: of the random numbers of the initial weights and of dropout.
        kernels: forces the form of an operation, ``{attention: reference}``; the other forms are chosen.
        model: the model, by its kind.
        tokenizer: how text becomes token ids.
        data: the text or records, and what is held out.
        training: budget, batches, optimiser and schedule.
        report: what is logged, evaluated and saved, and how often.
    """

    model: Annotated[ModelConfig, PartField(*MODELS)]
    task: Annotated[TaskConfig, PartField("task")] = NextTokenConfig()
    start: str | None = None
    vocabulary: VocabularySettings | None = None
    tokenizer: Annotated[TokenizerConfig, PartField("tokenizer")] = ByteTokenizerConfig()
    data: DataSettings = DataSettings()
    training: TrainingSettings = TrainingSettings()
    report: ReportSettings = ReportSettings()
    seed: int = Field(default=0, ge=0)
    kernels: dict[str, str] = Field(default_factory=dict)

    def steps_alike(self) -> bool:
        """Whether all steps have tensors of one shape and train the same parameters, in one process's memory."""
        return (self.training.unfreeze is None and self.training.mesh is None
                and self.task.declares().batch_tokens is None)

    @field_validator("kernels")
    @classmethod
    def _known_forms(cls, value: dict[str, str]) -> dict[str, str]:
        problems = OPERATIONS.problems(value)
        if problems:
            raise PydanticCustomError("weft_rule", "{what}", {
                "what": "; ".join(what for _, what in problems),
                "problems": [((name,), what) for name, what in problems]})
        return value

    @model_validator(mode="after")
    def _resizes_what_it_starts_from(self) -> Self:
        if self.vocabulary is not None and self.start is None:
            raise rule("vocabulary", "there is no start whose vocabulary it could resize.",
                       "Leave it out, or name a checkpoint as start.")
        return self

    @model_validator(mode="after")
    def _documents_start_afresh(self) -> Self:
        if self.data.packing == "documents" and self.training.carry_state:
            raise rule("data.packing", "documents, with training.carry_state: a state is carried along a text that "
                       "goes on from window to window, and packed windows do not follow one another.",
                       "Leave out one of them.")
        return self

    @model_validator(mode="after")
    def _sources_are_read(self) -> Self:
        if self.data.sources is not None and not self.task.declares().mixes:
            raise rule("data.sources", f"a mixture of running text, which the task {self.task.kind!r} does not read.",
                       "Leave it out, and give data.path.")
        if self.data.sources is not None and self.training.carry_state:
            raise rule("data.sources", "with training.carry_state: a state is carried along one text, and rows of a "
                       "mixture follow none.", "Leave out one of them.")
        return self

    @property
    def context(self) -> int:
        """Tokens of a training window."""
        return self.training.context or self.model.context

    def made_task(self) -> AnyTask:
        """The task, with the settings of the run that apply to it."""
        training = self.training
        return self.task.create(TaskSettings(
            rows=training.batch_size, context=self.context, seed=self.data.order_seed, reshuffle=training.reshuffle,
            carry_state=training.carry_state, packing=self.data.packing, objective=training.objective,
            labels=self.model.labels(), source_limit=self.model.source_limit()))

    def dump(self) -> dict[str, Any]:
        """Plain data that `parse_run` reads back."""
        return self.model_dump(mode="json")


def _with_kind(value: Any, kind: str) -> Any:
    return {"kind": kind, **value} if isinstance(value, Mapping) and "kind" not in value else value
