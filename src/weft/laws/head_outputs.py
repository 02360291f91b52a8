"""The outputs of a model's head, a readout or a classifier."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from weft.core.heads import outputs
from weft.core.model import EncoderInputs, Model, Readout
from weft.core.span import Span
from weft.laws.report import COUNT, Finding, difference
from weft.laws.subject import Subject
from weft.laws.training_mode import dropouts, head_modules, in_training, varies

LAW = "head"


def heads(subject: Subject, generator: torch.Generator) -> Iterator[Finding]:
    """The outputs of a head for rows of several lengths equal those for each row alone; a readout's `log_prob` equals
    gathering from the log-softmax of its logits; dropout is applied in training only."""
    model = subject.module
    if not isinstance(model, Model) or model.head is None:
        return
    tokens, steps = subject.inputs(3, subject.steps, generator), subject.steps
    counts = torch.tensor([steps, max(1, steps // 2), 1], device=tokens.device)
    with torch.no_grad():
        together = _outputs(model, tokens, Span(count=counts))
        for row, count in enumerate(counts.tolist()):
            alone = _outputs(model, tokens[row:row + 1, :count], Span())[0]
            mine = together[row] if together.dim() == 2 else together[row, :count]  # an output for each row, or token
            yield Finding(LAW, f"a row of {count} tokens alone", difference(mine, alone), subject.bound)
        if isinstance(model.head, Readout):
            tokens, targets = (subject.inputs(2, subject.steps, generator) for _ in range(2))
            h = model.vectors(EncoderInputs(tokens=tokens)).y
            expected = model.head.logits(h).double().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
            yield Finding(LAW, "log_prob against the logits", difference(model.head.log_prob(h, targets), expected),
                          subject.bound)
        yield from _dropout(subject, model, tokens)


def _dropout(subject: Subject, model: Model, tokens: torch.Tensor) -> Iterator[Finding]:
    """Every dropout of the head is applied in training and not in evaluation."""
    own = head_modules(model)
    with torch.random.fork_rng(devices=[]):
        for place in dropouts(model):
            if id(model.get_submodule(place)) not in own:
                continue
            one = in_training(subject, keep=place).module
            assert isinstance(one, Model), "a copy of the model"
            applied = varies(partial(_outputs, one, tokens, Span()))
            does = "drops" if applied else "does not drop"
            yield Finding(LAW, f"{place} {does} in training", float(not applied), COUNT)
        drawn = varies(partial(_outputs, model, tokens, Span()))
        yield Finding(LAW, f"evaluation {'draws' if drawn else 'draws no'} random numbers", float(drawn), COUNT)


def _outputs(model: Model, tokens: torch.Tensor, span: Span) -> torch.Tensor:
    return outputs(model.head, model.vectors(EncoderInputs.of(tokens), span).y, span)
