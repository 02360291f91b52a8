"""What attention keeps: keys and values that grow with the sequence, or a rolling buffer for a window.

Both answer the same two questions: which keys may the chunk's queries look at (`gather`), and what is kept after it.
Buffers are written in place only with gradients off; with gradients on every state is a new value, so gradients flow
across cuts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.checks import require
from weft.core.clock import Clock, Keys, Ticks
from weft.core.errors import StateError
from weft.core.layer import LayerState
from weft.core.span import Span
from weft.core.state import fact_field, pad_to, tensor_field


@dataclass(frozen=True)
class KeyValueState(LayerState):
    """Keys and values of every token so far; slot s holds the token of order s.

    Attributes:
        positions: the keys' positions, kept only for position schemes that act on scores.
        capacity: tokens a row may consume; None when the buffers grow by each chunk.
    """

    keys: Float[Tensor, "B S K E"] = tensor_field(grows=1)
    values: Float[Tensor, "B S K F"] = tensor_field(grows=1)
    positions: Tensor | None = tensor_field(grows=1, keeps_dtype=True)
    capacity: int | None = fact_field()


@dataclass(frozen=True)
class RollingState(LayerState):
    """Keys and values of the last W tokens; the token of order i is in slot i mod W."""

    keys: Float[Tensor, "B W K E"] = tensor_field()
    values: Float[Tensor, "B W K F"] = tensor_field()
    positions: Tensor | None = tensor_field(keeps_dtype=True)


class Stored(NamedTuple):
    """Keys and values for the chunk's queries, what is known of them, and the state after the chunk."""

    k: Tensor
    v: Tensor
    keys: Keys
    state: LayerState | None


class KeyValueShape(NamedTuple):
    """Sizes of a key/value state: key heads K, their size E, value size F, and whether positions are kept."""

    heads: int
    d_head: int
    d_value: int
    positions: bool


def start_growing(clock: Clock, shape: KeyValueShape, capacity: int | None, dtype: torch.dtype) -> KeyValueState:
    """Before the first token: no slots, or ``capacity`` of them."""
    k, v, positions = _buffers(clock, shape, capacity or 0, dtype)
    return KeyValueState(clock, k, v, positions, capacity)


def start_rolling(clock: Clock, shape: KeyValueShape, window: int, dtype: torch.dtype) -> RollingState:
    """Before the first token: W empty slots."""
    return RollingState(clock, *_buffers(clock, shape, window, dtype))


def _buffers(clock: Clock, shape: KeyValueShape, slots: int,
             dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    batch, device = clock.seen.shape[0], clock.seen.device
    k = torch.zeros(batch, slots, shape.heads, shape.d_head, dtype=dtype, device=device)
    v = torch.zeros(batch, slots, shape.heads, shape.d_value, dtype=dtype, device=device)
    positions = torch.zeros(batch, slots, dtype=torch.int64, device=device) if shape.positions else None
    return k, v, positions


def store(state: LayerState | None, k: Tensor, v: Tensor, span: Span) -> Stored:
    """Keep the chunk's keys [B,T,K,E] and values [B,T,K,F] and say what its queries may look at."""
    if isinstance(state, KeyValueState):
        return _store_growing(state, k, v, span)
    if isinstance(state, RollingState):
        return _store_rolling(state, k, v, span)
    return Stored(k, v, Keys.of(span.ticks), None)


def _store_growing(state: KeyValueState, k: Tensor, v: Tensor, span: Span) -> Stored:
    ticks, after = span.ticks, span.after
    room = _room(state, k.shape[1], span)
    require(after.seen <= room, StateError, f"a row would consume more than {room} tokens.", where="state",
            remedy="Start the state with a larger capacity, or give span.bound as the largest count after the call.")
    new = state.replace(clock=after, keys=_write(state.keys, k, ticks, room),
                        values=_write(state.values, v, ticks, room),
                        positions=_write_positions(state.positions, ticks, room))
    if span.fresh:
        return Stored(k, v, Keys.of(ticks), new)
    seen = room if span.bound is None else min(span.bound, room)
    order = torch.arange(seen, device=k.device)[None]
    valid = None if span.uniform else order < after.seen[:, None]
    place = order if new.positions is None else new.positions[:, :seen]
    return Stored(new.keys[:, :seen], new.values[:, :seen], Keys(order, place, None, valid), new)


def _room(state: KeyValueState, steps: int, span: Span) -> int:
    """Slots after the call, from plain facts: as declared, else the chunk's length more than before."""
    slots = state.keys.shape[1]
    if span.bound is not None and state.capacity is not None and span.bound > state.capacity:
        raise StateError(f"span.bound is {span.bound}, and the state was started for {state.capacity} tokens.",
                         where="state", remedy="Start the state with a larger capacity.")
    if span.bound is not None:
        return max(slots, span.bound)
    if state.capacity is not None:
        return max(slots, state.capacity)
    return slots + steps


def _write(buffer: Tensor, chunk: Tensor, ticks: Ticks, room: int) -> Tensor:
    """The buffer with the chunk's counted tokens in the slots of their orders."""
    chunk = chunk.to(buffer.dtype)
    grown = pad_to(buffer, 1, room, 0)
    if chunk.shape[1] == 0:
        return grown
    if not torch.is_grad_enabled() and (ticks.valid is None or chunk.shape[1] == 1):
        return _write_in_place(grown, chunk, ticks)
    place = torch.arange(room, device=buffer.device)[None] - ticks.order[:, :1]
    count = chunk.shape[1] if ticks.valid is None else ticks.valid.sum(1, keepdim=True)
    taken = _take(chunk, place.clamp(0, chunk.shape[1] - 1))
    return torch.where(_like((place >= 0) & (place < count), taken), taken, grown)


def _write_in_place(buffer: Tensor, chunk: Tensor, ticks: Ticks) -> Tensor:
    rows = torch.arange(chunk.shape[0], device=chunk.device)[:, None]
    slots = ticks.order.expand(chunk.shape[0], -1)
    if ticks.valid is not None:
        slots = slots.clamp(max=buffer.shape[1] - 1)
        chunk = torch.where(_like(ticks.valid, chunk), chunk, buffer[rows, slots])
    return buffer.index_put_((rows, slots), chunk)


def _write_positions(buffer: Tensor | None, ticks: Ticks, room: int) -> Tensor | None:
    return None if buffer is None else _write(buffer, ticks.position.expand(buffer.shape[0], -1), ticks, room)


def _store_rolling(state: RollingState, k: Tensor, v: Tensor, span: Span) -> Stored:
    ticks, after = span.ticks, span.after
    own = ticks.position.expand(k.shape[0], -1)
    before = _slot_orders(state.clock.seen, state.keys.shape[1])
    now = _slot_orders(after.seen, state.keys.shape[1])
    fields = {"keys": k, "values": v} | ({} if state.positions is None else {"positions": own})
    rolled = {name: _roll(getattr(state, name), chunk, now, state.clock.seen) for name, chunk in fields.items()}
    new = replace(state, clock=after, **rolled)
    if span.fresh:
        return Stored(k, v, Keys.of(ticks), new)
    if k.shape[1] == 1 and span.full:
        # The slot just overwritten held the token that the window has left behind.
        place = now if new.positions is None else new.positions
        return Stored(new.keys, new.values, Keys(now, place, None, now >= 0), new)
    held = (before >= 0) & (before < state.clock.seen[:, None])
    valid = torch.cat([held, torch.ones_like(own, dtype=torch.bool) if ticks.valid is None else ticks.valid], 1)
    order = torch.cat([before, ticks.order], 1)
    place = order if state.positions is None else torch.cat([state.positions, own], 1)
    return Stored(torch.cat([state.keys, k.to(state.keys.dtype)], 1),
                  torch.cat([state.values, v.to(state.values.dtype)], 1), Keys(order, place, None, valid), new)


def _slot_orders(seen: Tensor, window: int) -> Tensor:
    """[B,W]: the order of the newest token that slot s can hold once ``seen`` tokens came; negative for none."""
    last = seen[:, None] - 1
    return last - torch.remainder(last - torch.arange(window, device=seen.device)[None], window)


def _roll(buffer: Tensor, chunk: Tensor, now: Tensor, seen: Tensor) -> Tensor:
    """Slots whose newest token came with this chunk take it; the others keep theirs."""
    if chunk.shape[1] == 0:
        return buffer
    chunk = chunk.to(buffer.dtype)
    place = now - seen[:, None]
    taken = _take(chunk, place.clamp(0, chunk.shape[1] - 1))
    return torch.where(_like(place >= 0, taken), taken, buffer)


def _take(chunk: Tensor, index: Tensor) -> Tensor:
    """``chunk`` [B,T,...] at ``index`` [B,S] along time."""
    shaped = _like(index, chunk)
    return chunk.gather(1, shaped.expand(-1, -1, *chunk.shape[2:]).expand(chunk.shape[0], *[-1] * (chunk.dim() - 1)))


def _like(flags: Tensor, x: Tensor) -> Tensor:
    """``flags`` [B,S] with as many dimensions as ``x``."""
    return flags.reshape(*flags.shape, *([1] * (x.dim() - 2)))
