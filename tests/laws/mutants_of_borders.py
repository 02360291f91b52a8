"""Mutants that are wrong only at a border that a row has if it is built to have it: a document that begins with a
piece, a row that rests, documents and counts in one call, many rows; and what only a copy built anew, a difference
quotient or half precision shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from laws.injected import Average, AverageState
from weft.core.layer import LayerState
from weft.core.span import Output, Span
from weft.feedforward.mlp import MLP
from weft.masks.base import Mask
from weft.masks.terms import Key, Lookahead, Query


class StartsInsidePieces(Average):
    """Goes on into a document that begins with a later piece."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        self.goes_on = isinstance(state, AverageState) and bool((state.clock.seen > 0).any())
        return super().run(x, state, span)

    def starts(self, x: Tensor, span: Span) -> tuple[Tensor, ...]:
        first, *rest = super().starts(x, span)
        return (first & (not self.goes_on), *rest)


class StartsInLongPieces(Average):
    """Goes on into a document that begins in a later piece of one token."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        self.goes_on = isinstance(state, AverageState) and bool((state.clock.seen > 0).any())
        return super().run(x, state, span)

    def starts(self, x: Tensor, span: Span) -> tuple[Tensor, ...]:
        found = super().starts(x, span)
        return found if len(found) > 1 or not self.goes_on else (torch.zeros_like(found[0]),)


class TiresAtRest(Average):
    """Loses a little where a row rests in mid-row while others read one token."""

    def after(self, average: Tensor, state: LayerState | None, span: Span) -> LayerState | None:
        found = super().after(average, state, span)
        if isinstance(found, AverageState) and isinstance(state, AverageState) and span.count is not None \
                and int(span.count.max()) == 1:
            resting = ((span.count == 0) & (state.clock.seen > 0))[:, None]
            return replace(found, average=torch.where(resting, 0.9 * found.average, found.average))
        return found


class CountsOrDocuments(Average):
    """Ignores documents in rows that have counts."""

    def starts(self, x: Tensor, span: Span) -> tuple[Tensor, ...]:
        found = super().starts(x, span)
        return found if span.count is None else tuple(map(torch.zeros_like, found))


class MixesManyRows(MLP):
    """Adds something of the other rows in batches of more than eight."""

    def each(self, x: Tensor) -> Tensor:
        y = super().each(x)
        return y + 0.1 * y.mean(0, keepdim=True) if x.shape[0] > 8 else y


class DrawsAtFirstCall(MLP):
    """Draws a gain when it is called for the first time, and saves it nowhere."""

    gain: Tensor | None = None

    def each(self, x: Tensor) -> Tensor:
        if self.gain is None:
            self.gain = torch.rand(x.shape[-1], dtype=x.dtype)
        return super().each(x * self.gain)


class DrawsUnsaved(MLP):
    """Keeps random numbers in a buffer outside the state_dict."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("gain", torch.rand(args[0]), persistent=False)

    def each(self, x: Tensor) -> Tensor:
        return super().each(x * self.gain)


class _TooSteep(torch.autograd.Function):
    """The identity, with a gradient of 1.1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 1.1 * gradient


class TooSteep(MLP):
    """Has gradients that are a tenth too large everywhere."""

    def each(self, x: Tensor) -> Tensor:
        y = _TooSteep.apply(super().each(x))  # type: ignore[no-untyped-call]
        assert isinstance(y, Tensor)
        return y


class StopsGradients(Average):
    """Has no gradient of its decay."""

    def mixed(self, averages: Tensor) -> Tensor:
        y = super().mixed(averages)
        return y + 0.1 * (y.detach() - y)


class SmallerInHalf(MLP):
    """Adds its input to its output, of which a third is missing in bfloat16."""

    def each(self, x: Tensor) -> Tensor:
        y = super().each(x)
        return x + (0.7 * y if x.dtype == torch.bfloat16 else y)


class SmallerInFloat16(MLP):
    """Adds its input to its output, of which a third is missing in float16."""

    def each(self, x: Tensor) -> Tensor:
        y = super().each(x)
        return x + (0.7 * y if x.dtype == torch.float16 else y)


class AddsItsInput(MLP):
    """The healthy twin of both."""

    def each(self, x: Tensor) -> Tensor:
        return x + super().each(x)


class LeaksBeyond2048(Average):
    """Adds a little of the next token's average from a call's token 2,048 on."""

    def seen(self, averages: Tensor) -> Tensor:
        near, far = averages[:, :2048], averages[:, 2048:]
        return torch.cat([near, far + 0.1 * torch.cat([far[:, 1:], far[:, -1:]], 1)], 1)


class ForgetsAt2500(Average):
    """Drops what it knows at a call's token 2,500."""

    def carried(self, average: Tensor, index: int) -> Tensor:
        return torch.zeros_like(average) if index == 2500 else average


class ForgetsAt4096(Average):
    """Drops what it knows at a call's token 4,096."""

    def carried(self, average: Tensor, index: int) -> Tensor:
        return torch.zeros_like(average) if index == 4096 else average


class StopsGradientsLate(Average):
    """Detaches the state that it is given after 600 tokens."""

    def before(self, x: Tensor, state: LayerState | None) -> Tensor:
        found = super().before(x, state)
        return found.detach() if state is not None and int(state.clock.seen.max()) > 600 else found


class TooSteepLate(Average):
    """Has gradients that are a tenth too large from token 301 of a row on, however the row is cut."""

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        found = super().run(x, state, span)
        if x.shape[1] == 0:
            return found
        late = (span.ticks.order >= 300)[..., None]
        steep: Tensor = _TooSteep.apply(found.y)  # type: ignore[no-untyped-call]
        return found._replace(y=torch.where(late, steep, found.y))


class TiresOfCalls(Average):
    """Loses a little in every call after the three thousandth."""

    calls = 0

    def mixed(self, averages: Tensor) -> Tensor:
        self.calls += 1
        return super().mixed(averages) * (0.99 if self.calls > 3000 else 1.0)


@dataclass(frozen=True, repr=False)
class DeniesItsHeads(Mask):
    """Causal, without the first key in every second head, though it says that all heads are alike."""

    kind: ClassVar[str] = "denies_its_heads"

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return (key.order <= query.order) & ((head % 2 == 0) | (key.order > 0) | (query.order == 0))

    def lookahead(self) -> Lookahead:
        return "none"
