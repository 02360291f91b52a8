"""One training step on fake tensors: its operations, and the activations saved for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import heads_of, loss_of, run_whole
from weft.analysis.shapes import OperationCounter, tallied
from weft.core.layer import label_modules
from weft.core.model import Model
from weft.core.strict_json import Record


@dataclass(frozen=True)
class TrainingStep(Record):
    """A forward and a backward pass over ``batch`` rows of ``context`` tokens.

    Attributes:
        flops: operations as this CPU's kernels execute them: causal attention kernels skip later keys, and operations
            that are repeated in the backward pass count again.
        activations: bytes that the forward pass saves for the backward pass, weights not included.
        activations_by_part: the same, by the part that first saved a tensor.
    """

    batch: int
    context: int
    flops: int
    activations: int
    activations_by_part: dict[str, int]


def training_step(model: Model, mode: FakeTensorMode, batch: int, context: int) -> TrainingStep:
    """Run a training step on fake tensors.

    Args:
        model: a model of fake tensors.
        mode: the mode of these tensors.
        batch: rows.
        context: tokens of a row.
    """
    model.train()
    with tallied(model, mode) as tally:
        saved = _Saved(model, tally)
        with torch.autograd.graph.saved_tensors_hooks(saved.add, lambda tensor: tensor):
            out = run_whole(model, batch, context)
            tally.outside = next(iter(heads_of(model)), "")
            loss = loss_of(model, out)
        saved.add(out.y)  # a readout that recomputes its logits stores their input itself, without calling the hooks
        loss.backward()
    model.zero_grad(set_to_none=True)
    by_part = saved.by_part()
    return TrainingStep(batch, context, tally.total() - tally.skipped, sum(by_part.values()), by_part)


class _Saved:
    """The storages that autograd saves, each once, without weights and buffers."""

    def __init__(self, model: Model, tally: OperationCounter) -> None:
        self.tally, self.labels = tally, label_modules(model)
        self.weights = {_storage(tensor) for tensor in [*model.parameters(), *model.buffers()]}
        self.storages: dict[int, tuple[torch.UntypedStorage, str]] = {}

    def add(self, tensor: Tensor) -> Tensor:
        """Record the tensor's storage. The reference also prevents that its address is used for another storage."""
        number = _storage(tensor)
        if number not in self.weights:
            part = self.labels[self.tally.calls[-1] if self.tally.calls else self.tally.outside] or "other"
            self.storages.setdefault(number, (tensor.untyped_storage(), part))
        return tensor

    def by_part(self) -> dict[str, int]:
        """Bytes by part."""
        sizes: dict[str, int] = {}
        for storage, part in self.storages.values():
            sizes[part] = sizes.get(part, 0) + storage.nbytes()
        return sizes


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
