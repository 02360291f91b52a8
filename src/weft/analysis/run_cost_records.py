"""The records of what a run costs on this machine; `weft.analysis.run_costs` fills them."""

from __future__ import annotations

from dataclasses import dataclass

from weft.core.strict_json import Record


@dataclass(frozen=True)
class WorkCosts(Record):
    """The memory and time that one kind of work needs here.

    Attributes:
        rows: of a batch.
        context: tokens of a row.
        memory: peak bytes of weights, and of what lies beside them.
        fits: whether this machine has as much memory; None: it does not say how much it has.
        seconds: least seconds of a step: of training, or of decoding one token of every row.
        tokens_per_second: the most tokens, of all rows.
        prompt_seconds: least seconds for prompts that fill the context; None for training.
    """

    rows: int
    context: int
    memory: int
    fits: bool | None
    seconds: float
    tokens_per_second: float
    prompt_seconds: float | None = None


@dataclass(frozen=True)
class RunCosts(Record):
    """A run on this machine.

    Attributes:
        machine_memory: bytes of main memory; 0 where the system does not say.
        rate: operations per second of a large square product.
        bandwidth: bytes per second of copying.
        train: a step of training.
        decode: None for a model that writes no text, or without operations.
        assumptions: of all figures.
    """

    machine_memory: int
    rate: float
    bandwidth: float
    train: WorkCosts
    decode: WorkCosts | None
    assumptions: tuple[str, ...]
