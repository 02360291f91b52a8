"""Values of earlier tokens that later calls read, stored once for all layers of a model, beside the clock.

A clock has two of these at most: the positions of tokens, for attention to earlier keys, and their facts, for masks.
Each either grows with the row, where some part reads the values of all earlier tokens, or is a ring buffer of the last
W tokens with the first n of the current document besides, W and n being the largest that any part needs. Values are
looked up by the order of a token, wherever its key is stored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.errors import InputError
from weft.core.state import State, fact_field, pad_to, tensor_field


class Seen(Protocol):
    """The part of a `weft.core.clock.Clock` that a history reads. The clock holds histories, so it is not imported."""

    @property
    def seen(self) -> Int64[Tensor, " B"]:
        """Tokens that each row has consumed."""

    @property
    def begin(self) -> Int64[Tensor, " B"]:
        """The order at which each row's current document began."""

    @property
    def fresh(self) -> bool:
        """Whether no row has consumed anything."""


class Lookback(NamedTuple):
    """The earlier tokens whose values a part reads.

    Attributes:
        size: the number of most recent tokens, the newest included; None: all.
        first: the number of first tokens of the current document that it reads besides.
    """

    size: int | None
    first: int = 0


@dataclass(frozen=True)
class GrowingHistory(State):
    """The values of all tokens of each row.

    Attributes:
        values: [B,S] or [B,S,n]; slot s holds the value of the token of order s.
        capacity: tokens that a row may consume; None when the buffer grows with each call.
    """

    values: Tensor = tensor_field(grows=1, keeps_dtype=True, as_given=True)
    capacity: int | None = fact_field(saved=int, room=True)

    def advanced(self, before: Seen, after: Seen, values: Tensor, bound: int | None) -> GrowingHistory:
        """The history after a chunk.

        Args:
            before: the clock before the chunk.
            after: the clock after it.
            values: of the chunk's tokens, [#B,T] or [#B,T,n]; those beyond a row's count are ignored.
            bound: tokens that no row will have consumed more than after the chunk, where the call gives it.

        Raises:
            InputError: earlier calls gave another number of coordinates a token.
        """
        slots = self.values.shape[1]
        needed = slots + values.shape[1] if self.capacity is None else self.capacity
        room = max(slots, needed if bound is None else bound)
        orders = torch.arange(room, device=after.seen.device)[None]
        buffer = pad_to(_fitting(self.values, before, values), 1, room, 0)
        return replace(self, values=_merged(buffer, orders, before, after, values))

    def at(self, orders: Int64[Tensor, "#B S"], first: int = 0) -> Tensor:
        """The values of the tokens of these orders, [B,S] or [B,S,n]; arbitrary where there is no such token."""
        slots = self.values.shape[1]
        if slots == 0:  # before the first token every order is that of a slot without one
            return self.values.new_zeros(len(self.values), orders.shape[1], *self.values.shape[2:])
        return gathered(self.values, orders.clamp(0, slots - 1))


@dataclass(frozen=True)
class RollingHistory(State):
    """The values of the last W tokens of each row and of the first n of its current document.

    Attributes:
        values: [B,n+W] or [B,n+W,c]; slot i < n holds the value of the document's token i, and slot n + s that of the
            newest token whose order is s modulo W.
        first: n.
    """

    values: Tensor = tensor_field(keeps_dtype=True, as_given=True)
    first: int = fact_field()

    def advanced(self, before: Seen, after: Seen, values: Tensor, bound: int | None) -> RollingHistory:
        """The history after a chunk; the arguments are those of `GrowingHistory.advanced`."""
        orders = held_orders(after, self.values.shape[1] - self.first, self.first)
        return replace(self, values=_merged(_fitting(self.values, before, values), orders, before, after, values))

    def at(self, orders: Int64[Tensor, "#B S"], first: int = 0) -> Tensor:
        """The values of the tokens of these orders, of which the ``first`` ones are the document's first tokens."""
        window = self.values.shape[1] - self.first
        recent = self.first + torch.remainder(orders[:, first:], window)
        if first == 0:
            return gathered(self.values, recent)
        early = torch.arange(first, device=orders.device).expand(len(recent), -1)
        return gathered(self.values, torch.cat([early, recent], 1))


History: TypeAlias = GrowingHistory | RollingHistory


def start_history(lookbacks: Iterable[Lookback], batch: int, *, capacity: int | None,
                  device: torch.device | str | None, width: int | None = None) -> History | None:
    """The history before the first token, with zeros in its slots; None where no part reads earlier tokens.

    Args:
        lookbacks: what the parts read.
        batch: rows.
        capacity: tokens that a row may consume; None: any number.
        device: of the buffer.
        width: whole numbers for each token; None: one, in a buffer [B,S] that takes the shape of what calls give.
    """
    needs = list(lookbacks)
    if not needs:
        return None
    sizes, first = [need.size for need in needs if need.size is not None], max(need.first for need in needs)
    all_tokens = len(sizes) < len(needs)
    slots = (capacity or 0) if all_tokens else first + max(sizes)
    values = torch.zeros(batch, slots, *([] if width is None else [width]), dtype=torch.int64, device=device)
    return GrowingHistory(values, capacity) if all_tokens else RollingHistory(values, first)


def held_orders(clock: Seen, window: int, first: int) -> Int64[Tensor, "B S"]:
    """The order of the token in each slot of a ring buffer: in ``first`` slots those of the current document's first
    tokens, in W further ones the newest order that is s modulo W; negative where the slot is empty."""
    last = clock.seen[:, None] - 1
    recent = last - torch.remainder(last - torch.arange(window, device=last.device)[None], window)
    if first == 0:
        return recent
    return torch.cat([clock.begin[:, None] + torch.arange(first, device=last.device)[None], recent], 1)


def gathered(values: Tensor, index: Int64[Tensor, "#B S"]) -> Tensor:
    """``values`` [B,P] or [B,P,n] at ``index``: [B,S] or [B,S,n]."""
    index = index.expand(len(values), -1)
    return values.gather(1, index) if values.dim() == 2 else values.gather(
        1, index[..., None].expand(-1, -1, values.shape[2]))


def _fitting(buffer: Tensor, before: Seen, values: Tensor) -> Tensor:
    """The buffer in a dtype that represents its own values and the chunk's, with as many numbers a token. Only
    coordinates can differ in either; the number and the dtype of facts are fixed when the state starts. Raises
    `InputError`: earlier calls gave another number of coordinates a token."""
    if values.shape[2:] != buffer.shape[2:]:
        if not before.fresh:
            new, earlier = (list(each.shape[2:]) or "one" for each in (values, buffer))
            raise InputError(f"{new} coordinates a token, {earlier} in earlier calls.", where="span.coordinates",
                             remedy="Give as many coordinates a token in every call of a sequence.")
        buffer = buffer.new_zeros(*buffer.shape[:2], *values.shape[2:])
    return buffer.to(torch.promote_types(buffer.dtype, values.dtype))


def _merged(buffer: Tensor, orders: Tensor, before: Seen, after: Seen, values: Tensor) -> Tensor:
    """A new buffer, whose slots hold the tokens of these orders: their values in the chunk, or as they were."""
    index = orders - before.seen[:, None]
    new = (index >= 0) & (orders < after.seen[:, None])
    chunk = values.expand(len(buffer), *values.shape[1:])
    chosen = gathered(chunk, index.clamp(0, values.shape[1] - 1)).to(buffer.dtype)
    return torch.where(new.view(*new.shape, *[1] * (buffer.dim() - 2)), chosen, buffer)
