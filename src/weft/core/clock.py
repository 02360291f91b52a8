"""The clock: how many tokens each row has consumed and where its current document began.

The state alone owns position. Every layer state holds a `Clock`; the layers of one model share the same one. A call's
`Ticks` are what the clock and the call together say about each token of a chunk: its order in the row, the order at
which its document began, its position. Masks read order, position schemes read positions (or explicit coordinates).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.compiling import compiler_traces
from weft.core.facts import FactHistory, Facts, resolve_facts
from weft.core.places import Places
from weft.core.state import Lease, State, fact_field, lease_field, tensor_field

R = TypeVar("R")
OWN = "own"
"""The layout of keys that are those of the chunk itself."""


@dataclass(frozen=True)
class Clock(State):
    """Per row, in tokens.

    Attributes:
        seen: tokens consumed so far; the order of the next token.
        begin: the order at which the current document began.
        prefix_end: the order at which the current document's bidirectional prefix ends (``begin`` when it has none).
        horizon: the declared length of the document, 0 when none was declared. Rotations that depend on the length
            (LongRoPE) are fixed by it when the state starts.
        fresh: no row has consumed anything.
        facts: of earlier tokens, where the model reads any (`weft.core.facts`).
        lease: of the buffers of all states on this clock.
        places: positions of earlier tokens, where some layer asks for them.
    """

    seen: Int64[Tensor, " B"] = tensor_field(keeps_dtype=True, restarts=True)
    begin: Int64[Tensor, " B"] = tensor_field(keeps_dtype=True, restarts=True)
    prefix_end: Int64[Tensor, " B"] = tensor_field(keeps_dtype=True, restarts=True)
    horizon: Int64[Tensor, " B"] = tensor_field(keeps_dtype=True)
    fresh: bool = fact_field(saved=bool, unsaved=False, joined=all)
    facts: FactHistory | None = None
    lease: Lease = lease_field()
    places: Places | None = None

    @staticmethod
    def start(batch: int, *, device: torch.device | str | None = None, horizon: int | Tensor | None = None,
              facts: FactHistory | None = None, places: Places | None = None) -> Clock:
        """A clock before the first token; ``horizon`` is one length or one per row, ``facts`` an empty history."""
        zeros = torch.zeros(4, batch, dtype=torch.int64, device=device)
        length = zeros[3] if horizon is None else zeros[3] + torch.as_tensor(horizon, device=zeros.device)
        return Clock(zeros[0].clone(), zeros[1].clone(), zeros[2].clone(), length.clone(), fresh=True, facts=facts,
                     places=places)

    def after(self, seen: Tensor, begin: Tensor, prefix_end: Tensor, facts: FactHistory | None = None) -> Clock:
        """The clock after a call, of the buffers that the call leaves behind."""
        # The lease is written out because the compiler cannot follow a dataclass's default factory.
        return Clock(seen, begin, prefix_end, self.horizon, fresh=False, facts=facts, lease=Lease(),
                     places=self.places)


@dataclass(frozen=True)
class Ticks:
    """What is known of each token of a chunk. Leading dimension B, or 1 when all rows agree.

    Attributes:
        order: the token's index in its row, counted over all calls.
        begin: the order of the first token of its document.
        prefix_end: the order at which its document's prefix ends.
        length: the length its document declares, in tokens: the state's horizon, or without a state the document's own.
        coordinates: explicit positions [B,T] or [B,T,n]; None means ``order - begin``.
        valid: False for tokens beyond the row's count; None when every token counts.
        packed: a document may have begun after a row's first token, so what looks back must fence documents.
        facts: what the calls gave of these tokens and of earlier ones; None: nothing.
    """

    order: Int64[Tensor, "#B T"]
    begin: Int64[Tensor, "#B T"]
    prefix_end: Int64[Tensor, "#B T"]
    length: Int64[Tensor, "#B T"]
    coordinates: Tensor | None
    valid: Bool[Tensor, "B T"] | None
    packed: bool
    facts: Facts | None = None
    memo: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, work: Callable[[], R]) -> R:
        """``work()``, done for the first layer that asks under ``key`` in this call and handed to the others: rotary
        tables, masks. It may depend on nothing but these ticks and the key. A compiler finds what is common by itself,
        and may not see what is written here from inside a block that is run again."""
        if compiler_traces():
            return work()
        if key not in self.memo:
            self.memo[key] = work()
        found: R = self.memo[key]
        return found

    @property
    def position(self) -> Tensor:
        """Coordinates if the call gave them, else the index within the document."""
        return self.order - self.begin if self.coordinates is None else self.coordinates

    def fact(self, name: str, order: Int64[Tensor, "#B N"]) -> Int64[Tensor, "#B N"]:
        """The fact of that name of the tokens of these orders, the chunk's own or earlier ones; 0 where none was
        given."""
        return torch.zeros_like(order) if self.facts is None else self.facts.at(name, order)

    def starts(self) -> Bool[Tensor, "#B T"]:
        """True where a document begins."""
        return self.order == self.begin


@dataclass(frozen=True)
class Keys:
    """What is known of each key that a chunk's queries may attend to. Leading dimension B, or 1 when all rows agree.

    Attributes:
        order: the key's index in its row, counted over all calls.
        position: its position (coordinate) as position schemes see it.
        begin: the order at which its document began; None when not kept, which only causal masks can do without.
        valid: False for entries that hold nothing; None when all hold a key.
        layout: a name; keys of one call that have the same name agree in order, begin and valid. None: no name.
        offset: the index of the chunk's own first token; the others follow it, and the keys before it, except a
            document's first tokens that a state keeps for themselves, lie in order up to it. None: they do not.
    """

    order: Int64[Tensor, "#B S"]
    position: Tensor  # [#B,S] or [#B,S,n]
    begin: Int64[Tensor, "#B S"] | None = None
    valid: Bool[Tensor, "#B S"] | None = None
    layout: Hashable = None
    offset: int | None = None

    @staticmethod
    def of(ticks: Ticks) -> Keys:
        """The chunk's own tokens as keys."""
        return ticks.once("own keys", lambda: Keys(ticks.order, ticks.position, ticks.begin, ticks.valid, OWN, 0))


@dataclass(frozen=True)
class Moment:
    """A call resolved against a clock: the clock it began from, its ticks, and the clock it leaves behind."""

    before: Clock | None
    ticks: Ticks
    after: Clock | None


def tell(clock: Clock | None, shape: tuple[int, int], device: torch.device, *, count: Tensor | None,
         begins: Tensor | None, prefix: Tensor | None, coordinates: Tensor | None, horizon: Tensor | None,
         one_document: bool, facts: Mapping[str, Tensor] | None = None) -> Moment:
    """Work out the ticks of a chunk of ``shape`` (B, T) and the clock after it. No tensor is read on the host."""
    batch, steps = shape
    order, valid = _orders(clock, steps, device, count)
    if clock is not None and begins is None and prefix is None and not facts and clock.facts is None and steps:
        return _going_on(clock, order, valid, count, coordinates, packed=not one_document)
    begin = _begins(clock, order, begins, valid)
    document = None if begins is None else (begins if valid is None else begins & valid).long().cumsum(1)
    prefix_end = _prefix_ends(clock, begin, document, prefix if valid is None or prefix is None else prefix & valid)
    length = _lengths(clock, order, document, valid, horizon)
    packed = begins is not None or not one_document
    held, history = None, None
    if facts or (clock is not None and clock.facts is not None):
        before, seen = (None, None) if clock is None else (clock.facts, clock.seen)
        held, history = resolve_facts(before, facts, order, seen, count, valid)
    ticks = Ticks(order, begin, prefix_end, length, coordinates, valid, packed, held)
    if clock is None or steps == 0:  # a call of no tokens leaves everything as it was
        return Moment(clock, ticks, clock)
    if begins is None and prefix is None:  # every row goes on with its document
        seen = clock.seen + (steps if count is None else count)
        return Moment(clock, ticks, clock.after(seen, clock.begin, clock.prefix_end, history))
    return Moment(clock, ticks, _after(clock, ticks, batch, steps, count, history))


def _going_on(clock: Clock, order: Tensor, valid: Tensor | None, count: Tensor | None, coordinates: Tensor | None, *,
              packed: bool) -> Moment:
    """`tell` where every row goes on with its document, as in nearly every step of one token."""
    begin, prefix_end, length = clock.begin[:, None], clock.prefix_end[:, None], clock.horizon[:, None]
    steps = order.shape[1]
    if steps > 1:
        begin, prefix_end, length = (each.expand(-1, steps) for each in (begin, prefix_end, length))
    seen = clock.seen + (steps if count is None else count)
    return Moment(clock, Ticks(order, begin, prefix_end, length, coordinates, valid, packed),
                  clock.after(seen, clock.begin, clock.prefix_end))


def _orders(clock: Clock | None, steps: int, device: torch.device,
            count: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Order of every token of the chunk, and which of them count."""
    if clock is not None and steps == 1:
        return clock.seen[:, None], None if count is None else count[:, None] > 0
    index = torch.arange(steps, device=device)[None]
    order = index if clock is None else clock.seen[:, None] + index
    return order, None if count is None else index < count[:, None]


def _begins(clock: Clock | None, order: Tensor, begins: Tensor | None, valid: Tensor | None) -> Tensor:
    carried = torch.zeros_like(order[:, :1]) if clock is None else clock.begin[:, None]
    if begins is None:
        return carried.expand(-1, order.shape[1])
    counted = begins if valid is None else begins & valid
    marks = torch.where(counted, order, carried)
    return marks.cummax(dim=1).values if marks.shape[1] else marks


def _prefix_ends(clock: Clock | None, begin: Tensor, document: Tensor | None, prefix: Tensor | None) -> Tensor:
    """The prefix of a document that begins here is counted here; one that began earlier is carried."""
    if prefix is None and document is None:
        return begin if clock is None else clock.prefix_end[:, None].expand_as(begin)
    flags = torch.zeros_like(begin) if prefix is None else prefix.long()
    inside = torch.zeros_like(flags) if document is None else document.expand_as(flags)
    sizes = torch.zeros(flags.shape[0], flags.shape[1] + 1, dtype=torch.int64, device=flags.device)
    sizes = sizes.scatter_add(1, inside, flags)
    ends = begin + sizes.gather(1, inside)
    if clock is None:
        return ends
    # A prefix lies within one call, so flags in the document that goes on mean that it began with this call.
    goes_on = (inside == 0) & (sizes[:, :1] == 0)
    return torch.where(goes_on, clock.prefix_end[:, None], ends)


def _lengths(clock: Clock | None, order: Tensor, document: Tensor | None, valid: Tensor | None,
             horizon: Tensor | None) -> Tensor:
    if clock is not None:
        return clock.horizon[:, None].expand_as(order)
    if horizon is not None:
        return horizon[:, None].expand(-1, order.shape[1])
    if document is None:
        total = torch.full_like(order[:, :1], order.shape[1]) if valid is None else valid.long().sum(1, keepdim=True)
        return total.expand(-1, order.shape[1])
    ones = torch.ones_like(document) if valid is None else valid.long()
    sizes = torch.zeros(document.shape[0], document.shape[1] + 1, dtype=torch.int64, device=document.device)
    return sizes.scatter_add(1, document, ones).gather(1, document)


def _after(clock: Clock, ticks: Ticks, batch: int, steps: int, count: Tensor | None,
           facts: FactHistory | None) -> Clock:
    """The clock after the row's last counted token; a row that counts none keeps its clock."""
    if count is None:
        last = torch.full_like(clock.seen, steps)[:, None] - 1
    else:
        last = (count[:, None] - 1).clamp(min=0)
    moved = (last >= 0) if count is None else count[:, None] > 0

    def pick(values: Tensor, kept: Tensor) -> Tensor:
        return torch.where(moved, values.expand(batch, -1).gather(1, last), kept[:, None])[:, 0]

    seen = clock.seen + (steps if count is None else count)
    return clock.after(seen, pick(ticks.begin, clock.begin), pick(ticks.prefix_end, clock.prefix_end), facts)
