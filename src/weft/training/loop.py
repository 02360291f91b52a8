"""The loop: step, tell, evaluate, save."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, final

import torch
from torch import Tensor

from weft.core.errors import TrainingError
from weft.core.model import LanguageModel
from weft.training.config import EVALUATIONS, POINTS, ReportSettings, RunConfig
from weft.training.events import Event, Listener, Progress, Saved, Validated
from weft.training.folder import RunFolder
from weft.training.interrupt import Interrupts
from weft.training.material import Material
from weft.training.trainer import StepReport, Trainer
from weft.training.validation import Validation, validate


class Finish(NamedTuple):
    """How a run ended."""

    step: int
    seconds: float
    validation: Validation
    checkpoint: Path


@final
@dataclass(frozen=True, eq=False)
class Run:
    """What every way of training needs: what to train, on what, where to write, whom to tell."""

    config: RunConfig
    model: LanguageModel
    material: Material
    folder: RunFolder
    device: torch.device
    listener: Listener | None

    def tell(self, event: Event) -> None:
        """Write the event down and pass it on."""
        self.folder.log(event)
        if self.listener is not None:
            self.listener(event)

    def evaluate(self, model: LanguageModel, step: int, seconds: float) -> Validation:
        """Measure ``model`` on the validation text."""
        found = validate(model, self.material.validation, context=self.config.context,
                         rows=self.config.training.batch_size, batches=self.config.report.eval_batches,
                         device=self.device)
        self.tell(Validated(step, found, seconds))
        return found

    def save(self, step: int, seconds: float, validation: Validation | None, training: Mapping[str, Tensor]) -> Path:
        """Write the checkpoint of ``step``."""
        facts = {"step": step, "seconds": seconds, "validation": None if validation is None else asdict(validation)}
        path = self.folder.save(self.model, self.material.tokenizer, self.config, facts, training)
        self.tell(Saved(step, path))
        return path

    def timed(self, work: Callable[[], None]) -> float:
        """Seconds that ``work`` takes."""
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun


@final
@dataclass
class Meter:
    """Sums since the last line of progress."""

    seconds: float
    nats: float = 0.0
    tokens: int = 0
    bytes: int = 0

    def add(self, report: StepReport) -> None:
        """Count a step."""
        self.nats += report.sums.nats
        self.tokens += report.sums.tokens
        self.bytes += report.sums.bytes

    def progress(self, trainer: Trainer, report: StepReport) -> Progress:
        """The line since this meter was made."""
        left = trainer.seconds / trainer.step * (trainer.steps - trainer.step)
        return Progress(trainer.step, trainer.steps, self.nats / max(1, self.tokens),
                        self.nats / math.log(2) / max(1, self.bytes),
                        self.tokens / max(1e-9, trainer.seconds - self.seconds), trainer.seconds, left, report.lr,
                        report.grad_norm)


@final
@dataclass(frozen=True)
class Rhythm:
    """After which steps a run tells, evaluates and saves; the last step does all three."""

    log: int
    evaluation: int
    checkpoint: int
    steps: int

    @staticmethod
    def of(settings: ReportSettings, steps: int) -> Rhythm:
        """The settings, with what they leave open spread over the run."""
        evaluation = settings.eval_every or max(1, steps // EVALUATIONS)
        return Rhythm(settings.log_every or max(1, steps // POINTS), evaluation,
                      settings.checkpoint_every or evaluation, steps)

    def due(self, every: int, step: int) -> bool:
        """Whether what happens ``every`` so many steps happens after this one."""
        return step % every == 0 or step == self.steps


def descend(run: Run, trainer: Trainer) -> Finish:
    """Train to the last step.

    Raises:
        TrainingError: the loss is not finite; the message names the last checkpoint.
        KeyboardInterrupt: Ctrl-C; a checkpoint of the step it came in stands.
    """
    rhythm, meter = Rhythm.of(run.config.report, trainer.steps), Meter(trainer.seconds)
    validation: Validation | None = None
    with Interrupts() as interrupts:
        while trainer.step < trainer.steps:
            report = _advance(run, trainer)
            meter.add(report)
            validation = None
            if rhythm.due(rhythm.log, trainer.step):
                run.tell(meter.progress(trainer, report))
                meter = Meter(trainer.seconds)
            if rhythm.due(rhythm.evaluation, trainer.step) and not interrupts.pending:
                validation = run.evaluate(trainer.precision.working, trainer.step, trainer.seconds)
            if rhythm.due(rhythm.checkpoint, trainer.step) or interrupts.pending:
                run.save(trainer.step, trainer.seconds, validation, trainer.tensors())
            if interrupts.pending:
                raise KeyboardInterrupt
    return _finish(run, trainer, validation)


def _finish(run: Run, trainer: Trainer, validation: Validation | None) -> Finish:
    """The last step's checkpoint, made now if a run was resumed after it was saved without an evaluation."""
    path = run.folder.last()
    if validation is None or path is None:
        validation = run.evaluate(trainer.precision.working, trainer.step, trainer.seconds)
        path = run.save(trainer.step, trainer.seconds, validation, trainer.tensors())
    return Finish(trainer.step, trainer.seconds, validation, path)


def _advance(run: Run, trainer: Trainer) -> StepReport:
    try:
        return trainer.advance()
    except TrainingError as error:
        last = run.folder.last()
        kept = f"The last good checkpoint is {last}." if last else "No checkpoint had been saved yet."
        raise TrainingError(f"{error.what} {kept}", where=error.where, remedy=error.remedy) from None
