"""One training step on shapes: its operations, and what its backward pass keeps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import heads_of, loss_of, run_whole
from weft.analysis.parts import label_modules
from weft.analysis.shapes import Tally, tallied
from weft.core.model import Model
from weft.core.strict_json import Record


@dataclass(frozen=True)
class TrainingStep(Record):
    """A forward and a backward pass over ``batch`` rows of ``context`` tokens.

    Attributes:
        flops: operations as this CPU's kernels execute them: causal attention kernels skip later keys, and what is
            computed again in the backward pass counts again.
        activations: bytes that the forward pass keeps for the backward one, weights not included.
        activations_by_part: the same, by the part that first asked to keep a tensor.
    """

    batch: int
    context: int
    flops: int
    activations: int
    activations_by_part: dict[str, int]


def training_step(model: Model, mode: FakeTensorMode, batch: int, context: int) -> TrainingStep:
    """Run a training step on shapes.

    Args:
        model: holding shapes of ``mode``.
        mode: of its tensors.
        batch: rows.
        context: tokens of a row.
    """
    model.train()
    with tallied(model, mode) as tally:
        kept = _Kept(model, tally)
        with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
            out = run_whole(model, batch, context)
            tally.outside = next(iter(heads_of(model)), "")
            loss = loss_of(model, out)
        kept.keep(out.y)  # a readout that computes its logits again keeps their input itself, unseen by the hooks
        loss.backward()
    model.zero_grad(set_to_none=True)
    by_part = kept.by_part()
    return TrainingStep(batch, context, tally.total() - tally.skipped, sum(by_part.values()), by_part)


class _Kept:
    """Storages that autograd keeps, each once, weights and buffers left out."""

    def __init__(self, model: Model, tally: Tally) -> None:
        self.tally, self.labels = tally, label_modules(model)
        self.weights = {_storage(tensor) for tensor in [*model.parameters(), *model.buffers()]}
        self.storages: dict[int, tuple[torch.UntypedStorage, str]] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        """Remember the tensor's storage, which also keeps its number from being given to another."""
        number = _storage(tensor)
        if number not in self.weights:
            part = self.labels[self.tally.place] or "other"
            self.storages.setdefault(number, (tensor.untyped_storage(), part))
        return tensor

    def by_part(self) -> dict[str, int]:
        """Bytes by part."""
        found: dict[str, int] = {}
        for storage, part in self.storages.values():
            found[part] = found.get(part, 0) + storage.nbytes()
        return found


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
