"""How a run computes: matrix products, threads, compilation. Settled once, before the first step, and recorded, so that
a run that is resumed computes as it began."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import torch
from torch.nn import functional as F

from weft.analysis.matmul import fp32_precision
from weft.core.config import Settings
from weft.core.errors import CheckpointError, ConfigError, UnsupportedError
from weft.ops.processor import processor_name

Route = Literal["default", "onednn"]

SIZE, REPEATS = 512, 7
FASTER = 1.2
"""How much faster oneDNN must be to be chosen; less may be chance."""
ROUNDED = 1e-4
"""Between float32's error in a product of 512 terms, about 1e-6, and bfloat16's, about 1e-3."""
RECORD = "run.json: compute"


class ComputeSettings(Settings):
    """How a run is to be computed. Only the last bits of its weights depend on it.

    Attributes:
        matmul: library of float32 matrix products on a CPU. "default": PyTorch's choice; "onednn": oneDNN, which is
            twice as fast on AMD's chips; "auto": oneDNN where a short measurement shows that it is faster and as exact.
        compile: compile the forward and backward pass with `torch.compile`, which takes half a minute once.
        checkpoint_activations: keep of each block only its input and compute it again in the backward pass: less
            memory for a third more work, with the same gradients.
    """

    matmul: Literal["auto", "default", "onednn"] = "auto"
    compile: bool = False
    checkpoint_activations: bool = False


class Measured(NamedTuple):
    """One route: operations a second, and the largest error relative to the largest entry."""

    rate: float
    error: float


@final
@dataclass(frozen=True)
class Compute:
    """What decides the last bits of a run besides its configuration.

    Attributes:
        matmul: route of float32 products.
        threads: that torch computes with.
        compile: whether forward and backward pass are compiled.
        torch_version: of PyTorch.
        processor: its name, as the system tells it.
        device: such as "cpu" or "cuda".
    """

    matmul: Route
    threads: int
    compile: bool
    torch_version: str
    processor: str
    device: str

    @staticmethod
    def choose(settings: ComputeSettings, *, dtype: torch.dtype = torch.float32,
               device: torch.device | str = "cpu") -> Compute:
        """What the settings come to on this machine; measures for a moment where "auto" leaves a choice.

        Args:
            settings: of the run.
            dtype: what the model computes in; routes differ only in float32.
            device: where it computes; routes differ only on a CPU.

        Raises:
            ConfigError: oneDNN was asked for and is missing, or would round to bfloat16.
        """
        place = torch.device(device).type
        concerned = dtype == torch.float32 and place == "cpu"
        route = _route(settings.matmul) if concerned or settings.matmul == "onednn" else "default"
        return Compute(route, torch.get_num_threads(), settings.compile, str(torch.__version__), processor_name(),
                       place)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Compute so inside; torch's settings are as before afterwards."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with fp32_precision("bf16") if self.matmul == "onednn" else nullcontext():
                yield
        finally:
            torch.set_num_threads(before)

    def require_here(self, *, device: torch.device | str = "cpu") -> None:
        """Check that this machine can go on with what was recorded on the machine of the first step.

        Raises:
            UnsupportedError: naming what is another: processor, version of torch, kind of device, or a route that is
                missing or inexact here.
        """
        here = {"torch_version": torch.__version__, "processor": processor_name(), "device": torch.device(device).type}
        changed = [f"{name} {getattr(self, name)!r} (here {now!r})" for name, now in here.items()
                   if getattr(self, name) != now]
        if changed:
            raise UnsupportedError(f"the run began with {', '.join(changed)}, so it cannot go on to the same weights.",
                                   where=RECORD, remedy="Resume it where it began, or start a run in another folder.")
        if self.matmul == "onednn":
            _route("onednn")

    def to_json(self) -> dict[str, Any]:
        """Plain data that `from_json` reads."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> Compute:
        """What `to_json` gave.

        Raises:
            CheckpointError: the record lacks a field, or a field has another type.
        """
        kinds: dict[str, type] = {"matmul": str, "threads": int, "compile": bool, "torch_version": str,
                                  "processor": str, "device": str}
        wrong = [name for name, kind in kinds.items() if type(record.get(name)) is not kind]
        if record.get("matmul") not in ("default", "onednn") and "matmul" not in wrong:
            wrong.append("matmul")
        if wrong:
            raise CheckpointError(f"cannot be read: {', '.join(wrong)}.", where=RECORD,
                                  remedy="Start the run again in another folder.")
        return Compute(**{name: record[name] for name in kinds})


def decide(asked: Literal["auto", "onednn"], default: Measured, onednn: Measured | None) -> Route:
    """The route for what was asked and measured; ``onednn`` is None where the library is missing.

    Raises:
        ConfigError: oneDNN was asked for and is missing or rounds.
    """
    if asked == "auto":
        better = onednn is not None and onednn.error < ROUNDED and onednn.rate >= FASTER * default.rate
        return "onednn" if better else "default"
    if onednn is None:
        raise ConfigError(["training.compute.matmul: 'onednn', and this PyTorch is built without it. Use 'auto' or "
                           "'default'."])
    if onednn.error >= ROUNDED:
        raise ConfigError([f"training.compute.matmul: 'onednn', which rounds to bfloat16 on this processor (error "
                           f"{onednn.error:.0e}, PyTorch's default {default.error:.0e}). Use 'auto' or 'default'."])
    return "onednn"


def measure_routes() -> tuple[Measured, Measured | None]:
    """PyTorch's default and oneDNN, in turns: the default by its fastest product, oneDNN by as many times that as in
    the median turn. What disturbs a turn makes one of them look slow, and does not do so in most turns."""
    a, b = torch.randn(2, SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth, single = F.linear(a, b), (a.float(), b.float())
    if not torch.backends.mkldnn.is_available():
        return _product(single, truth, "none"), None
    turns = [[_product(single, truth, precision) for precision in ("none", "bf16")] for _ in range(REPEATS)]
    default = Measured(max(turn[0].rate for turn in turns), turns[0][0].error)
    advantage = statistics.median(other.rate / first.rate for first, other in turns)
    return default, Measured(default.rate * advantage, turns[0][1].error)


def _route(asked: Literal["auto", "default", "onednn"]) -> Route:
    return "default" if asked == "default" else decide(asked, *measure_routes())


def _product(pair: tuple[torch.Tensor, torch.Tensor], truth: torch.Tensor, precision: str) -> Measured:
    with fp32_precision(precision):
        begun = time.perf_counter()
        y = F.linear(*pair)
        seconds = time.perf_counter() - begun
    return Measured(2 * SIZE**3 / seconds, float((y.double() - truth).abs().max() / truth.abs().max()))
