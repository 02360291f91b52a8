"""Calls of a model on blank tokens, for models with and without a source.

One training step on fake tensors: its operations, and the activations saved for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.shapes import OperationCounter, tallied
from weft.core.layer import label_modules, needs_of, source_width
from weft.core.model import Classifier, EncoderInputs, LanguageModel, Model, ModelState, Readout
from weft.core.span import WHOLE, Memory, Output, Span
from weft.core.strict_json import Record


def blank_tokens(batch: int, steps: int) -> Tensor:
    """Token ids of zero, [batch,steps], for calls in which the values do not matter."""
    return torch.zeros(batch, steps, dtype=torch.int64)


def source_of(model: LanguageModel, batch: int, steps: int) -> Memory | None:
    """A source of ``steps`` tokens for models that read one; None for others."""
    if model.takes_source:
        return model.encode(EncoderInputs(tokens=blank_tokens(batch, steps)))
    width = source_width(model)
    if width is None:
        return None
    return Memory(torch.zeros(batch, steps, width, dtype=next(model.parameters()).dtype))


def run_whole(model: Model, batch: int, steps: int, source: int | None = None, *,
              span: Span = WHOLE) -> Output[ModelState]:
    """The hidden vectors [batch,steps,D] of a call without a state, with a source of ``source`` tokens (None:
    ``steps``) where the model reads one. ``span`` is for language models."""
    if not isinstance(model, LanguageModel):
        features = model.reads().get("patches")
        blank = blank_tokens(batch, steps) if features is None else torch.zeros(batch, steps, features)
        return model.vectors(EncoderInputs.of(blank))
    memory = source_of(model, batch, steps if source is None else source)
    return model.hidden(blank_tokens(batch, steps), None, span.replace(memory=memory))


def heads_of(model: Model) -> dict[str, Readout | Classifier]:
    """The model's readout and head, which read its hidden vectors, by their paths."""
    own = {"readout": model.readout} if isinstance(model, LanguageModel) else {}
    return own | ({"head": model.head} if isinstance(model.head, Readout | Classifier) else {})


def scores_of(head: Readout | Classifier, h: Tensor) -> Tensor:
    """The logits or scores that a head computes from hidden vectors h [B,T,D]."""
    return head.logits(h) if isinstance(head, Readout) else head.scores(h, WHOLE)


def loss_of(model: Model, out: Output[ModelState]) -> Tensor:
    """A loss as in training, from the output of `run_whole`: the sum over the model's heads, or the mean of the vectors
    of a model without heads, plus the auxiliary losses."""
    targets, loss = blank_tokens(*out.y.shape[:2]), torch.zeros(())
    for head in heads_of(model).values():
        loss = loss - (head.log_prob(out.y, targets) if isinstance(head, Readout) else head.scores(out.y, WHOLE)).mean()
    loss = loss if heads_of(model) else out.y.mean()
    return loss + sum((extra.value for extra in out.losses), torch.zeros(()))


def state_after(model: LanguageModel, batch: int, steps: int) -> ModelState:
    """The state after a prompt of ``steps`` tokens."""
    state = model.init_state(batch, memory=source_of(model, batch, steps))
    after = model.hidden(blank_tokens(batch, steps), state, Span(fresh=True)).state
    assert after is not None, "a call with a state returns one"
    return after


def states_for(model: LanguageModel, batch: int, lengths: Iterable[int]) -> list[ModelState]:
    """Fresh states with reserved buffers for so many tokens each. The declarations of the model's parts are collected
    once."""
    needs, reads = needs_of(model), model.takes_source or source_width(model) is not None
    return [model.start(needs.clock(batch, capacity=steps, device=None, horizon=None), capacity=steps,
                        dtype=needs.dtype, memory=source_of(model, batch, steps) if reads else None)
            for steps in lengths]


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
