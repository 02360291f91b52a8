"""`SelfAttention`: what every softmax attention over a sequence's own tokens has in common, whatever its keys are made
of: which of them its mask lets a query see, and how they are kept."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from weft.core.clock import Clock, Keys
from weft.core.declarations import Adjustable, Declared
from weft.core.errors import UnsupportedError
from weft.core.history import Lookback
from weft.core.layer import Layer, LayerState
from weft.core.span import Memory, Span
from weft.core.traits import Trait
from weft.masks import Mask
from weft.masks.visible import MaskFacts, VisibleKeys, visible
from weft.mixers.heads import named_form
from weft.mixers.joined_keys import store_joined
from weft.mixers.key_value import KeyValueShape, KeyValueState, ReadableKeys, start_growing, store_growing
from weft.mixers.rolling import RollingState, start_rolling, store_rolling
from weft.positions.base import PositionScheme


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
