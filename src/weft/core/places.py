"""The positions of the tokens that later queries look back at, kept once for all layers of a model.

They stand beside the clock, which all layers share, in the dtype and with as many coordinates a token as the calls
give. Growing where some layer looks back at everything; otherwise the last W tokens and a document's first n, W and n
the largest that any layer needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias, final

import torch
from jaxtyping import Int64
from torch import Tensor

from weft.core.errors import InputError
from weft.core.state import State, fact_field, pad_to, tensor_field


class Seen(Protocol):
    """What is read here of a `weft.core.clock.Clock`, which holds these positions."""

    @property
    def seen(self) -> Int64[Tensor, " B"]:
        """Tokens of each row so far."""

    @property
    def begin(self) -> Int64[Tensor, " B"]:
        """The order at which each row's current document began."""

    @property
    def fresh(self) -> bool:
        """Nothing has been seen in any row."""


class Placed(Protocol):
    """What is read here of a chunk's `weft.core.clock.Ticks`."""

    @property
    def order(self) -> Tensor:
        """[B,T], tokens counted over the row."""

    @property
    def position(self) -> Tensor:
        """[#B,T] or [#B,T,n], in the document or as given."""


class Lookback(NamedTuple):
    """Which earlier tokens a part asks the positions of: the last ``size``, all when None, and those of the document's
    ``first`` ones."""

    size: int | None
    first: int = 0


@final
@dataclass(frozen=True)
class GrowingPlaces(State):
    """Every position so far, [B,S] or [B,S,n]; slot s holds that of the token of order s."""

    positions: Tensor = tensor_field(grows=1, keeps_dtype=True, as_given=True)
    capacity: int | None = fact_field(saved=int, room=True)

    def advanced(self, before: Seen, after: Seen, ticks: Placed, bound: int | None) -> GrowingPlaces:
        """After a chunk; a ``bound`` is of the tokens that a row has consumed by then."""
        slots, steps = self.positions.shape[1], ticks.order.shape[1]
        room = max(slots, bound if bound is not None else slots + steps if self.capacity is None else self.capacity)
        held = torch.arange(room, device=after.seen.device)[None]
        buffer = pad_to(_fitting(self.positions, before, ticks), 1, room, 0)
        return replace(self, positions=_merged(buffer, held, before, after, ticks))

    def at(self, orders: Int64[Tensor, "#B S"], first: int) -> Tensor:
        """Of the tokens of these orders, [#B,S] or [#B,S,n]; anything for orders that there are not."""
        slots = self.positions.shape[1]
        if slots == 0:  # before the first token there are no orders to ask for, only slots that wait for them
            return self.positions.new_zeros(len(self.positions), orders.shape[1], *self.positions.shape[2:])
        return _gathered(self.positions, orders.clamp(0, slots - 1))


@final
@dataclass(frozen=True)
class RollingPlaces(State):
    """The positions of the current document's first n tokens and of the last W, [B,n+W] or [B,n+W,c]."""

    positions: Tensor = tensor_field(keeps_dtype=True, as_given=True)
    first: int = fact_field()

    def advanced(self, before: Seen, after: Seen, ticks: Placed, bound: int | None) -> RollingPlaces:
        """After a chunk."""
        held = held_orders(after, self.positions.shape[1] - self.first, self.first)
        return replace(self, positions=_merged(_fitting(self.positions, before, ticks), held, before, after, ticks))

    def at(self, orders: Int64[Tensor, "#B S"], first: int) -> Tensor:
        """Of the tokens of these orders, the ``first`` of which are the document's first ones."""
        window = self.positions.shape[1] - self.first
        recent = self.first + torch.remainder(orders[:, first:], window)
        early = torch.arange(first, device=orders.device).expand(len(recent), -1)
        return _gathered(self.positions, torch.cat([early, recent], 1))


Places: TypeAlias = GrowingPlaces | RollingPlaces


def start_places(needs: Iterable[Lookback | None], batch: int, *, capacity: int | None,
                 device: torch.device | str | None) -> Places | None:
    """Before the first token, for parts that look back so far; None where none does."""
    wanted = [need for need in needs if need is not None]
    sizes = [need.size for need in wanted if need.size is not None]
    if not wanted:
        return None
    if len(sizes) < len(wanted):
        return GrowingPlaces(torch.zeros(batch, capacity or 0, dtype=torch.int64, device=device), capacity)
    first = max(need.first for need in wanted)
    return RollingPlaces(torch.zeros(batch, first + max(sizes), dtype=torch.int64, device=device), first)


def held_orders(clock: Seen, window: int, first: int) -> Int64[Tensor, "B S"]:
    """Which token each slot of a rolling buffer can hold: of ``first`` slots the first tokens of the current document,
    of W further ones the newest whose order is s modulo W; negative for none."""
    last = clock.seen[:, None] - 1
    recent = last - torch.remainder(last - torch.arange(window, device=last.device)[None], window)
    if first == 0:
        return recent
    return torch.cat([clock.begin[:, None] + torch.arange(first, device=last.device)[None], recent], 1)


def _fitting(buffer: Tensor, before: Seen, ticks: Placed) -> Tensor:
    """The buffer so that it can hold the chunk's positions: in a dtype that holds both, of as many coordinates.

    Raises:
        InputError: earlier calls gave another number of coordinates a token.
    """
    own = ticks.position
    if own.shape[2:] != buffer.shape[2:]:
        if not before.fresh:
            given, earlier = (list(each.shape[2:]) or "one" for each in (own, buffer))
            raise InputError(f"{given} coordinates a token, {earlier} in earlier calls.", where="span.coordinates",
                             remedy="Give as many coordinates a token in every call of a sequence.")
        buffer = buffer.new_zeros(*buffer.shape[:2], *own.shape[2:])
    return buffer.to(torch.promote_types(buffer.dtype, own.dtype))


def _merged(buffer: Tensor, held: Tensor, before: Seen, after: Seen, ticks: Placed) -> Tensor:
    """A new buffer: in each slot the position of the token that it now holds, from the chunk or as it was."""
    steps = ticks.order.shape[1]
    place = held - before.seen[:, None]
    taken = (place >= 0) & (held < after.seen[:, None])
    own = ticks.position.expand(len(buffer), *ticks.position.shape[1:])
    chosen = _gathered(own, place.clamp(0, steps - 1)).to(buffer.dtype)
    return torch.where(taken.view(*taken.shape, *[1] * (buffer.dim() - 2)), chosen, buffer)


def _gathered(values: Tensor, index: Tensor) -> Tensor:
    """[#B,S] or [#B,S,n] of ``values`` [B,P] or [B,P,n] at ``index`` [#B,S]."""
    index = index.expand(len(values), -1)
    return values.gather(1, index) if values.dim() == 2 else values.gather(
        1, index[..., None].expand(-1, -1, values.shape[2]))
