"""The clock: how many tokens each row has consumed and where its current document began.

The state alone owns position. Every layer state holds a `Clock`; the layers of one model share the same one. A call's
`Ticks` follow from the clock and the call together: for each token of a chunk its order in the row, the order at which
its document began, its position; `Keys` are the same of each key that it may attend to. Masks read order, position
schemes read positions (or explicit coordinates).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.compiling import compiler_traces
from weft.core.history import History, gathered
from weft.core.state import Lease, State, fact_field, lease_field, tensor_field

R = TypeVar("R")
OWN = "own"
"""The layout of keys that are those of the chunk itself."""


class Facts(NamedTuple):
    """The facts of tokens that a call can look up: those of its own chunk and, with a state, of earlier tokens.

    Facts are whole numbers that a call gives for each of its tokens by name (types, global tokens), which masks read.
    A fact that a call does not give is 0.

    Attributes:
        names: of the n facts, in the order in which they are stacked.
        chunk: [B,T,n]; arbitrary beyond each row's count, where no key is valid.
        start: the order of the chunk's first token, [B,1]; None: 0.
        earlier: before the chunk; None without a state.
    """

    names: tuple[str, ...]
    chunk: Int64[Tensor, "B T n"]
    start: Int64[Tensor, "B 1"] | None
    earlier: History | None

    def at(self, name: str, order: Int64[Tensor, "#B N"]) -> Int64[Tensor, "#B N"]:
        """The fact of the tokens of these orders; arbitrary for a token that the chunk and the history do not have."""
        if name not in self.names:
            return torch.zeros_like(order)
        column, steps = self.names.index(name), self.chunk.shape[1]
        earlier = None if self.earlier is None else self.earlier.at(order)[..., column]
        if steps == 0:
            return torch.zeros_like(order) if earlier is None else earlier
        index = order if self.start is None else order - self.start
        current = gathered(self.chunk[..., column], index.clamp(0, steps - 1))
        return current if earlier is None else torch.where(index >= 0, current, earlier)


@dataclass(frozen=True)
class Ticks:
    """The order, document and position of each token of a chunk. The leading dimension is B, or 1 if all rows agree.

    Attributes:
        order: the token's index in its row, counted over all calls.
        begin: the order of the first token of its document.
        prefix_end: the order at which its document's prefix ends.
        length: of its document, in tokens: the state's horizon, or without a state the declared or actual length.
        coordinates: explicit positions [B,T] or [B,T,n]; None: ``order - begin``.
        valid: False for tokens beyond the row's count; None if every token counts.
        packed: whether a document may have begun after a row's first token, so that documents must be kept apart.
        facts: of these tokens and earlier ones; None where no call gave any.
        memo: results that layers share (`once`).
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
        """The result of ``work()``, computed once a call for each ``key`` and shared by all layers: rotary tables,
        masks. It may depend on these ticks and the key alone."""
        # The compiler eliminates common work itself, and cannot trace a write to the memo inside a checkpointed block.
        if compiler_traces():
            return work()
        if key not in self.memo:
            self.memo[key] = work()
        result: R = self.memo[key]
        return result

    @property
    def position(self) -> Tensor:
        """The coordinates if the call gave them, else the index within the document."""
        return self.order - self.begin if self.coordinates is None else self.coordinates

    def fact(self, name: str, order: Int64[Tensor, "#B N"]) -> Int64[Tensor, "#B N"]:
        """The fact of this name for the tokens of these orders, in the chunk or before it; 0 if it was not given."""
        return torch.zeros_like(order) if self.facts is None else self.facts.at(name, order)

    def starts(self) -> Bool[Tensor, "#B T"]:
        """True where a document begins."""
        return self.order == self.begin


@dataclass(frozen=True)
class Keys:
    """The order, document and position of each key that a chunk's queries may attend to. The leading dimension is B,
    or 1 if all rows agree.

    Attributes:
        order: the key's index in its row, counted over all calls.
        position: its position (coordinate) as position schemes read it.
        begin: the order at which its document began; None if it is not stored, as only causal masks allow.
        valid: False for slots without a key; None if every slot has one.
        layout: a name; keys of one call with the same name agree in order, begin and valid. None: no name.
        offset: the index of the chunk's own first token, if the chunk's other tokens follow it and the keys before it
            are in order, apart from a document's first tokens that a state stores separately; otherwise None.
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


__all__ = ["OWN", "Clock", "Keys", "ResolvedCall", "Ticks", "resolve_call"]


@dataclass(frozen=True)
class Clock(State):
    """The progress of each row, in tokens, and what is stored of earlier tokens for all layers.

    Attributes:
        seen: tokens consumed so far; the order of the next token.
        begin: the order at which the current document began.
        prefix_end: the order at which the current document's bidirectional prefix ends (``begin`` without a prefix).
        horizon: the declared length of the document, 0 when none was declared. Rotations that depend on the length
            (LongRoPE) are fixed by it when the state starts.
        fresh: whether no row has consumed anything.
        fact_names: the facts of tokens that the model reads, in the order in which ``facts`` stacks them.
        facts: of earlier tokens, whole numbers [B,S,n]; None where the model reads none.
        lease: of the buffers of all states on this clock.
        positions: of earlier tokens, in the dtype and with as many coordinates as calls give; None where no layer
            reads them.
    """

    seen: Int64[Tensor, " B"] = tensor_field(keeps_dtype=True, restarts=True)
    begin: Int64[Tensor, " B"] = tensor_field(keeps_dtype=True, restarts=True)
    prefix_end: Int64[Tensor, " B"] = tensor_field(keeps_dtype=True, restarts=True)
    horizon: Int64[Tensor, " B"] = tensor_field(keeps_dtype=True)
    fresh: bool = fact_field(saved=bool, unsaved=False, joined=all)
    fact_names: tuple[str, ...] = fact_field(default=())
    facts: History | None = None
    lease: Lease = lease_field()
    positions: History | None = None

    @staticmethod
    def start(batch: int, *, device: torch.device | str | None = None, horizon: int | Tensor | None = None,
              fact_names: tuple[str, ...] = (), facts: History | None = None,
              positions: History | None = None) -> Clock:
        """A clock before the first token; ``horizon`` is one length or one for each row, the histories are empty."""
        zeros = torch.zeros(4, batch, dtype=torch.int64, device=device)
        length = zeros[3] if horizon is None else zeros[3] + torch.as_tensor(horizon, device=zeros.device)
        return Clock(zeros[0].clone(), zeros[1].clone(), zeros[2].clone(), length.clone(), fresh=True,
                     fact_names=fact_names, facts=facts, positions=positions)

    def after(self, seen: Tensor, begin: Tensor, prefix_end: Tensor) -> Clock:
        """The clock after a call, with the histories from before it and a lease of the buffers that the call leaves."""
        # The lease is written out because the compiler cannot follow a dataclass's default factory.
        return Clock(seen, begin, prefix_end, self.horizon, fresh=False, fact_names=self.fact_names, facts=self.facts,
                     lease=Lease(), positions=self.positions)


@dataclass(frozen=True)
class ResolvedCall:
    """A call resolved against a clock: the clock it began from, its ticks, and the clock it leaves behind."""

    before: Clock | None
    ticks: Ticks
    after: Clock | None


def resolve_call(clock: Clock | None, shape: tuple[int, int], device: torch.device, *, count: Tensor | None,
                 begins: Tensor | None, prefix: Tensor | None, coordinates: Tensor | None, horizon: Tensor | None,
                 one_document: bool, facts: Mapping[str, Tensor] | None = None,
                 bound: int | None = None) -> ResolvedCall:
    """Work out the ticks of a chunk of ``shape`` (B, T) and the clock after it, with its histories. No tensor is read
    on the host. The other arguments are those of `weft.core.span.Span`."""
    batch, steps = shape
    order, valid = _orders(clock, steps, device, count)
    if clock is not None and begins is None and prefix is None and not facts and clock.facts is None and steps:
        return _going_on(clock, order, valid, count, coordinates, bound, packed=not one_document)
    begin = _begins(clock, order, begins, valid)
    document = None if begins is None else (begins if valid is None else begins & valid).long().cumsum(1)
    prefix_end = _prefix_ends(clock, begin, document, prefix if valid is None or prefix is None else prefix & valid)
    length = _lengths(clock, order, document, valid, horizon)
    packed = begins is not None or not one_document
    lookup = _facts(clock, facts, shape) if facts or (clock is not None and clock.facts is not None) else None
    ticks = Ticks(order, begin, prefix_end, length, coordinates, valid, packed, lookup)
    if clock is None or steps == 0:  # a call of no tokens leaves everything as it was
        return ResolvedCall(clock, ticks, clock)
    seen = clock.seen + (steps if count is None else count)
    if begins is None and prefix is None:  # every row goes on with its document
        after = clock.after(seen, clock.begin, clock.prefix_end)
    else:
        after = _after(clock, ticks, batch, seen, count)
    if clock.facts is not None or clock.positions is not None:
        after = _with_histories(clock, after, ticks, bound)
    return ResolvedCall(clock, ticks, after)


def _facts(clock: Clock | None, facts: Mapping[str, Tensor] | None, shape: tuple[int, int]) -> Facts:
    """The facts that masks can look up in a call."""
    values = facts or {}
    start, earlier = (None, None) if clock is None else (clock.seen[:, None], clock.facts)
    names = tuple(sorted(values)) if clock is None or earlier is None else clock.fact_names
    device = next(iter(values.values())).device if clock is None else clock.seen.device
    blank = torch.zeros(shape, dtype=torch.int64, device=device)
    chunk = torch.stack([values.get(name, blank).long() for name in names], -1)
    return Facts(names, chunk, start, earlier)


def _with_histories(before: Clock, after: Clock, ticks: Ticks, bound: int | None) -> Clock:
    """``after`` with the facts and positions of the chunk's tokens, as far as the model keeps them."""
    facts, positions = before.facts, before.positions
    if facts is not None and ticks.facts is not None:
        facts = facts.advanced(before, after, ticks.facts.chunk, bound)
    if positions is not None:
        positions = positions.advanced(before, after, ticks.position, bound)
    return replace(after, facts=facts, positions=positions)


def _going_on(clock: Clock, order: Tensor, valid: Tensor | None, count: Tensor | None, coordinates: Tensor | None,
              bound: int | None, *, packed: bool) -> ResolvedCall:
    """`resolve_call` where every row goes on with its document, as in nearly every step of one token."""
    begin, prefix_end, length = clock.begin[:, None], clock.prefix_end[:, None], clock.horizon[:, None]
    steps = order.shape[1]
    if steps > 1:
        begin, prefix_end, length = (each.expand(-1, steps) for each in (begin, prefix_end, length))
    ticks = Ticks(order, begin, prefix_end, length, coordinates, valid, packed)
    after = clock.after(clock.seen + (steps if count is None else count), clock.begin, clock.prefix_end)
    return ResolvedCall(clock, ticks, after if clock.positions is None else _with_histories(clock, after, ticks, bound))


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
    """The end of the prefix of each token's document: counted if the document begins in this chunk, else carried."""
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


def _after(clock: Clock, ticks: Ticks, batch: int, seen: Tensor, count: Tensor | None) -> Clock:
    """The clock after the row's last counted token; a row that counts none keeps its document."""
    if count is None:
        last = torch.full_like(clock.seen, ticks.order.shape[1])[:, None] - 1
    else:
        last = (count[:, None] - 1).clamp(min=0)
    moved = (last >= 0) if count is None else count[:, None] > 0

    def pick(values: Tensor, before: Tensor) -> Tensor:
        return torch.where(moved, values.expand(batch, -1).gather(1, last), before[:, None])[:, 0]

    return clock.after(seen, pick(ticks.begin, clock.begin), pick(ticks.prefix_end, clock.prefix_end))
