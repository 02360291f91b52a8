"""What attention keeps: keys and values that grow with the sequence, or a rolling buffer for a window.

Both answer the same two questions: which keys may the chunk's queries look at (`gather`), and what is kept after it.
Buffers are written in place only with gradients off; with gradients on every state is a new value, so gradients flow
across cuts. A head's keys lie side by side, so that all that a query reads is read in one sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.checks import require
from weft.core.clock import Clock, Keys, Ticks
from weft.core.errors import InputError, StateError
from weft.core.layer import LayerState
from weft.core.span import Span
from weft.core.state import fact_field, pad_to, tensor_field


@dataclass(frozen=True)
class KeyValueState(LayerState):
    """Keys and values of every token so far; slot s holds the token of order s.

    Attributes:
        positions: the keys' positions [B,S] or [B,S,n], kept only for position schemes that act on scores; whole
            numbers until a call gives coordinates, then of a dtype that holds both.
        capacity: tokens a row may consume; None when the buffers grow by each chunk.
    """

    keys: Float[Tensor, "B K S E"] = tensor_field(grows=2)
    values: Float[Tensor, "B K S F"] = tensor_field(grows=2)
    positions: Tensor | None = tensor_field(grows=1, keeps_dtype=True, as_given=True)
    capacity: int | None = fact_field(saved=int, room=True)


@dataclass(frozen=True)
class RollingState(LayerState):
    """Keys and values of the last W tokens; the token of order i is in slot i mod W."""

    keys: Float[Tensor, "B K W E"] = tensor_field()
    values: Float[Tensor, "B K W F"] = tensor_field()
    positions: Tensor | None = tensor_field(keeps_dtype=True, as_given=True)


class Stored(NamedTuple):
    """Keys [B,S,K,E] and values [B,S,K,F] for the chunk's queries, what is known of them, and the state after the
    chunk."""

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
    k = torch.zeros(batch, shape.heads, slots, shape.d_head, dtype=dtype, device=device)
    v = torch.zeros(batch, shape.heads, slots, shape.d_value, dtype=dtype, device=device)
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
    ticks.once(("room", room), lambda: require(
        after.seen <= room, StateError, f"a row would consume more than {room} tokens.", where="state",
        remedy="Start the state with a larger capacity, or give span.bound as the largest count after the call."))
    slots = _growing_slots(span, k.shape[1], room)
    keys, values = (_write(pad_to(buffer, 2, room, 0), chunk.transpose(1, 2), slots, ticks)
                    for buffer, chunk in ((state.keys, k), (state.values, v)))
    positions = state.positions
    if positions is not None:
        wide = _room_for_positions(positions, state.clock, ticks)
        positions = _write_positions(pad_to(wide, 1, room, 0), slots, ticks)
    new = KeyValueState(after, keys, values, positions, state.capacity)
    if span.fresh:
        return Stored(k, v, Keys.of(ticks), new)
    seen = room if span.bound is None else min(span.bound, room)
    known = _growing_keys(span, seen)
    if positions is not None:
        known = replace(known, position=positions[:, :seen])
    if seen < room:
        keys, values = keys[:, :, :seen], values[:, :, :seen]
    return Stored(keys.transpose(1, 2), values.transpose(1, 2), known, new)


def _room(state: KeyValueState, steps: int, span: Span) -> int:
    """Slots after the call, from plain facts: as declared, else the chunk's length more than before."""
    slots = state.keys.shape[2]
    if span.bound is not None and state.capacity is not None and span.bound > state.capacity:
        raise StateError(f"span.bound is {span.bound}, and the state was started for {state.capacity} tokens.",
                         where="state", remedy="Start the state with a larger capacity.")
    if span.bound is not None:
        return max(slots, span.bound)
    if state.capacity is not None:
        return max(slots, state.capacity)
    return slots + steps


class Slots(NamedTuple):
    """Where a chunk goes in a buffer of S slots.

    Attributes:
        first: the slots from this one on, in every row; None where rows differ or only tensors know.
        targets: the slot of each token, [#B,T]; read where ``first`` is None.
        source: for each slot the token of the chunk that it takes, [#B,S]; out of 0 to T - 1 for those that keep
            theirs. Read where the buffer may not be written to.
        name: slots of one call and one number of them that have the same name are the same.
    """

    first: int | None
    targets: Callable[[], Tensor]
    source: Callable[[], Tensor]
    name: str


def _growing_slots(span: Span, steps: int, room: int) -> Slots:
    """Slot s takes the token of order s."""
    ticks = span.ticks
    first = None
    if span.full and span.uniform and span.bound is not None:
        first = span.bound - steps
    elif span.full and span.fresh:
        first = 0

    def index() -> Tensor:
        return ticks.order.clamp(max=room - 1)

    def source() -> Tensor:
        place = torch.arange(room, device=ticks.order.device)[None] - ticks.order[:, :1]
        return place if ticks.valid is None else place.where(place < ticks.valid.sum(1, keepdim=True), -1)

    return Slots(first, partial(ticks.once, ("slots", room), index), partial(ticks.once, ("source", room), source),
                 "growing")


def _growing_keys(span: Span, seen: int) -> Keys:
    """What is known of the first ``seen`` slots."""
    ticks, after, name = span.ticks, span.after, ("growing", seen, span.uniform)

    def known() -> Keys:
        order = torch.arange(seen, device=after.seen.device)[None]
        return Keys(order, order, None, None if span.uniform else order < after.seen[:, None], name)

    return ticks.once(name, known)


def _write(buffer: Tensor, chunk: Tensor, slots: Slots, ticks: Ticks) -> Tensor:
    """The buffer [B,K,S,E] with the chunk's counted tokens [B,K,T,E] in their slots."""
    steps = chunk.shape[2]
    if steps == 0:
        return buffer
    if torch.is_grad_enabled() or (ticks.valid is not None and steps > 1) or steps > buffer.shape[2]:
        return _merge(buffer, chunk.to(buffer.dtype), slots.source())
    if slots.first is not None:
        buffer[:, :, slots.first : slots.first + steps].copy_(chunk)
        return buffer
    # Rows of one long matrix: `scatter_` takes every number of a head for itself, and half precision by a slow path.
    matrix, rows = buffer.view(-1, buffer.shape[3]), _matrix_rows(buffer, slots, ticks)
    lines = chunk.to(buffer.dtype).reshape(-1, chunk.shape[3])
    if ticks.valid is not None:
        counted = ticks.valid[:, None].expand(*chunk.shape[:3]).reshape(-1, 1)
        lines = torch.where(counted, lines, matrix.index_select(0, rows))
    matrix.index_copy_(0, rows, lines)
    return buffer


def _matrix_rows(buffer: Tensor, slots: Slots, ticks: Ticks) -> Tensor:
    """[B K T]: where the chunk's tokens stand in the buffer [B,K,S,E] seen as a matrix of B K S rows."""
    batch, heads, size, _ = buffer.shape

    def rows() -> Tensor:
        first = torch.arange(0, batch * heads * size, size, device=buffer.device).view(batch, heads, 1)
        return (first + slots.targets()[:, None]).flatten()

    return ticks.once(("rows", batch, heads, size, slots.name), rows)


def _merge(buffer: Tensor, chunk: Tensor, source: Tensor) -> Tensor:
    """A new buffer [B,K,S,E]: in each slot the token of the chunk [B,K,T,E] at ``source``, or else what it held."""
    place = source[:, None, :, None]
    steps = chunk.shape[2]
    index = place.clamp(0, steps - 1).expand(*chunk.shape[:2], -1, chunk.shape[3])
    return torch.where((place >= 0) & (place < steps), chunk.gather(2, index), buffer)


def _room_for_positions(buffer: Tensor, clock: Clock, ticks: Ticks) -> Tensor:
    """The buffer [B,S] or [B,S,n] of positions so that it can hold the chunk's: in a dtype that holds both.

    Raises:
        InputError: earlier calls gave another number of coordinates a token.
    """
    own = ticks.position
    if own.shape[2:] != buffer.shape[2:]:
        if not clock.fresh:
            given, before = (list(each.shape[2:]) or "one" for each in (own, buffer))
            raise InputError(f"{given} coordinates a token, {before} in earlier calls.", where="span.coordinates",
                             remedy="Give as many coordinates a token in every call of a sequence.")
        buffer = buffer.new_zeros(*buffer.shape[:2], *own.shape[2:])
    return buffer.to(torch.promote_types(buffer.dtype, own.dtype))


def _write_positions(buffer: Tensor, slots: Slots, ticks: Ticks) -> Tensor:
    """The buffer with the chunk's positions."""
    features = buffer.shape[2] if buffer.dim() == 3 else 1
    rows, chunk = (each.reshape(*each.shape[:2], features) for each in (buffer, _own_positions(ticks, len(buffer))))
    return _write(rows[:, None], chunk[:, None], slots, ticks)[:, 0].view_as(buffer)


def _own_positions(ticks: Ticks, batch: int) -> Tensor:
    """The chunk's positions, [B,T] or [B,T,n]."""
    return ticks.position.expand(batch, *ticks.position.shape[1:])


def _store_rolling(state: RollingState, k: Tensor, v: Tensor, span: Span) -> Stored:
    ticks, after, window = span.ticks, span.after, state.keys.shape[2]
    slots = _rolling_slots(state.clock.seen, span, k.shape[1], window)
    one = k.shape[1] == 1
    held = None if state.positions is None else _room_for_positions(state.positions, state.clock, ticks)
    # Before the buffers may be written to.
    earlier = None if one or span.fresh else _earlier(replace(state, positions=held), k, v, ticks)
    keys, values = (_write(buffer, chunk.transpose(1, 2), slots, ticks)
                    for buffer, chunk in ((state.keys, k), (state.values, v)))
    positions = None if held is None else _write_positions(held, slots, ticks)
    new = RollingState(after, keys, values, positions)
    if span.fresh:
        return Stored(k, v, Keys.of(ticks), new)
    if earlier is not None:
        return Stored(*earlier, new)
    # The slot just overwritten held the token that the window has left behind.
    known = _rolling_keys(span, window)
    if positions is not None:
        known = replace(known, position=positions)
    return Stored(keys.transpose(1, 2), values.transpose(1, 2), known, new)


def _rolling_slots(seen: Tensor, span: Span, steps: int, window: int) -> Slots:
    """Slot s takes the newest token whose order is s modulo W."""
    ticks, after = span.ticks, span.after
    level = steps == 1 and span.full and span.uniform and span.bound is not None

    def index() -> Tensor:
        return torch.remainder(ticks.order, window)

    def source() -> Tensor:
        return _slot_orders(after.seen, window) - seen[:, None]

    return Slots((span.bound - 1) % window if level and span.bound is not None else None,
                 partial(ticks.once, ("rolling slots", window), index),
                 partial(ticks.once, ("rolling source", window), source), "rolling")


def _rolling_keys(span: Span, window: int) -> Keys:
    """What is known of the W slots after one token."""
    ticks, after, name = span.ticks, span.after, ("rolling", window)

    def known() -> Keys:
        now = _slot_orders(after.seen, window)
        return Keys(now, now, None, now >= 0, name)

    return ticks.once(name, known)


def _earlier(state: RollingState, k: Tensor, v: Tensor, ticks: Ticks) -> tuple[Tensor, Tensor, Keys]:
    """The keys and values of the window before a chunk of several tokens, and the chunk's own."""
    before = _slot_orders(state.clock.seen, state.keys.shape[2])
    held = (before >= 0) & (before < state.clock.seen[:, None])
    own = torch.ones_like(ticks.order, dtype=torch.bool) if ticks.valid is None else ticks.valid
    valid = torch.cat([held, own], 1)
    order = torch.cat([before, ticks.order], 1)
    place = order if state.positions is None else torch.cat([state.positions, _own_positions(ticks, k.shape[0])], 1)
    return (torch.cat([state.keys.transpose(1, 2), k.to(state.keys.dtype)], 1),
            torch.cat([state.values.transpose(1, 2), v.to(state.values.dtype)], 1), Keys(order, place, None, valid))


def _slot_orders(seen: Tensor, window: int) -> Tensor:
    """[B,W]: the order of the newest token that slot s can hold once ``seen`` tokens came; negative for none."""
    last = seen[:, None] - 1
    return last - torch.remainder(last - torch.arange(window, device=seen.device)[None], window)
