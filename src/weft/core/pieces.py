"""`Pieces`: the pieces of the same rows that several processes compute, as one of them sees them.

By the law a layer goes on from any state with several tokens at once. So process r can compute the r-th piece of every
row from the state after the pieces before it, which another process has. How a layer comes by it:

* by default it runs when the state has arrived from the process before, and its new state is sent on: right for every
  layer that has a state, while the processes take turns;
* a layer without a state, which reads later tokens, runs on the whole rows, whose inputs are gathered: right for every
  such layer, while each process computes all of it;
* a layer with `joins_pieces` reads `Span.pieces` in `run`, and takes at once only what it needs of earlier pieces: the
  keys and values of all (`gathered`), the last inputs of a convolution (`before`), or, where a piece maps the state S
  to A S + B, every piece's A and B (`entering`).

All of it is differentiable: gradients flow back to the process that computed the earlier piece. The module that
communicates is `weft.parallel.context`; layers know only what is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.clock import Keys, Ticks

R = TypeVar("R")


class Pieces(ABC):
    """The pieces of the rows of one call; the methods are called by all processes, in the same order.

    Args:
        ends: the order at which each piece ends, in tokens; the first piece begins at 0.
        place: which piece is this process's.
        whole: the span of the whole rows, resolved.
    """

    def __init__(self, ends: Sequence[int], place: int, whole: Any) -> None:
        self.ends, self.place, self.whole = tuple(ends), place, whole
        self.ticks: Ticks = whole.ticks

    @staticmethod
    @abstractmethod
    def keeping() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """The ``context_fn`` of `torch.utils.checkpoint` for layers that are run again for the backward pass: they then
        take what they received the first time, and nothing is communicated."""

    @abstractmethod
    def in_turn(self, run: Callable[[Any], R], state: Any) -> R:
        """Receive the state after the piece before, run the layer, send its state to the process with the next piece.

        Args:
            run: from the state before the piece to the layer's output.
            state: the layer's state before the first token, on the clock of this piece.
        """

    @abstractmethod
    def each(self, *values: Tensor) -> list[tuple[Tensor, ...]]:
        """The values of every process, which have the same shapes and one dtype."""

    def together(self, run: Callable[[Tensor, Any], R], x: Tensor) -> R:
        """This piece of the output of a layer that runs on the whole rows.

        Args:
            run: from the inputs of the whole rows and their span to the layer's output.
            x: the inputs of the piece, [B,P,D].
        """
        out: Any = run(self.gathered(x), self.whole)
        piece: R = out._replace(y=out.y[:, self.start:self.stop])
        return piece

    @property
    def start(self) -> int:
        """The order of the piece's first token."""
        return self.ends[self.place - 1] if self.place else 0

    @property
    def stop(self) -> int:
        """The order after the piece's last token."""
        return self.ends[self.place]

    def sizes(self) -> list[int]:
        """Tokens of every piece."""
        return [stop - start for start, stop in zip((0, *self.ends), self.ends, strict=False)]

    def gathered(self, x: Float[Tensor, "B P ..."]) -> Float[Tensor, "B T ..."]:
        """The values of all tokens of the rows, from those of each piece."""
        longest = max(self.sizes())
        shape = [x.shape[0], longest - x.shape[1], *x.shape[2:]]
        padded = x if shape[1] == 0 else torch.cat([x, x.new_zeros(shape)], 1)
        return torch.cat([piece[:, :size] for (piece,), size in zip(self.each(padded), self.sizes(), strict=True)], 1)

    def before(self, x: Float[Tensor, "B P D"], size: int) -> Float[Tensor, "B size D"]:
        """The last ``size`` values before the piece; zeros before the row's first token."""
        kept = min(size, x.shape[1])
        tail = torch.cat([x.new_zeros(x.shape[0], size - kept, *x.shape[2:]), x[:, x.shape[1] - kept:]], 1)
        tails = [piece[:, size - min(size, length):] for (piece,), length in zip(self.each(tail), self.sizes(),
                                                                              strict=True)]
        earlier = torch.cat([tail.new_zeros(tail.shape), *tails[:self.place]], 1)
        return earlier[:, earlier.shape[1] - size:]

    def entering(self, first: Tensor, factor: Tensor, update: Tensor,
                 applied: Callable[[Tensor, Tensor], Tensor] = torch.mul) -> Tensor:
        """The state before the piece, where each piece maps S to A S + B: an exclusive scan of these maps, which are
        as many as the processes, so that each composes those before it itself.

        Args:
            first: the state before the rows' first token.
            factor: A of this piece.
            update: B of this piece, in the shape of a state.
            applied: (A, S) -> A S.
        """
        state = first.to(update.dtype)
        for a, b in self.each(factor, update)[:self.place]:
            state = applied(a, state) + b
        return state

    def keys(self, reach: int | None, *, ahead: bool) -> tuple[slice, Keys]:
        """Which tokens of the rows a piece's queries may attend to, and the facts about them.

        Args:
            reach: the number of most recent tokens that a query may attend to, itself included; None: all.
            ahead: whether queries may attend to later tokens.
        """
        low = 0 if reach is None else max(0, self.start - reach + 1)
        seen = slice(low, self.ends[-1] if ahead else self.stop)
        ticks = self.ticks
        valid = None if ticks.valid is None else ticks.valid[:, seen]
        return seen, Keys(ticks.order[:, seen], ticks.position[:, seen], ticks.begin[:, seen], valid,
                          ("pieces", seen.start, seen.stop), None if ahead else self.start - low)
