"""`RecurrentLayer`, the base of layers that carry a few tensors of fixed size from token to token.

A call has three stages: `project` maps the chunk as the model's dtype and autocast say, `recur` goes through its tokens
in float32 or better, and the map ``output`` makes the layer's output of that. The base does what all share: a chunk
without tokens, calls with and without a state, autocast, documents and padding, and the state after the chunk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Generic, NamedTuple, TypeAlias, TypeVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.clock import Clock
from weft.core.layer import Layer, LayerState
from weft.core.span import Boundaries, Given, Memory, Output, Span
from weft.core.state import tensor_field

P = TypeVar("P")
Carried: TypeAlias = tuple[Tensor | None, ...]
"""The tensors of a state, in the order of its fields after the clock; None, all of them, in a call without a state."""
UNBROKEN = Boundaries(None, None)


@dataclass(frozen=True)
class HiddenState(LayerState):
    """The output of the last token, zero before the first; in float32 or better for any dtype of the model."""

    h: Float[Tensor, "B H"] = tensor_field(keeps_dtype=True)


@dataclass(frozen=True)
class MatrixState(LayerState):
    """A matrix for each head, such as the sum of k v^T over the current document's tokens so far, zero before the
    first; in float32 or better for any dtype of the model."""

    sums: Float[Tensor, "B K E F"] = tensor_field(keeps_dtype=True)


class Recurred(NamedTuple):
    """The result of `RecurrentLayer.recur`.

    Attributes:
        o: what ``output`` maps to the layer's output, [B,T,...].
        after: the carried tensors after the chunk, in any dtype; without a state they are not read.
        given: values for later layers (`weft.core.declarations`).
    """

    o: Tensor
    after: Carried
    given: tuple[Given, ...] = ()


class RecurrentLayer(Layer, ABC, Generic[P]):
    """A layer from [B,T,D] to [B,T,D] whose state is one record of tensors that no token makes longer.

    A subclass gives `shapes`, `project` and `recur`, a map ``output``, and a ``state_type`` where its state is not one
    tensor [B,H]. A field of the state that is declared with ``keeps_dtype`` is in float32 or better for any dtype of
    the model; all begin at zero.
    """

    state_type: type[LayerState] = HiddenState
    output: Callable[[Tensor], Tensor]
    """The map from what `recur` returns to the layer's output, a module or a method."""

    @abstractmethod
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each tensor of the state for one row, in the order of the fields."""

    @abstractmethod
    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> P:
        """The linear maps and convolutions of a chunk of at least one token, as `recur` takes them.

        Args:
            x: the chunk.
            before: the carried tensors.
            span: resolved.
        """

    @abstractmethod
    def recur(self, projected: P, before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        """Go through the chunk's tokens. Autocast is off; `weft.ops.operator.widen` makes numbers float32 or better.

        Args:
            projected: what `project` returned.
            before: the carried tensors.
            boundaries: where documents begin, and which tokens count, as the operations of `weft.ops` take them.
            span: resolved.
        """

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        exact, rows = torch.promote_types(dtype, torch.float32), clock.seen.shape[0]
        kept = [field.metadata["weft"].keeps_dtype for field in fields(self.state_type)[1:]]
        return self.state_type(clock, *(
            torch.zeros(rows, *shape, dtype=exact if keeps else dtype, device=clock.seen.device)
            for shape, keeps in zip(self.shapes(), kept, strict=True)))

    @final
    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        if x.shape[1] == 0:
            return Output(x, state)
        before: list[Tensor | None] = []
        names: tuple[str, ...] = self.state_type.__match_args__  # its fields, the clock first
        for name in names[1:]:  # a comprehension would be a call more in every step
            before.append(None if state is None else getattr(state, name))
        carried = tuple(before)
        projected = self.project(x, carried, span)
        plain = span.count is None and span.begins is None and span.pieces is None
        with torch.autocast(x.device.type, enabled=False):
            done = self.recur(projected, carried, UNBROKEN if plain else Boundaries.of(span, x.shape[0]), span)
        y = self.output(done.o)
        if state is None:
            return Output(y, None, given=done.given)
        after: list[Tensor] = []
        for old, new in zip(before, done.after, strict=True):
            assert old is not None and new is not None, "a call with a state has one after it"
            after.append(new.to(old.dtype))
        return Output(y, self.state_type(span.after, *after), given=done.given)
