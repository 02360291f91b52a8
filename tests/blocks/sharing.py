"""Layers that give and take: attention with value residuals, and attention that reads another layer's keys and values.

One head, no positions, written out in full, so that they rest on nothing but the core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from weft.core.clock import Clock, Ticks
from weft.core.declarations import Channel, Declared
from weft.core.layer import Layer, LayerState, advance
from weft.core.part_config import About, Dims, PartConfig
from weft.core.span import Given, Memory, Output, Span
from weft.core.state import fact_field, pad_to, tensor_field
from weft.mixers.base import MixerConfig

VALUES, KEYS = "first_values", "keys_values"


@dataclass(frozen=True)
class Remembered(LayerState):
    """Keys and values so far; slot s holds the token of order s."""

    keys: Tensor = tensor_field(grows=1)  # [B,S,E]
    values: Tensor = tensor_field(grows=1)  # [B,S,E]
    capacity: int | None = fact_field(saved=int, room=True)


class Known(NamedTuple):
    """Keys and values [B,S,E] that queries may look at, the order of each token [#B,S], how many there are [#B,1]."""

    keys: Tensor
    values: Tensor
    order: Tensor
    count: Tensor


class Plain(Layer):
    """softmax(q.k / sqrt(E)) v over the document's earlier tokens."""

    state_type: type[LayerState] = Remembered

    def __init__(self, d_model: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.qkv, self.output = nn.Linear(d_model, 3 * size), nn.Linear(size, d_model)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        empty = torch.zeros(clock.seen.shape[0], capacity or 0, self.size, dtype=dtype, device=clock.seen.device)
        return Remembered(clock, empty, empty.clone(), capacity)

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        q, k, v = self.qkv(x).chunk(3, -1)
        v, given = self.mixed(v, span)
        known, after = remember(k, v, state, span)
        return Output(self.output(attend(q, known, span.ticks)), after, (), (*given, *self.shared(known)))

    def mixed(self, v: Tensor, span: Span) -> tuple[Tensor, tuple[Given, ...]]:
        """The values that count, and what is given of them."""
        return v, ()

    def shared(self, known: Known) -> tuple[Given, ...]:
        """What is given of all keys and values."""
        return ()


def remember(k: Tensor, v: Tensor, state: LayerState | None, span: Span) -> tuple[Known, LayerState | None]:
    """The chunk's keys and values beside those before."""
    ticks, steps = span.ticks, k.shape[1]
    all_of_them = torch.full((1, 1), steps, device=k.device)
    counts = all_of_them if ticks.valid is None else ticks.valid.sum(1, keepdim=True)
    if not isinstance(state, Remembered):
        return Known(k, v, ticks.order, counts), None
    seen, slots = state.clock.seen[:, None], state.keys.shape[1]
    room = slots + steps if state.capacity is None else state.capacity
    place = torch.arange(room, device=k.device)[None] - seen
    index = place.clamp(0, max(steps - 1, 0))[..., None].expand(-1, -1, k.shape[2])
    inside = ((place >= 0) & (place < counts))[..., None]

    def written(buffer: Tensor, chunk: Tensor) -> Tensor:
        wide = pad_to(buffer, 1, room, 0)
        return torch.where(inside, chunk.to(wide.dtype).gather(1, index), wide) if steps else wide

    keys, values = written(state.keys, k), written(state.values, v)
    order = torch.arange(room, device=k.device)[None]
    return (Known(keys.to(k.dtype), values.to(v.dtype), order, seen + counts),
            replace(state, clock=span.after, keys=keys, values=values))


def attend(q: Tensor, known: Known, ticks: Ticks) -> Tensor:
    order = known.order[:, None]
    seen = (order <= ticks.order[..., None]) & (order >= ticks.begin[..., None]) & (order < known.count[..., None])
    scores = q @ known.keys.transpose(1, 2) / known.keys.shape[-1] ** 0.5
    # Not minus infinity: a token of padding may see nothing, and its gradient shall be zero all the same.
    return scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1) @ known.values


class ValueGiver(Plain):
    """The first layer of a ResFormer: its values go to all later layers."""

    def declares(self) -> Declared:
        return Declared(gives=(Channel(VALUES, (self.size,)),))

    def mixed(self, v: Tensor, span: Span) -> tuple[Tensor, tuple[Given, ...]]:
        return v, (Given(VALUES, v),)


class ValueResidual(Plain):
    """Values l_1 v_first + l_2 v (Zhou et al. 2024, section 3.3); its state keeps what it mixed."""

    def __init__(self, d_model: int, size: int) -> None:
        super().__init__(d_model, size)
        self.shares = nn.Parameter(torch.tensor([0.7, 0.4]))

    def declares(self) -> Declared:
        return Declared(takes=(Channel(VALUES, (self.size,)),))

    def mixed(self, v: Tensor, span: Span) -> tuple[Tensor, tuple[Given, ...]]:
        return self.shares[0] * span.take(VALUES) + self.shares[1] * v, ()


class KeyGiver(Plain):
    """Attention whose keys and values another layer reads too."""

    def declares(self) -> Declared:
        return Declared(gives=(Channel(KEYS, (self.size,)),))

    def shared(self, known: Known) -> tuple[Given, ...]:
        return (Given(KEYS, known),)


class KeyTaker(Layer):
    """Queries of its own over another layer's keys and values (Brandon et al. 2024, section 3); it keeps nothing."""

    def __init__(self, d_model: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.q, self.output = nn.Linear(d_model, size), nn.Linear(size, d_model)

    def declares(self) -> Declared:
        return Declared(takes=(Channel(KEYS, (self.size,)),))

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        return LayerState(clock)

    def run(self, x: Tensor, state: LayerState | None, span: Span) -> Output[LayerState]:
        known: Known = span.take(KEYS)
        return Output(self.output(attend(self.q(x), known, span.ticks)), advance(state, span))


class SharingConfig(MixerConfig):
    """Base of the four."""

    about = About(source="Zhou et al. 2024; Brandon et al. 2024")
    builds: ClassVar[type[Plain] | type[KeyTaker]]
    behind: ClassVar[type[SharingConfig] | None] = None
    size: int = 4

    def build(self, dims: Dims) -> Layer:
        return self.builds(dims.d_model, self.size)

    def giver(self) -> PartConfig | None:
        return None if self.behind is None else self.behind(size=self.size)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls()]


class GiveValues(SharingConfig):
    """Gives its values."""

    kind: ClassVar[str] = "give_values"
    builds = ValueGiver


class TakeValues(SharingConfig):
    """Takes values."""

    kind: ClassVar[str] = "take_values"
    builds, behind = ValueResidual, GiveValues


class GiveKeys(SharingConfig):
    """Gives its keys and values."""

    kind: ClassVar[str] = "give_keys"
    builds = KeyGiver


class TakeKeys(SharingConfig):
    """Takes keys and values."""

    kind: ClassVar[str] = "take_keys"
    builds, behind = KeyTaker, GiveKeys


GIVERS, TAKERS = (GiveValues, GiveKeys), (TakeValues, TakeKeys)
