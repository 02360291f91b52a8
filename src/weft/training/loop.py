"""The training loop: step, report, evaluate, save."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from weft.core.errors import CheckpointError, DivergedError, FailedError, OccupiedError, TrainingError
from weft.core.model import Model
from weft.core.strict_json import plain
from weft.parallel.layout import local
from weft.tasks import AnyTask, Material, Validation
from weft.training.config import EVALUATIONS, POINTS, ReportSettings, RunConfig
from weft.training.events import Event, Listener, Progress, Saved, Validated
from weft.training.folder import RunFolder
from weft.training.interrupt import Interrupts
from weft.training.local_model import LocalModel
from weft.training.parallel import World
from weft.training.rates import Utilisation, allocated_bytes, resident_bytes
from weft.training.sinks import Sinks
from weft.training.starting import StartWeights
from weft.training.trainer import StepReport, Trainer

N = TypeVar("N", int, float)


class Finish(NamedTuple):
    """How a run ended."""

    step: int
    seconds: float
    validation: Validation
    checkpoint: Path


@dataclass(frozen=True, eq=False)
class Run:
    """Everything that both ways of training, by gradients and by counting, need. All ranks call its methods; rank 0
    does the work, and the other ranks receive the result."""

    config: RunConfig
    task: AnyTask
    model: Model
    material: Material[Any]
    folder: RunFolder
    world: World
    listener: Listener | None
    sinks: Sinks
    taken: StartWeights | None = None

    def emit(self, event: Event) -> None:
        """Log the event, and pass it to the sinks and the listener."""
        if not self.world.leads:
            return
        self.folder.log(event)
        self.sinks.emit(event)
        if self.listener is not None:
            self.listener(event)

    def evaluate(self, model: Model, step: int, seconds: float, held: LocalModel | None = None) -> Validation:
        """Measure ``model`` on the held-out data, on rank 0; where each process holds a part of it, all compute it
        together. Raises `FailedError`: it gives NaN."""
        def measure() -> dict[str, Any]:
            return self.task.measure(model, self.material.validation, self.config.report.eval_batches).to_json()

        if held is None or held.whole:
            found = Validation.from_json(self.world.lead(measure))
        else:
            with self.world.communicating(), torch.no_grad():
                found = Validation.from_json(held.enter(measure))
        self.emit(Validated(step, found, seconds))
        return found

    def save(self, step: int, seconds: float, validation: Validation | None, training: Mapping[str, Tensor],
             interval: ProgressSums | None = None) -> Path:
        """Write the checkpoint of ``step``.

        Raises:
            DivergedError: the weights are not finite.
            FailedError: the disk is full.
        """
        facts = self.facts(step, seconds, validation, interval)

        def write() -> str:
            require_finite(self.model, step)
            path = self.folder.save(self.model, self.material.tokenizer, self.config, facts, training)
            self.emit(Saved(step, path))
            return str(path)

        return Path(self.world.lead(write))

    def facts(self, step: int, seconds: float, validation: Validation | None,
              interval: ProgressSums | None) -> dict[str, Any]:
        """The facts that a checkpoint holds of the run, and of the folder of another library whose weights it began
        with."""
        carried = {} if self.taken is None else self.taken.carried
        return {**carried, "step": step, "seconds": seconds, "validation": plain(validation),
                "interval": plain(interval)}

    def timed(self, work: Callable[[], None]) -> float:
        """Seconds that ``work`` takes."""
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun


@dataclass
class ProgressSums:
    """Sums since the last progress line. They are saved with a checkpoint, so that a resumed run prints the lines of an
    uninterrupted one."""

    seconds: float
    nats: float = 0.0
    tokens: int = 0
    bytes: int = 0
    steps: int = 0
    source_nats: tuple[float, ...] = ()
    source_predictions: tuple[int, ...] = ()
    lost: float = 0.0

    def add(self, report: StepReport) -> None:
        """Add a step."""
        self.nats += report.sums.nats
        self.tokens += report.sums.tokens
        self.bytes += report.sums.bytes
        self.lost += report.sums.lost
        self.steps += 1
        if (found := report.sums.sources) is not None:
            self.source_nats = _added(self.source_nats, found.nats.tolist())
            self.source_predictions = _added(self.source_predictions, found.predictions.tolist())

    def progress(self, trainer: Trainer, report: StepReport, use: Utilisation) -> Progress:
        """The progress event of this interval: tokens of all ranks, memory of this one."""
        world = trainer.world
        left = trainer.seconds / trainer.step * (trainer.steps - trainer.step)
        elapsed = max(1e-9, trainer.seconds - self.seconds)
        known = self.bytes > 0 and not math.isnan(self.lost)
        bits = (self.nats + self.lost) / math.log(2) / self.bytes if known else None
        return Progress(trainer.step, trainer.steps, self.nats / max(1, self.tokens), bits, self.tokens / elapsed,
                        trainer.seconds, left, report.lr, report.grad_norm,
                        use.mfu(self.steps / elapsed / world.size, trainer.seconds), resident_bytes(),
                        allocated_bytes(world.device), trainer.task.declared.unit, trainer.task.declared.measured_in,
                        self._by_source(trainer))

    def _by_source(self, trainer: Trainer) -> dict[str, float]:
        """The mean loss of each source of which there were predictions."""
        names = [] if trainer.mixed is None else [source.name for source in trainer.mixed.sources]
        return {name: nats / count for name, nats, count in
                zip(names, self.source_nats, self.source_predictions, strict=True) if count}


def _added(sums: tuple[N, ...], more: list[N]) -> tuple[N, ...]:
    return tuple(map(sum, zip(sums, more, strict=True))) if sums else tuple(more)


@dataclass(frozen=True)
class ReportSchedule:
    """After which steps a run reports, evaluates and saves; after the last step it does all three.

    Attributes:
        log: steps between progress lines.
        evaluation: steps between evaluations.
        checkpoint: steps between checkpoints.
    """

    log: int
    evaluation: int
    checkpoint: int
    steps: int

    @staticmethod
    def of(settings: ReportSettings, steps: int) -> ReportSchedule:
        """The settings, with defaults that spread over the run."""
        evaluation = settings.eval_every or max(1, steps // EVALUATIONS)
        return ReportSchedule(settings.log_every or max(1, steps // POINTS), evaluation,
                              settings.checkpoint_every or evaluation, steps)

    def due(self, every: int, step: int) -> bool:
        """Whether something that is done ``every`` so many steps is done after this one."""
        return step % every == 0 or step == self.steps


def descend(run: Run, trainer: Trainer, known: Validation | None, interval: ProgressSums) -> Finish:
    """Train to the last step.

    Args:
        known: the validation of the weights at the step at which the loop begins, if there is one.
        interval: what has been added up since the last line of progress.

    Raises:
        DivergedError: the loss or the weights are no longer finite, or far off; the message names the last checkpoint.
        TrainingError: a file cannot be written; the message names the last checkpoint.
        KeyboardInterrupt: Ctrl-C or SIGTERM; a checkpoint of the step it came in stands.
    """
    rhythm, world = ReportSchedule.of(run.config.report, trainer.steps), run.world
    use = Utilisation(run.config, trainer.batches.lengths, trainer.compute, world.device, trainer.batches.rows)
    with _naming_the_last(run), Interrupts() as interrupts, closing(_saver(run, trainer)) as saver:
        validation = _caught_up(run, trainer, rhythm, known, interval, saver)
        while trainer.step < trainer.steps:
            report = trainer.advance()
            interval.add(report)
            validation = None
            if rhythm.due(rhythm.log, trainer.step):
                if world.leads:
                    run.emit(interval.progress(trainer, report, use))
                interval = ProgressSums(trainer.seconds)
            if rhythm.due(rhythm.evaluation, trainer.step) and not world.largest(interrupts.pending):
                validation = _evaluated(run, trainer)
            # Read once: a signal that arrives after this line takes effect after the next save.
            stopping = world.largest(interrupts.pending)
            if rhythm.due(rhythm.checkpoint, trainer.step) or stopping:
                saver.save(validation, interval)
                stopping = world.largest(interrupts.pending)
            saver.look(wait=bool(stopping) or trainer.step == trainer.steps)
            interrupts.stop(stopping)
    trainer.exchange()  # so that the finished run's model is the one that was evaluated and saved
    trainer.precision.finish()
    path = world.lead(lambda: str(run.folder.last()))
    assert validation is not None, "the last step is evaluated and saved"
    return Finish(trainer.step, trainer.seconds, validation, Path(path))


def require_finite(model: Model, step: int) -> None:
    """Refuse to save weights that are not finite. Raises `DivergedError`: a parameter is not finite, or a buffer is NaN
    (masks may be infinite)."""
    wrong = [name for name, weight in model.named_parameters() if not bool(local(weight.detach()).isfinite().all())]
    wrong += [name for name, buffer in model.named_buffers() if bool(buffer.isnan().any())]
    if wrong:
        raise DivergedError(f"the weights are no longer finite ({wrong[0]}).", step=step)


def _evaluated(run: Run, trainer: Trainer) -> Validation:
    """Evaluate the weights of this step on the held-out data. Raises `DivergedError`: their loss is not finite."""
    try:
        with trainer.averaged():
            found = run.evaluate(trainer.precision.working, trainer.step, trainer.seconds, trainer.held)
    except TrainingError:
        raise
    except FailedError as error:
        raise DivergedError(f"on the held-out data {error.what}", step=trainer.step) from error
    if not math.isfinite(found.loss):
        raise DivergedError(f"the model gives held-out {trainer.task.declared.unit}s a probability of zero.",
                            step=trainer.step)
    return found


def _caught_up(run: Run, trainer: Trainer, rhythm: ReportSchedule, known: Validation | None, interval: ProgressSums,
               saver: Saver) -> Validation | None:
    """Evaluate and save again a checkpoint that an interrupt wrote without the evaluation that was due."""
    due = trainer.step > 0 and rhythm.due(rhythm.evaluation, trainer.step)
    if known is not None or not due:
        return known
    validation = _evaluated(run, trainer)
    saver.save(validation, interval)
    return validation


class Saver(ABC):
    """Saves checkpoints of a run in training."""

    def __init__(self, run: Run, trainer: Trainer) -> None:
        self.run, self.trainer = run, trainer

    @abstractmethod
    def save(self, validation: Validation | None, interval: ProgressSums) -> None:
        """Save this step."""

    @abstractmethod
    def look(self, *, wait: bool) -> None:
        """After every step: report a checkpoint that has been written in the background; ``wait`` until it is."""

    @abstractmethod
    def close(self) -> None:
        """At the end, also by an error."""


class WholeSaver(Saver):
    """Rank 0 writes what all have."""

    def save(self, validation: Validation | None, interval: ProgressSums) -> None:
        trainer = self.trainer
        tensors = trainer.tensors()  # of the weights, before their averages take their place
        with trainer.averaged():
            self.run.save(trainer.step, trainer.seconds, validation, tensors, interval)

    def look(self, *, wait: bool) -> None:
        """A checkpoint stands when `save` returns."""

    def close(self) -> None:
        """Nothing is open."""


class SharedSaver(Saver):
    """Every rank writes what it holds, in the background if the run is configured so."""

    def __init__(self, run: Run, trainer: Trainer) -> None:
        from weft.training.together.saving import ShardedSaver  # torch's checkpoints take a second to import

        super().__init__(run, trainer)
        self._together = ShardedSaver(run.world, background=run.config.report.async_save)
        self._step: int | None = None

    def save(self, validation: Validation | None, interval: ProgressSums) -> None:
        run, trainer = self.run, self.trainer
        self.look(wait=True)
        require_finite_everywhere(trainer.model, trainer.step, run.world)
        facts = run.facts(trainer.step, trainer.seconds, validation, interval)
        describe = run.folder.describing(trainer.model, run.material.tokenizer, run.config, facts)
        self._together.write(run.folder.place(trainer.step), trainer.boxes(), describe)
        self._step = trainer.step
        if not run.config.report.async_save:
            self._saved()

    def look(self, *, wait: bool) -> None:
        if self._step is None:
            return
        # Rank 0 knows when all have written; they then complete it together.
        if wait or self.run.world.lead(lambda: self._together.ready):
            self._together.complete()
            self._saved()

    def _saved(self) -> None:
        step, self._step = self._step, None
        assert step is not None, "a checkpoint has been written"

        def note() -> None:
            self.run.folder.prune(self.run.config.report.keep)
            self.run.emit(Saved(step, self.run.folder.place(step)))

        self.run.world.lead(note)

    def close(self) -> None:
        self._together.close()


def _saver(run: Run, trainer: Trainer) -> Saver:
    shared = not trainer.held.whole or run.config.report.async_save
    return SharedSaver(run, trainer) if shared else WholeSaver(run, trainer)


def require_finite_everywhere(model: Model, step: int, world: World) -> None:
    """`require_finite` of what each rank holds; all ranks fail if one does. Raises `DivergedError`: the weights of some
    rank are not finite."""
    found: DivergedError | None = None
    try:
        require_finite(model, step)
    except DivergedError as error:
        found = error
    if world.largest(int(found is not None)):
        raise found or DivergedError("the weights of another rank are no longer finite.", step=step)


@contextmanager
def _naming_the_last(run: Run) -> Iterator[None]:
    """A context that adds the path of the last checkpoint to an error."""
    try:
        yield
    except (FailedError, CheckpointError, OccupiedError) as error:
        last = run.folder.last()
        kept = f"The last good checkpoint is {last}." if last else "No checkpoint had been saved yet."
        if isinstance(error, DivergedError):
            raise DivergedError(f"{error.lost} {kept}", step=error.step) from error
        raise TrainingError(f"{error.what} {kept}", where=error.where, remedy=error.remedy) from error
