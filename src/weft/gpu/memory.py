"""The memory that training takes on a GPU, before it begins, from a step on tensors without numbers.

The step is that of the run: its batch, its dtype, the forms that are chosen on a GPU. Every storage that an operation
makes is counted from its creation to its end, so that what lives at once is what PyTorch's allocator will hold.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weft.analysis.calls import loss_of, run_whole
from weft.analysis.shapes import ValuesRead, shape_of
from weft.core.base_model import built_empty
from weft.core.layer import with_boundaries
from weft.core.model import Model
from weft.core.strict_json import Record
from weft.ops.forms import forced
from weft.training.config import DTYPES, RunConfig
from weft.training.precision import narrowed

ROUNDED = 512
"""Bytes of which the allocator gives a multiple."""
WORKSPACE = 32 << 20
"""Bytes that cuBLAS takes for itself on an H100."""


@dataclass(frozen=True)
class TrainingNeed(Record):
    """The most bytes that a run holds on a GPU, by what they are for.

    Attributes:
        rows: of a batch, as the run has it.
        weights: that are updated.
        copy: of the weights that compute in bfloat16; 0 in other dtypes.
        optimizer: two numbers for each weight that trains, as AdamW has.
        gradients: of the weights, when all are there.
        step: the most that lives at once in the forward and backward pass: activations, scores of the vocabulary, what
            operations need for a moment, and the gradients of the weights that compute.
        total: the most of all at once.
    """

    rows: int
    weights: int
    copy: int
    optimizer: int
    gradients: int
    step: int
    total: int


class _Alive(TorchDispatchMode):
    """Counts the bytes of the storages that live, and the most of them at once.

    Attributes:
        now, most: bytes.
    """

    def __init__(self, known: set[int]) -> None:
        super().__init__()
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
        size = -(-storage.nbytes() // ROUNDED) * ROUNDED

        def gone(_: Any) -> None:
            self.now -= size
            del self._seen[place]

        self._seen[place] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)


def training_need(config: RunConfig, model: Model | None = None, *, rows: int | None = None,
                  device: str = "cuda") -> TrainingNeed:
    """The memory that a run needs on a GPU.

    Args:
        model: of the run, with or without weights, where some of it is frozen; None: as the configuration builds it.
        rows: of a batch; None: the run's own.
        device: that the tensors say they are on, which decides the forms.
    """
    count = config.training.batch_size if rows is None else rows
    dtype = DTYPES[config.training.dtype]
    whole = built_empty(config.model) if model is None else model
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with torch.device(device):
        kept = shape_of(whole, mode, torch.float32 if dtype == torch.bfloat16 else dtype)
        working = shape_of(narrowed(whole, dtype), mode, None) if dtype == torch.bfloat16 else kept
        step = _step_bytes(config, working, mode, count)
    weights = _bytes(kept, all_of_them=True)
    copy = 0 if working is kept else _bytes(working, all_of_them=True)
    gradients = _bytes(kept, all_of_them=False)
    optimizer = 2 * gradients
    total = weights + copy + optimizer + max(step, gradients) + WORKSPACE
    return TrainingNeed(count, weights, copy, optimizer, gradients, step, total)


def _step_bytes(config: RunConfig, model: Model, mode: FakeTensorMode, rows: int) -> int:
    """The most bytes that live at once in a forward and a backward pass, without weights and buffers."""
    model.train()
    for part in with_boundaries(model):
        part.kept_activations = "inputs" if config.training.compute.checkpoint_activations else "costly"
    known = {each.untyped_storage()._cdata for each in [*model.parameters(), *model.buffers()]}
    alive = _Alive(known)
    with forced(config.kernels) if config.kernels else nullcontext(), mode, ValuesRead(), alive:
        loss = loss_of(model, run_whole(model, rows, config.context))
        loss.backward()
        del loss
    return alive.most


def _bytes(model: Model, *, all_of_them: bool) -> int:
    """Of the parameters, and of the buffers where all are asked for; without: of those that train."""
    found = [*model.parameters(), *model.buffers()] if all_of_them else [p for p in model.parameters()
                                                                           if p.requires_grad]
    return sum(-(-each.nbytes // ROUNDED) * ROUNDED for each in found)
