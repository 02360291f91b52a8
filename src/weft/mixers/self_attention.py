"""`SelfAttention`: what every softmax attention over a sequence's own tokens has in common, whatever its keys are made
of: which of them its mask lets a query see, and how they are kept.

Keys and values of attention whose rows are cut among processes (`weft.core.pieces`).

Every process gathers the keys and values of all pieces and computes its own queries. The processes do not take turns,
as they would to hand the keys on; the price is that each holds, while a layer computes, the keys and values of all
tokens, which are narrower than the rest of what training keeps of a layer wherever heads share keys or T is short
against the width. Later pieces have more keys to read than earlier ones.

The key/value cache of attention under a window: a rolling buffer of the last W tokens.

Sizes of heads, settings of scores and the choice of a form are those of cross-attention too.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Clock, Keys
from weft.core.declarations import Adjustable, Declared, Trait
from weft.core.errors import ConfigError, UnsupportedError, nearest_meaning
from weft.core.history import Lookback, held_orders
from weft.core.layer import Layer, LayerState, advance
from weft.core.part_config import Dims, Settings
from weft.core.pieces import Pieces
from weft.core.span import Memory, Span
from weft.core.state import fact_field, tensor_field
from weft.masks import Mask
from weft.masks.visible import MaskFacts, VisibleKeys, visible
from weft.mixers.key_value import (
    BufferSlots,
    KeyValueShape,
    KeyValueState,
    ReadableKeys,
    buffers,
    positions,
    start_growing,
    store_growing,
    write,
)
from weft.ops.attention import ATTENTION, AttentionCall
from weft.positions.base import PositionScheme


class ScoreSettings(Settings):
    """How scores are made from q.k: ``scale`` (None: 1/sqrt(d_head), or what the position scheme prescribes),
    ``softcap`` c in c tanh(s/c), and the probability with which a weight is dropped in training.

    Attributes:
        scale: factor of q.k; None: 1/sqrt(d_head), or what the position scheme prescribes.
        softcap: c in c tanh(s / c); None: scores are not bounded.
        dropout: probability with which a weight is dropped in training.
    """

    scale: float | None = None
    softcap: float | None = Field(default=None, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)


@dataclass(frozen=True)
class HeadSizes:
    """Query heads H, key/value heads K, head size E and value size F."""

    heads: int
    kv_heads: int
    d_head: int
    d_value: int

    def split(self) -> tuple[int, int, int]:
        """Widths of the fused projection: queries, keys, values."""
        return self.heads * self.d_head, self.kv_heads * self.d_head, self.kv_heads * self.d_value


def head_sizes(n_heads: int, n_kv_heads: int | None, d_head: int | None, d_value: int | None, dims: Dims) -> HeadSizes:
    """The sizes of the heads, defaults filled in. Raises `ConfigError`: the numbers of heads or d_model do not
    divide."""
    kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    if n_heads % kv_heads:
        raise dims.problem("n_kv_heads", f"{n_heads} query heads do not divide into {kv_heads} key/value heads.",
                           "Choose n_kv_heads among the divisors of n_heads.")
    if d_head is None and dims.d_model % n_heads:
        raise dims.problem("n_heads", f"d_model {dims.d_model} does not divide into {n_heads} heads.",
                           "Choose another number of heads, or give d_head.")
    size = dims.d_model // n_heads if d_head is None else d_head
    return HeadSizes(n_heads, kv_heads, size, size if d_value is None else d_value)


def named_form(backend: str) -> str | None:
    """The form of attention that a configuration's ``backend`` names; None: the chooser's."""
    return None if backend == "auto" else backend


def require_form(backend: str, softcap: float | None, dims: Dims) -> None:
    """Raise unless ``backend`` is a form of attention that serves calls with this softcap. Raises `ConfigError`: with
    the nearest name."""
    name = named_form(backend)
    if name is None:
        return
    try:
        ATTENTION.form(name)
    except ConfigError:
        known = {"auto": (), **{form.name: form.known_as for form in ATTENTION.forms()}}
        raise dims.problem("backend", f"attention has no form called {name!r}.", nearest_meaning(name, known)) from None
    if softcap is not None and name in ("sdpa", "grouped_rows", "native"):
        raise dims.problem("backend", f"the form {name!r} cannot express a softcap.", "Use 'auto' or 'reference'.")


def attend(layer: Adjustable, call: AttentionCall, form: str | None) -> Float[Tensor, "B T H F"]:
    """The attention of a layer's call by the form that its configuration names; where a probe requests the weights, by
    a form that computes them."""
    if layer.asked is None or "weights" not in layer.asked:
        return ATTENTION(call, form)
    return ATTENTION(replace(call, record=partial(layer.asked.give, "weights")))


class SelfAttention(Layer, Adjustable):
    """Base. A subclass projects, calls `store`, attends to what that returns, and mixes the heads.

    The state is the keys and values so far, or a rolling buffer of W slots if no query may attend to keys W or more
    tokens before it. If the mask additionally allows a document's first tokens, these stay in the state until the
    document ends.

    Args:
        mask: which keys a query may attend to.
        heads: number of query heads.
        position: scheme that acts on queries and keys, scores or values.
        dropout: probability with which a weight is dropped in training.
        backend: the form of attention, or ``auto``.
    """

    points = ("weights",)

    def __init__(self, mask: Mask, heads: int, position: PositionScheme, dropout: float, backend: str) -> None:
        super().__init__()
        self.mask, self.position = mask, position
        self.rule = MaskFacts.of(mask, heads)
        band = self.rule.band
        self.reach, self.first = (band.size, band.first) if mask.causal() else (None, 0)
        self.ahead = mask.lookahead() != "none"
        self.form = named_form(backend)
        self.state_type = KeyValueState if self.reach is None else RollingState
        self.dropout_rate = dropout
        ahead = self.mask.lookahead()
        traits = {"none": (), "prefix": (Trait.PREFIX_FIRST,), "any": (Trait.BIDIRECTIONAL,)}[ahead]
        asks = self.position.acts_on & {"scores", "values"} and ahead != "any"
        # A document's first tokens stay visible at any distance, so their facts are needed without limit.
        facts = dict.fromkeys(self.mask.reads(), None if self.first else self.reach)
        self._declared = Declared(role="attention scores", traits=frozenset(traits), attended=self.mask, facts=facts,
                                  lookback=Lookback(self.reach, self.first) if asks else None,
                                  borders=self.mask.borders(), joins_pieces=True, joins_without_state=True)

    def declares(self) -> Declared:
        return self._declared

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        if self.mask.lookahead() == "any":
            raise UnsupportedError(f"under the mask {self.mask!r} tokens attend to later ones, so attention has no "
                                   "state.", where="init_state",
                                   remedy="Call it without a state, on the whole sequence.")
        if self.reach is None:
            return start_growing(clock, self.stored_sizes(), capacity, dtype)
        return start_rolling(clock, self.stored_sizes(), self.reach, dtype, self.first)

    @abstractmethod
    def stored_sizes(self) -> KeyValueShape:
        """Return the sizes of the keys and values that the state stores."""

    def store(self, state: LayerState | None, k: Tensor, v: Tensor, span: Span) -> ReadableKeys:
        """Store the chunk's keys and values in the state, and return those that its queries may read."""
        if span.pieces is not None:
            reach = None if self.first else self.reach
            return store_joined(span.pieces, reach, state, k, v, span, ahead=self.ahead)
        if isinstance(state, RollingState):
            return store_rolling(state, k, v, span)
        if isinstance(state, KeyValueState):
            return store_growing(state, k, v, span)
        return ReadableKeys(k, v, Keys.of(span.ticks), None)

    def visible(self, keys: Keys, span: Span) -> VisibleKeys:
        """Return which keys the queries may attend to."""
        return visible(self.rule, keys, span)


def store_joined(pieces: Pieces, reach: int | None, state: LayerState | None, k: Tensor, v: Tensor, span: Span, *,
                 ahead: bool) -> ReadableKeys:
    """The keys and values of all pieces that the piece's queries may read. The state keeps none.

    Args:
        reach: the number of most recent tokens that a query may attend to; None: all.
        state: of the layer, on the clock of this piece.
        k: keys of the piece, [B,P,K,E].
        v: values of the piece, [B,P,K,F].
        ahead: whether queries may attend to later tokens.
    """
    seen, keys = span.ticks.once(("joined", ahead, reach), lambda: pieces.keys(reach, ahead=ahead))
    whole = pieces.gathered(torch.cat([k, v.to(k.dtype)], -1))[:, seen]
    held, values = whole.split_with_sizes([k.shape[-1], v.shape[-1]], -1)
    return ReadableKeys(held, values.to(v.dtype), keys, advance(state, span))


@dataclass(frozen=True)
class RollingState(LayerState):
    """Keys and values of the current document's first n tokens and of the last W: the document's token i is in slot
    i < n, and besides, the token of order i is in slot n + i mod W.

    Attributes:
        first: n, for masks that always allow a document's first tokens.
    """

    keys: Float[Tensor, "B K n+W E"] = tensor_field()
    values: Float[Tensor, "B K n+W F"] = tensor_field()
    first: int = fact_field()

    @property
    def window(self) -> int:
        """W."""
        return self.keys.shape[2] - self.first


def start_rolling(clock: Clock, shape: KeyValueShape, window: int, dtype: torch.dtype, first: int = 0) -> RollingState:
    """The state before the first token: n + W empty slots."""
    return RollingState(clock, *buffers(clock, shape, first + window, dtype), first)


def store_rolling(state: RollingState, k: Tensor, v: Tensor, span: Span) -> ReadableKeys:
    """Keep the chunk's keys [B,T,K,E] and values [B,T,K,F], and return those that its queries may read."""
    ticks, after, held = span.ticks, span.after, (state.keys, state.values)
    slots = _rolling_slots(state, span, k.shape[1])
    several = k.shape[1] != 1 and not span.fresh
    # Read before the buffers are written to.
    earlier = _earlier(state, span) if several else None
    keys, values = write(held, (k.transpose(1, 2), v.transpose(1, 2)), slots, ticks)
    new = replace(state, clock=after, keys=keys, values=values)
    if span.fresh:
        return ReadableKeys(k, v, Keys.of(ticks), new)
    if earlier is not None:
        # Every query reads the first slots, and one far from the chunk's beginning reads no other copy of a document's
        # first tokens, so those of the chunk must be in them too: they are read as they are after the chunk, unless a
        # document begins in it.
        first = earlier if span.packed else (keys, values)
        k, v = (torch.cat([early[:, :, :state.first].transpose(1, 2), recent[:, :, state.first:].transpose(1, 2),
                           chunk.to(early.dtype)], 1)
                for early, recent, chunk in zip(first, earlier, (k, v), strict=True))
        return ReadableKeys(k, v, _earlier_keys(span, state.window, state.first)[1], new)
    # The slot that was overwritten held the token that has just left the window.
    return ReadableKeys(keys.transpose(1, 2), values.transpose(1, 2), _rolling_keys(span, state.window, state.first),
                        new)


def _rolling_slots(state: RollingState, span: Span, steps: int) -> BufferSlots:
    """Slot n + s takes the newest token whose order is s modulo W."""
    ticks, after, window, first = span.ticks, span.after, state.window, state.first
    level = steps == 1 and span.full and span.uniform and span.bound is not None
    past = span.full and span.uniform and span.bound is not None and span.bound - steps >= first

    def index() -> Tensor:
        return first + torch.remainder(ticks.order, window)

    def source() -> Tensor:
        held = held_orders(after, window, first)
        place = held - span.before.seen[:, None]
        return place if first == 0 else place.where(held < after.seen[:, None], -1)

    name = ("rolling", window, first)
    return BufferSlots(first + (span.bound - 1) % window if level and span.bound is not None else None,
                       partial(ticks.once, (name, "slots"), index), partial(ticks.once, (name, "source"), source), name,
                       0 if past else first, window)


def _rolling_keys(span: Span, window: int, first: int) -> Keys:
    """The facts about the n + W slots after one token."""
    ticks, after, name = span.ticks, span.after, ("rolling", window, first)

    def known() -> Keys:
        order = held_orders(after, window, first)
        return Keys(order, positions(after, order, first), None, _held(order, after, window, first), name)

    return ticks.once(name, known)


def _held(order: Tensor, clock: Clock, window: int, first: int) -> Tensor:
    """[B,n+W]: which slots hold a token that is to be read; the first n only once the window no longer holds it too."""
    recent = order[:, first:] >= 0
    return recent if first == 0 else torch.cat([order[:, :first] < clock.seen[:, None] - window, recent], 1)


def _earlier(state: RollingState, span: Span) -> tuple[Tensor, Tensor]:
    """Keys and values [B,K,n+W,E] of the document's first tokens and of the window before a chunk, in their order."""
    index, _ = _earlier_keys(span, state.window, state.first)

    def rows(buffer: Tensor) -> Tensor:
        return buffer.gather(2, index[:, None, :, None].expand(-1, buffer.shape[1], -1, buffer.shape[3]))

    return rows(state.keys), rows(state.values)


def _earlier_keys(span: Span, window: int, first: int) -> tuple[Tensor, Keys]:
    """The slots [B,n+W] of the tokens before a chunk of several tokens, in order, and the facts about these and the
    chunk's own. A document's first tokens are read from the first n slots alone, unless a document begins in the
    chunk."""
    ticks, before, after, name = span.ticks, span.before, span.after, ("earlier", window, first)

    def known() -> tuple[Tensor, Keys]:
        recent = before.seen[:, None] - window + torch.arange(window, device=before.seen.device)
        early = torch.arange(first, device=recent.device).expand(len(recent), -1)
        order = torch.cat([before.begin[:, None] + early, recent], 1)
        own = torch.ones_like(ticks.order, dtype=torch.bool) if ticks.valid is None else ticks.valid
        valid = _held(order, before, window, first)
        if first and not span.packed:
            beyond = before.begin[:, None] + first
            valid = torch.cat([order[:, :first] < after.seen[:, None], recent >= beyond], 1)
            own = own & (ticks.order >= beyond)
        return (torch.cat([early, first + torch.remainder(recent, window)], 1),
                Keys(torch.cat([order, ticks.order], 1), _earlier_positions(span, order, first), None,
                     torch.cat([valid, own], 1), name, first + window))

    return ticks.once(name, known)


def _earlier_positions(span: Span, order: Tensor, first: int) -> Tensor:
    """Positions of the keys of `_earlier_keys`; orders, which nothing reads, where no layer needs positions."""
    ticks, before, after = span.ticks, span.before, span.after
    if before.positions is None or after.positions is None:
        return torch.cat([order, ticks.order], 1)
    own, earlier = ticks.position, before.positions.at(order, first)
    if earlier.dim() != own.dim():  # there are no earlier tokens, so no call has said how many coordinates they have
        earlier = own.new_zeros(len(earlier), order.shape[1], *own.shape[2:])
    if first and not span.packed:
        earlier = torch.cat([after.positions.at(order[:, :first], first), earlier[:, first:]], 1)
    return torch.cat([earlier, own.expand(len(earlier), *own.shape[1:])], 1)
