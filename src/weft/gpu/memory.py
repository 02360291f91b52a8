"""The memory that training takes on a GPU, before it begins, from a step on tensors without numbers.

The step is that of the run: its batch, its dtype and its forms. Every storage that an operation makes is counted from
its creation to its end, so that what lives at once is what PyTorch's allocator will hold. Where this PyTorch can make
tensors of a GPU, forms are chosen as on one; elsewhere attention is taken by PyTorch's fused kernel, which keeps as
much.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weft.analysis.calls import loss_of, run_whole
from weft.analysis.cost_plan import Plan, RunCosts
from weft.analysis.gpu_speed import CardSpeed, card_speed
from weft.analysis.run_costs import run_here
from weft.analysis.shapes import ValuesRead, shape_of
from weft.core.layer import with_boundaries
from weft.core.model import Model
from weft.core.strict_json import Record
from weft.ops.forms import forced

TOKENS = 1 << 14
"""Of a batch whose step is tried; that of more takes longer than anyone waits before a run."""
ROUNDED = 512
"""Bytes of which the allocator gives a multiple."""
WORKSPACE = 32 << 20
"""Bytes that cuBLAS takes for itself on an H100."""
TOLERANCE = 1.1
"""How many times what is free must be needed for a run to be refused: the need is within a tenth of what is measured,
and a run that fits is never refused."""
GIB = 1 << 30
ON_PROCESSOR = MappingProxyType({"attention": "sdpa", "linear": "reference"})
"""Forms that stand for those of a GPU where tensors cannot be on one."""


@dataclass(frozen=True)
class TrainingWork:
    """A run's training, as far as its memory depends on it.

    Attributes:
        model: with or without weights, what does not train frozen.
        narrow: makes the model that computes, in bfloat16; None: ``model`` computes itself.
        rows: of a batch.
        tokens: of a row.
        kernels: forms that the run names.
        recompute: whether blocks keep their inputs alone.
        moments: numbers that the optimizer keeps for each weight that trains, at least.
    """

    model: Model
    narrow: Callable[[Model], Model] | None
    rows: int
    tokens: int
    kernels: Mapping[str, str] = field(default_factory=dict)
    recompute: bool = False
    moments: int = 2


@dataclass(frozen=True)
class TrainingNeed(Record):
    """The most bytes that training holds on a GPU, by what they are for.

    Attributes:
        rows: of a batch.
        weights: that are updated.
        copy: of the weights that compute in bfloat16; 0 in other dtypes.
        optimizer: what it keeps for each weight that trains.
        gradients: of the weights that train, when all are there.
        step: the most that lives at once in the forward and backward pass: activations, scores of the vocabulary, what
            operations need for a moment, and the gradients of the weights that compute.
        total: the most of all at once, with the workspace of the library of products.
    """

    rows: int
    weights: int
    copy: int
    optimizer: int
    gradients: int
    step: int
    total: int


@final
class _Alive(TorchDispatchMode):
    """Counts the bytes of the storages that live, and the most of them at once (``most``), but for those of ``known``
    addresses."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known = known
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, Tensor):
                self._count(each.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        place = storage._cdata
        if place in self._known or place in self._seen:
            return
        size = _rounded(storage.nbytes())

        def gone(_: Any) -> None:
            self.now -= size
            del self._seen[place]

        self._seen[place] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)


def training_need(work: TrainingWork, rows: int | None = None) -> TrainingNeed:
    """The memory that training needs on a GPU.

    Args:
        rows: of a batch; None: those of ``work``. Of more than `TOKENS` tokens, the step is reckoned on the line
            through two smaller batches: what lives at once grows with every row by the same bytes.
    """
    return _need(work, _step(work, work.rows if rows is None else rows), work.rows if rows is None else rows)


def _need(work: TrainingWork, step: Callable[[int], int], rows: int) -> TrainingNeed:
    weights = _bytes(work.model)
    copy = 0 if work.narrow is None else _bytes(work.narrow(work.model))
    gradients = sum([_rounded(p.nbytes) for p in work.model.parameters() if p.requires_grad])
    lives = step(rows)
    total = weights + copy + work.moments * gradients + max(lives, gradients) + WORKSPACE
    return TrainingNeed(rows, weights, copy, work.moments * gradients, gradients, lives, total)


def _step(work: TrainingWork, most: int) -> Callable[[int], int]:
    """The most bytes that live at once in a step, by the rows of its batch, up to ``most``."""
    tried = max(2, min(most, TOKENS // work.tokens))
    more = _step_bytes(work, tried)
    if most == tried:
        return lambda rows: more
    fewer = _step_bytes(work, max(1, tried // 2))
    slope = (more - fewer) / (tried - max(1, tried // 2))
    return lambda rows: round(more + slope * (rows - tried))


def largest_batch(work: TrainingWork, there: int) -> int:
    """The most rows whose training fits into so many bytes; 0: not even one does."""
    step = _step(work, work.rows + TOKENS)  # more rows than are tried: on the line
    one, other = _need(work, step, 1), _need(work, step, 1 + TOKENS)
    held = one.weights + one.copy + one.optimizer + WORKSPACE
    if held + one.gradients > there or one.total > there:
        return 0
    slope = (other.step - one.step) / TOKENS
    return int((there - held - one.step) // slope) + 1


def room_problems(work: TrainingWork, device: torch.device, *, free: int | None = None) -> list[str]:
    """The problem of a run that does not fit into a GPU's memory, with the largest batch that does; empty for others,
    and on devices that are no GPUs.

    Args:
        free: bytes that the run may take; None: what the GPU has free, and what this process holds there unused.
    """
    if device.type != "cuda":
        return []
    there, needed = free_bytes(device) if free is None else free, training_need(work)
    if needed.total <= TOLERANCE * there:
        return []
    most = largest_batch(work, there)
    remedy = (f"At most {most:,} rows fit: give training.batch_size: {most}, with training.accumulation for the rest"
              if most else "Not even one row fits: make the model smaller or training.context shorter")
    again = "" if work.recompute else ", or set training.compute.checkpoint_activations"
    return [f"training.batch_size: {work.rows:,} rows of {work.tokens:,} tokens need about "
            f"{needed.total / GIB:,.1f} GiB on {device}, and {there / GIB:,.1f} GiB are free there: "
            f"{needed.step / GIB:,.1f} for the step, {(needed.total - needed.step) / GIB:,.1f} for weights and "
            f"optimizer. {remedy}{again}."]


def costs_on_gpu(found: Plan, work: TrainingWork, device: torch.device, *, free: int | None = None,
                 speed: CardSpeed | None = None) -> RunCosts | None:
    """The costs of training and decoding on a GPU; None for a model that is fitted by counting.

    Args:
        found: the plan of the model.
        free: bytes that the run may take; None: those of `free_bytes`.
        speed: of the GPU; None: it is measured, which takes about a second.
    """
    there = free_bytes(device) if free is None else free
    rates = card_speed(device) if speed is None else speed
    costs = run_here(found, rate=lambda dtype: rates.products.get(str(dtype)[6:], rates.products["float32"]),
                     bandwidth=lambda: rates.copy, memory=there)
    if costs is None:
        return None
    needed, most = training_need(work), largest_batch(work, there)
    batch = f"a batch of at most {most:,} rows" if most else "not even one row"
    train = replace(costs.train, memory=needed.total, fits=needed.total <= there)
    return replace(costs, train=train, assumptions=(
        f"On {device} {there / GIB:,.1f} GiB are free: {batch} of {work.tokens:,} tokens would fit. What lives at once "
        "in a step is counted, without what the allocator loses between pieces.", *costs.assumptions[:-1]))


def free_bytes(device: torch.device) -> int:
    """The bytes of a GPU that nobody holds, and those that this process's allocator holds unused."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def _step_bytes(work: TrainingWork, rows: int) -> int:
    """The most bytes that live at once in a forward and a backward pass, without weights and buffers; 0 where they
    cannot be told."""
    working = work.model if work.narrow is None else work.narrow(work.model)
    ways = {**({"cuda": work.kernels} if torch.cuda.is_available() else {}), "cpu": ON_PROCESSOR}
    for device, kernels in ways.items():
        # Whatever an operation does not know of tensors without numbers, a run goes on.
        with suppress(Exception):
            return _alive_in_step(work, working, rows, device, kernels)
    return 0


def _alive_in_step(work: TrainingWork, working: Model, rows: int, device: str, kernels: Mapping[str, str]) -> int:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.device(device):
        model = shape_of(working, mode, None)
        model.train()
        for part in with_boundaries(model):
            part.kept_activations = "inputs" if work.recompute else "costly"
        alive = _Alive({each.untyped_storage()._cdata for each in [*model.parameters(), *model.buffers()]})
        with forced(kernels), mode, ValuesRead(), alive:
            loss_of(model, run_whole(model, rows, work.tokens)).backward()
    return alive.most


def _bytes(model: Model) -> int:
    """The bytes of the parameters and buffers."""
    return sum([_rounded(each.nbytes) for each in [*model.parameters(), *model.buffers()]])


def _rounded(size: int) -> int:
    return -(-size // ROUNDED) * ROUNDED
