"""Events of a run: records for the metrics file, each with one line of text for a console."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from weft.core.strict_json import Record
from weft.tasks import Validation


@dataclass(frozen=True)
class Event(Record, ABC):
    """Base of events."""

    name: ClassVar[str]

    step: int

    @abstractmethod
    def line(self) -> str:
        """The event in one line."""

    def to_json(self) -> dict[str, Any]:
        """The event as plain JSON data, with its name."""
        return {"event": self.name, **super().to_json()}


@dataclass(frozen=True)
class Started(Event):
    """The run begins, or goes on from ``step``.

    Attributes:
        parameters: numbers that training changes.
        steps: updates of the whole run; 0 for a model that is fitted by counting.
        tokens_per_step: inputs of one step, with padding.
        train_tokens: tokens of the training text.
        validation_tokens: tokens of the text held out.
        corpus: name, version, size and hash of the text.
    """

    name: ClassVar[str] = "started"

    parameters: int
    steps: int
    tokens_per_step: int
    train_tokens: int
    validation_tokens: int
    corpus: str

    def line(self) -> str:
        steps = "1 step" if self.steps == 1 else f"{self.steps:,} steps"
        work = f"{steps} of {self.tokens_per_step:,} tokens" if self.steps else "counting"
        origin = f", from step {self.step:,}" if self.step else ""
        return (f"{self.parameters:,} parameters, {work}{origin}; {self.train_tokens:,} tokens to train on, "
                f"{self.validation_tokens:,} held out; {self.corpus}")


@dataclass(frozen=True)
class Progress(Event):
    """Training since the last such line.

    Attributes:
        steps: updates of the whole run.
        loss: mean over the training predictions: negative log-likelihood in nats per token, or the task's own loss.
        bits_per_byte: the same per byte of text; None where the predictions represent no text.
        tokens_per_second: training predictions per second of training.
        seconds: of training so far, evaluation and saving not counted.
        seconds_left: of training to come, at the mean pace so far.
        lr: learning rate of the last step.
        grad_norm: L2 norm of its gradients before clipping.
        mfu: model FLOPs utilisation: operations of the model per second, divided by those of a large matrix product on
            this machine; None in the first seconds of a run (see `weft.training.rates`).
        resident_bytes: main memory of the process; None where the operating system does not report it.
        allocated_bytes: memory of the accelerator that tensors hold; None without one.
        measured_in: the unit of the loss.
        sources: the mean loss by source, of a mixture.
    """

    name: ClassVar[str] = "progress"

    steps: int
    loss: float
    bits_per_byte: float | None
    tokens_per_second: float
    seconds: float
    seconds_left: float
    lr: float
    grad_norm: float
    mfu: float | None = None
    resident_bytes: int | None = None
    allocated_bytes: int | None = None
    unit: str = "token"
    measured_in: str = "nats"
    sources: Mapping[str, float] = field(default_factory=dict)

    def line(self) -> str:
        return "  ".join([f"step {self.step:,}/{self.steps:,}", *self.figures(),
                          f"{clock_time(self.seconds)} elapsed", f"{clock_time(self.seconds_left)} left"])

    def figures(self) -> list[str]:
        """The measured figures, each with its unit."""
        bits = [] if self.bits_per_byte is None else [f"{self.bits_per_byte:.4f} bits/byte"]
        found = [f"loss {self.loss:.4f} {self.measured_in}/{self.unit}", *bits,
                 f"{self.tokens_per_second:,.0f} {self.unit}s/s"]
        if self.mfu is not None:
            found.append(f"MFU {self.mfu:.1%}")
        if self.resident_bytes is not None:
            found.append(f"memory {megabytes(self.resident_bytes)}")
        if self.allocated_bytes is not None:
            found.append(f"GPU {megabytes(self.allocated_bytes)}")
        if self.sources:
            found.append("by source " + " ".join(f"{name} {loss:.4f}" for name, loss in self.sources.items()))
        return found


@dataclass(frozen=True)
class Validated(Event):
    """An evaluation on the validation text."""

    name: ClassVar[str] = "validated"

    validation: Validation
    seconds: float

    def line(self) -> str:
        return f"step {self.step:,}  validation {self.validation.line()}"


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint was written."""

    name: ClassVar[str] = "saved"

    path: Path

    def line(self) -> str:
        return f"step {self.step:,}  saved {self.path}"


@dataclass(frozen=True)
class Notice(Event):
    """A message for the user."""

    name: ClassVar[str] = "notice"

    text: str

    def line(self) -> str:
        return self.text


Listener: TypeAlias = Callable[[Event], None]


def print_event(event: Event) -> None:
    """Print an event's line at once: a listener for scripts, which shows how far training is and the time left."""
    print(event.line(), flush=True)


def megabytes(size: int) -> str:
    """A number of bytes in millions, or in thousands of millions from 10 GB on."""
    return f"{size / 1e6:,.0f} MB" if size < 10e9 else f"{size / 1e9:,.1f} GB"


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds: ``1:02:03``, or ``02:03`` below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"
