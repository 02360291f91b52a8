"""The key/value cache of attention, which grows; `weft.mixers.self_attention` has that of a window.

Both determine which keys a chunk's queries may read, and which are stored after it. Buffers are written in place only
without gradients; with gradients every state is a new value, so that gradients flow across cuts. The keys of a head are
contiguous in memory, so that a query reads them in one sequential pass.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from weft.core.clock import Clock, Keys, Ticks
from weft.core.compiling import compiler_traces, require
from weft.core.errors import StateError
from weft.core.layer import LayerState
from weft.core.span import Span
from weft.core.state import fact_field, pad_to, tensor_field


@dataclass(frozen=True)
class KeyValueState(LayerState):
    """Keys and values of every token so far; slot s holds the token of order s.

    Attributes:
        keys: buffer of the keys.
        capacity: maximum number of tokens of a row; None if the buffers grow with each chunk.
    """

    keys: Float[Tensor, "B K S E"] = tensor_field(grows=2)
    values: Float[Tensor, "B K S F"] = tensor_field(grows=2)
    capacity: int | None = fact_field(saved=int, room=True)


class ReadableKeys(NamedTuple):
    """The keys and values that a chunk's queries may read, and the state after the chunk.

    Attributes:
        k: keys [B,S,K,E].
        v: values [B,S,K,F].
        keys: order, positions and validity of the keys.
        state: the state after the chunk; None in a call without a state.
    """

    k: Tensor
    v: Tensor
    keys: Keys
    state: LayerState | None


class KeyValueShape(NamedTuple):
    """Sizes of a key/value state: number of key heads K, size of a key E, size of a value F."""

    heads: int
    d_head: int
    d_value: int


def start_growing(clock: Clock, shape: KeyValueShape, capacity: int | None, dtype: torch.dtype) -> KeyValueState:
    """Return the state before the first token, with ``capacity`` slots, or none if it is None."""
    return KeyValueState(clock, *buffers(clock, shape, capacity or 0, dtype), capacity)


def buffers(clock: Clock, shape: KeyValueShape, slots: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return buffers of zeros, [B,K,S,E] for keys and [B,K,S,F] for values."""
    batch, device = clock.seen.shape[0], clock.seen.device
    return (torch.zeros(batch, shape.heads, slots, shape.d_head, dtype=dtype, device=device),
            torch.zeros(batch, shape.heads, slots, shape.d_value, dtype=dtype, device=device))


def store_growing(state: KeyValueState, k: Tensor, v: Tensor, span: Span) -> ReadableKeys:
    """Store the chunk's keys [B,T,K,E] and values [B,T,K,F], and return those that its queries may read. Raises
    `StateError`: a row would consume more tokens than the state was started for."""
    ticks, capacity, held = span.ticks, state.capacity, state.keys.shape[2]
    key = ("growing", held, capacity)
    shared = None if compiler_traces() else ticks.memo.get(key)  # `once`, written out: layers after the first ask here
    room, seen, slots, known = shared or ticks.once(key, partial(_growth, span, held, capacity))
    keys, values = state.keys, state.values
    if held < room:
        keys, values = pad_to(keys, 2, room, 0), pad_to(values, 2, room, 0)
    keys, values = write((keys, values), (k.transpose(1, 2), v.transpose(1, 2)), slots, ticks)
    new = (KeyValueState(span.after, keys, values, capacity) if type(state) is KeyValueState
           else replace(state, clock=span.after, keys=keys, values=values))
    if span.fresh:
        return ReadableKeys(k, v, known, new)
    if seen < room:
        keys, values = keys[:, :, :seen], values[:, :, :seen]
    return ReadableKeys(keys.transpose(1, 2), values.transpose(1, 2), known, new)


def _growth(span: Span, held: int, capacity: int | None) -> tuple[int, int, BufferSlots, Keys]:
    """How a call changes buffers of ``held`` slots that grow, the same for all layers whose buffers have one size:
    their number of slots after the call, how many of these, from the first on, the chunk's queries may read, the slots
    that the chunk is written to, and the keys that the queries may read."""
    ticks, after, steps = span.ticks, span.after, span.ticks.order.shape[1]
    room = _room(held, capacity, steps, span.bound)
    require(after.seen <= room, StateError, f"a row would consume more than {room} tokens.", where="state",
            remedy="Start the state with a larger capacity, or give span.bound as the largest count after the call.")
    seen = room if span.bound is None else min(span.bound, room)
    keys = Keys.of(ticks) if span.fresh else _growing_keys(span, seen, steps)
    return room, seen, _growing_slots(span, steps, room), keys


def _room(held: int, capacity: int | None, steps: int, bound: int | None) -> int:
    """Return the number of slots after the call, from plain Python facts: the declared bound or capacity, otherwise the
    chunk's length more than before."""
    if bound is not None and capacity is not None and bound > capacity:
        raise StateError(f"span.bound is {bound}, and the state was started for {capacity} tokens.",
                         where="state", remedy="Start the state with a larger capacity.")
    if bound is not None:
        return max(held, bound)
    return held + steps if capacity is None else max(held, capacity)


class BufferSlots(NamedTuple):
    """The slots of a buffer, S in number, that a chunk is written to.

    Attributes:
        first: the first of the chunk's slots if they are consecutive and the same in every row; None if rows differ or
            the slots are known only from tensors.
        targets: returns the slot of each token, [#B,T]; used if ``first`` is None.
        source: returns for each slot the index of the chunk's token that it takes, [#B,S]; an index outside 0 to T - 1
            leaves the slot unchanged. Used if the buffer must not be written in place.
        name: identifies equal slots: within a call, slots of the same number and name are the same.
        pinned: number of slots at the front that also store a document's first tokens.
        size: number of slots that are reused in turn.
    """

    first: int | None
    targets: Callable[[], Tensor]
    source: Callable[[], Tensor]
    name: Hashable
    pinned: int
    size: int


def _growing_slots(span: Span, steps: int, room: int) -> BufferSlots:
    """Return the slots of a chunk in a buffer whose slot s stores the token of order s."""
    ticks = span.ticks
    first, full = None, span.count is None
    if full and span.uniform and span.bound is not None:
        first = span.bound - steps
    elif full and span.fresh:
        first = 0

    def index() -> Tensor:
        return ticks.order.clamp(max=room - 1)

    def source() -> Tensor:
        place = torch.arange(room, device=ticks.order.device)[None] - ticks.order[:, :1]
        return place if ticks.valid is None else place.where(place < ticks.valid.sum(1, keepdim=True), -1)

    return BufferSlots(first, partial(ticks.once, ("slots", room), index),
                       partial(ticks.once, ("source", room), source),
                       "growing", 0, room)


def _growing_keys(span: Span, seen: int, steps: int) -> Keys:
    """Return the order, positions and validity of the keys in the first ``seen`` slots."""
    after, name = span.after, ("growing", seen, span.uniform)
    order = torch.arange(seen, device=after.seen.device)[None]
    offset = span.bound - steps if span.uniform and span.count is None and span.bound is not None else None
    return Keys(order, positions(after, order, 0), None,
                None if span.uniform else order < after.seen[:, None], name, offset)


def positions(clock: Clock, order: Tensor, first: int) -> Tensor:
    """Return the positions of the keys of these orders; the orders themselves if no layer needs positions."""
    return order if clock.positions is None else clock.positions.at(order, first)


def write(buffers: tuple[Tensor, Tensor], chunks: tuple[Tensor, Tensor], slots: BufferSlots,
          ticks: Ticks) -> tuple[Tensor, Tensor]:
    """Return the buffers of keys and of values [B,K,S,E] with the chunk's valid tokens [B,K,T,E] in their slots.
    Without gradients the buffers may be written in place."""
    first, steps = slots.first, chunks[0].shape[2]
    if first is None or slots.pinned or not 0 < steps <= slots.size or torch.is_grad_enabled():
        return (_written(buffers[0], chunks[0], slots, ticks), _written(buffers[1], chunks[1], slots, ticks))
    for buffer, chunk in zip(buffers, chunks, strict=True):
        buffer[:, :, first : first + steps].copy_(chunk)
    return buffers


def _written(buffer: Tensor, chunk: Tensor, slots: BufferSlots, ticks: Ticks) -> Tensor:
    """Return one buffer with the chunk's valid tokens in their slots, as `write` does for two."""
    steps = chunk.shape[2]
    if steps == 0:
        return buffer
    if torch.is_grad_enabled() or (ticks.valid is not None and steps > 1) or steps > slots.size:
        return _merge(buffer, chunk.to(buffer.dtype), slots.source())
    if slots.pinned:
        early = buffer[:, :, :slots.pinned]
        early.copy_(_merge(early, chunk.to(buffer.dtype), slots.source()[:, :slots.pinned]))
    if slots.first is not None:
        buffer[:, :, slots.first : slots.first + steps].copy_(chunk)
        return buffer
    # The buffer as a matrix of B K S rows, for `index_copy_`: `scatter_` would need an index for every number, and has
    # only a slow path for half precision.
    rows = _matrix_rows(buffer, slots, ticks)
    matrix, lines = buffer.flatten(0, 2), chunk.to(buffer.dtype).flatten(0, 2)
    if ticks.valid is not None:
        counted = ticks.valid[:, None].expand(*chunk.shape[:3]).reshape(-1, 1)
        lines = torch.where(counted, lines, matrix.index_select(0, rows))
    matrix.index_copy_(0, rows, lines)
    return buffer


def _matrix_rows(buffer: Tensor, slots: BufferSlots, ticks: Ticks) -> Tensor:
    """Return the rows [B K T] of the chunk's tokens in the buffer [B,K,S,E] viewed as a matrix of B K S rows."""
    batch, heads, size, _ = buffer.shape

    def rows() -> Tensor:
        first = torch.arange(0, batch * heads * size, size, device=buffer.device).view(batch, heads, 1)
        return (first + slots.targets()[:, None]).flatten()

    return ticks.once(("rows", batch, heads, size, slots.name), rows)


def _merge(buffer: Tensor, chunk: Tensor, source: Tensor) -> Tensor:
    """Return a new buffer [B,K,S,E] that has in each slot the chunk's token [B,K,T,E] at ``source``, or the slot's old
    contents if that index is outside the chunk."""
    place = source[:, None, :, None]
    steps = chunk.shape[2]
    index = place.clamp(0, steps - 1).expand(*chunk.shape[:2], -1, chunk.shape[3])
    return torch.where((place >= 0) & (place < steps), chunk.gather(2, index), buffer)
