"""Layers and models whose rows are cut among processes, compared with one process that has the whole rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.layer import facts_of
from weft.core.model import EncoderInputs
from weft.core.registry import REGISTRY
from weft.core.span import WHOLE, Span
from weft.laws.subject import Subject, with_facts
from weft.models.decoder import Decoder
from weft.models.encoder import TokenEncoder
from weft.parallel.context import Context

ROWS, STEPS = 5, 11
"""Rows, and tokens of each: 2 processes have 5 and 6, 4 have 2, 3, 3 and 3."""


def spans(cut: int) -> dict[str, Span]:
    """Spans of five rows: whole, packed with documents that begin before, at and after a cut, and ragged besides. The
    documents of rows 0 and 2 go on across the cut; row 1 ends after it, row 3 long before. Row 4 is one document, which
    goes on across the whole of the pieces in the middle."""
    begins = torch.zeros(ROWS, STEPS, dtype=torch.bool)
    begins[0, [cut - 1, cut + 2]] = True
    begins[1, cut] = True
    begins[2, [2, cut + 1]] = True
    count = torch.tensor([STEPS, STEPS - 2, STEPS, 1, STEPS])
    return {"whole": WHOLE, "packed": Span(begins=begins), "ragged": Span(count=count, begins=begins)}


def difference(subject: Subject, context: Context, span: Span, x: Tensor) -> float:
    """The largest difference of outputs and gradients, relative to the largest of each, from one process's."""
    memory = subject.memory(len(x), torch.Generator().manual_seed(2))
    weights = torch.randn(*x.shape[:2], 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    span = with_facts(replace(span, memory=memory), x, sorted(facts_of(subject.module)))
    leaf = x.clone().requires_grad_(x.is_floating_point())
    y = subject.module(leaf, None, span).y
    alone = gradients(subject.module, leaf, (y * weights).square().sum())
    leaf = x.clone().requires_grad_(x.is_floating_point())
    with context.piece(subject.module, x.shape, span) as piece:
        own = piece.span.clean(subject.module(leaf[:, piece.tokens], piece.state, piece.span).y)
        found = gradients(subject.module, leaf, piece.closed((own * weights[:, piece.tokens]).square().sum()))
    for gradient in found:
        dist.all_reduce(gradient)
    pairs = [(own.detach(), y.detach()[:, piece.tokens]), *zip(found, alone, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) for a, b in pairs if a.numel())


def gradients(module: nn.Module, x: Tensor, loss: Tensor) -> list[Tensor]:
    module.zero_grad()
    loss.backward()
    leaves = [x] if x.is_floating_point() else []
    return [torch.zeros_like(each) if each.grad is None else each.grad.clone()
            for each in [*leaves, *module.parameters()]]


def decoder(**fields: Any) -> Decoder:
    """A small model of a mixer of each way of handing a state on: keys, in turn, affine maps, and the last inputs of a
    convolution before an affine map, which are two messages of one layer."""
    layers = [{"kind": "attention", "n_heads": 2, "position": "t5"}, "gru", "gated_linear_attention", "mamba"]
    config = REGISTRY.get(("model",), "decoder").model_validate({
        "vocab_size": 11, "d_model": 8, "position": "learned", "context": STEPS,
        "blocks": [{"kind": "pre", "layers": [layer, {"kind": "mlp", "d_ff": 12}]} for layer in layers], **fields})
    torch.manual_seed(0)
    model = config.build(None).double()
    assert isinstance(model, Decoder)
    return model


def encoder() -> TokenEncoder:
    """A small encoder: attention, which reads the keys of all processes, with global tokens that one of them has, and
    layers that run on the whole rows."""
    attention = {"kind": "attention", "n_heads": 2, "mask": "bidirectional", "position": "rope"}
    linear = {"kind": "linear_attention", "n_heads": 2, "mask": "bidirectional"}
    marked = {"kind": "global_attention", "n_heads": 2, "mask": "symmetric_window(2, 2)", "global_tokens": [0, 7]}
    config = REGISTRY.get(("encoder",), "encoder").model_validate({
        "vocab_size": 11, "d_model": 8, "position": "learned", "context": STEPS, "head": "masked_token", "blocks": [
            {"kind": "post", "layers": [attention, {"kind": "mlp", "d_ff": 12}]},
            {"kind": "pre", "layers": [linear, marked, "channel_mix"]}]})
    torch.manual_seed(0)
    model = config.build(None).double()
    assert isinstance(model, TokenEncoder)
    return model


def encoded(kind: str, *, again: bool) -> float:
    """The largest difference of the loss and gradients of an encoder from one process's, as `losses`; ``kind``: of
    span."""
    model, tokens = encoder(), torch.randint(11, (ROWS, STEPS), generator=torch.Generator().manual_seed(1))
    span, chosen = spans(STEPS // 2)[kind], torch.arange(STEPS).expand(ROWS, -1) % 3 == 0
    head: Any = model.head

    def loss(where: slice, own: Span) -> Tensor:
        y = model.vectors(EncoderInputs(tokens=tokens[:, where]), own).y
        return -torch.where(chosen[:, where], head.log_prob(y, tokens[:, where]), 0.0).sum()

    alone = gradients(model, tokens, loss(slice(None), span))
    model.stack.kept_activations = "inputs" if again else "everything"
    with Context().piece(model, tokens.shape, span) as piece:
        found = gradients(model, tokens, piece.closed(loss(piece.tokens, piece.span)))
    return apart(found, alone)


def apart(found: list[Tensor], alone: list[Tensor]) -> float:
    """The largest difference of the sum over processes from one process, relative to the largest number."""
    for gradient in found:
        dist.all_reduce(gradient)
    largest = max(float(each.abs().max()) for each in alone)
    return max(float((a - b).abs().max()) for a, b in zip(found, alone, strict=True)) / largest


def losses(scored: Tensor, *, recomputes: bool) -> float:
    """The largest difference of a decoder's loss and gradients from one process's, relative to the largest gradient."""
    model, tokens = decoder(), torch.randint(11, (ROWS, STEPS), generator=torch.Generator().manual_seed(1))
    span = spans(STEPS // 2)["packed"]

    def loss(found: Tensor, where: slice) -> Tensor:
        return -torch.where(scored[:, where], model.readout.log_prob(found, tokens[:, where]), 0.0).sum()

    alone = gradients(model, tokens, loss(model.hidden(tokens, None, span).y, slice(None)))
    model.stack.kept_activations = "inputs" if recomputes else "everything"
    with Context().piece(model, tokens.shape, span) as piece:
        y = model.hidden(tokens[:, piece.tokens], piece.state, piece.span).y
        found = gradients(model, tokens, piece.closed(loss(y, piece.tokens)))
    return apart(found, alone)


def recomputed() -> float:
    """With blocks that are run again for the backward pass."""
    return losses(torch.ones(ROWS, STEPS, dtype=torch.bool), recomputes=True)


def unscored() -> float:
    """Where only the last process has tokens that are scored."""
    return losses((torch.arange(STEPS) == STEPS - 1).expand(ROWS, -1), recomputes=False)


def clocks(context: Context) -> float:
    """By how many tokens a piece's clocks and counts are away from those of one process that reads up to each cut."""
    model, worst = decoder(), 0
    for span in spans(STEPS // 2).values():
        with context.piece(model, (ROWS, STEPS), span) as piece:
            own, (before, after) = piece.span, (read(span, order) for order in (piece.tokens.start, piece.tokens.stop))
        count = torch.full((ROWS,), piece.tokens.stop - piece.tokens.start) if own.count is None else own.count
        pairs = [(count, after.seen - before.seen)]
        for found, alone in ((own.before, before), (own.after, after)):
            pairs += [(found.seen, alone.seen), (found.begin, alone.begin), (found.prefix_end, alone.prefix_end)]
        worst = max(worst, *(int((a - b).abs().max()) for a, b in pairs))
    return float(worst)


def read(span: Span, order: int) -> Clock:
    """The clock after the tokens before ``order``."""
    count = torch.full((ROWS,), order) if span.count is None else span.count.clamp(max=order)
    earlier = replace(span, count=count, begins=None if span.begins is None else span.begins[:, :order])
    return earlier.resolve(Clock.start(ROWS), torch.empty(ROWS, order)).after
