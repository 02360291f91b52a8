"""Calls of a model on blank tokens, for models with and without a source."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from weft.core.layer import needs_of, source_width
from weft.core.model import Classifier, EncoderInputs, LanguageModel, Model, ModelState, Readout
from weft.core.span import WHOLE, Memory, Output, Span


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
