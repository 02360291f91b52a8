"""`Mask`: who may attend to whom, as a frozen algebra over token order.

    causal & window(128)          causal | prefix          causal & (window(4) | global(0))          ~causal

A mask is a rule about one query and one key. Masks depend on token order (`Ticks.order`, `Keys.order`), never on
positions: explicit coordinates do not change which token came first. One rule serves every use: evaluated over a chunk
(`allowed`), drawn (`draw`, `svg`), evaluated by FlexAttention for one pair at a time (`weft.ops.triton.attention`), or
recognised by a faster kernel without being evaluated (`pattern`, `reach`, `lookahead`).

Attention itself separates documents packed in one row and excludes padding; `documents` and `padding` are for masks
that are used outside of it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import reduce
from typing import ClassVar, final

import torch
from jaxtyping import Bool
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.part_config import About
from weft.masks import picture
from weft.masks.terms import AMOUNTS, Band, Key, Lookahead, Pattern, Query, pattern_share, visible_share

SHORT = (24, 400)
"""The fewest and the most tokens of a document on which `Mask.undeclared` evaluates a rule."""


class Mask(ABC):
    """Base of masks: frozen dataclasses, equal and hashable by value, joined with ``&``, ``|`` and ``~``.

    ``repr`` is the expression that a configuration file holds and `parse_mask` parses. A subclass defines its `rule`;
    by default it may allow any key, and no kernel recognises it.

    Class attributes:
        kind: its name in expressions.
        about: what it says of itself; its equation gives the keys A(i) that query i may attend to.
    """

    kind: ClassVar[str] = ""
    about: ClassVar[About] = About()

    @abstractmethod
    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        """True where the query may attend to the key: elementwise over tensors that broadcast, scalars included.

        Args:
            head: the index of the query head.
        """

    def lookahead(self) -> Lookahead:
        """Which later keys it may allow; a guarantee that holds for all tokens."""
        return "any"

    def reach(self) -> int | None:
        """The largest number of most recent keys, its own included, that a query can need; None: without bound.
        A key of order <= query.order - reach is never allowed."""
        return None

    def window(self) -> int | None:
        """How far from the query the window of a single rule reaches, in tokens, the query's own included; None: it is
        no window. Longer texts than that are what a window is for."""
        return None

    @final
    def widths(self) -> dict[str, int]:
        """The `window` of each single rule that it combines and that is one, by its expression."""
        own = self.window()
        found = {} if own is None else {repr(self): own}
        for part in self.parts():
            found.update(part.widths())
        return found

    def place(self) -> int | None:
        """The last of the tokens that a single rule names by their place in a document, counted from 0; None: it names
        none. Documents of more tokens than that are what such a rule is for."""
        return None

    @final
    def places(self) -> dict[str, int]:
        """The `place` of each single rule that it combines and that has one, by its expression."""
        own = self.place()
        found = {} if own is None else {repr(self): own}
        for part in self.parts():
            found.update(part.places())
        return found

    def band(self) -> Band:
        """Bounds on the keys of its document that a query may attend to; scores outside are never computed."""
        return Band(self.reach(), 0 if self.causal() else None)

    def borders(self) -> tuple[int, ...]:
        """Lengths, in tokens, at which its rule begins to exclude keys or to repeat: its reach and its parts'
        borders."""
        reach = self.reach()
        return (*(() if reach is None else (reach,)), *(border for part in self.parts() for border in part.borders()))

    def reads(self) -> frozenset[str]:
        """Names of the facts of tokens that it reads (`weft.core.clock.Facts`)."""
        found: frozenset[str] = frozenset()
        for part in self.parts():
            found = found | part.reads()
        return found

    def heads(self) -> int:
        """The number of heads after which it repeats; 1 when all heads are alike. Head h has the rule of h mod
        heads."""
        return 1

    def pattern(self) -> Pattern | None:
        """The mask as a `Pattern`; None when it cannot be expressed as one."""
        return None

    def parts(self) -> tuple[Mask, ...]:
        """The masks that it combines; none for a single rule."""
        return ()

    @final
    def share(self, steps: int) -> float:
        """The share of all pairs of a query and a key, in a document of ``steps`` tokens, that it allows."""
        pattern = self.pattern()
        return visible_share(self.allowed, self.heads(), steps) if pattern is None else pattern_share(pattern, steps)

    @final
    def causal(self) -> bool:
        """Whether it is guaranteed never to allow a key later than the query."""
        return self.lookahead() == "none"

    @final
    def causal_window(self) -> Pattern | None:
        """Its pattern where that is causal, with or without a window; None otherwise."""
        pattern = self.pattern()
        return pattern if pattern is not None and pattern.causal else None

    @final
    def allowed(self, queries: Ticks, keys: Keys, heads: int | None = None) -> Bool[Tensor, "#B #H T S"]:
        """True where a query may attend to a key.

        Args:
            keys: the keys of the call.
            heads: query heads to evaluate; None: `Mask.heads`, after which all repeat.
        """
        count = self.heads() if heads is None else heads
        head = torch.arange(count, device=keys.order.device)[None, :, None, None]
        read = sorted(self.reads())
        of_queries = {name: queries.fact(name, queries.order)[:, None, :, None] for name in read}
        order, start, end = (part[:, None, :, None] for part in (queries.order, queries.begin, queries.prefix_end))
        query = Query(order, start, end, of_queries)
        begin, valid = (None if part is None else part[:, None, None, :] for part in (keys.begin, keys.valid))
        of_keys = {name: queries.fact(name, keys.order)[:, None, None, :] for name in read}
        found = self.rule(query, Key(keys.order[:, None, None, :], begin, valid, of_keys), head)
        rows = found.shape[0]
        return found.expand(rows, count if self.heads() > 1 else -1, queries.order.shape[1], keys.order.shape[1])

    @final
    def dense(self, queries: int, keys: int | None = None, *, begins: Tensor | None = None,
              count: Tensor | None = None, prefix: Tensor | None = None,
              heads: int | None = None) -> Bool[Tensor, "#B #H T S"]:
        """Evaluate the mask for the last ``queries`` of ``keys`` tokens, by default all of them; rows are queries.

        Args:
            begins: [B,S], True where a document starts.
            count: [B], tokens of each row that exist.
            prefix: [B,S], True for the tokens of a document's prefix.
            heads: query heads to evaluate; None: `Mask.heads`, after which all repeat.
        """
        return self.allowed(*picture.lay_out(queries, keys, begins=begins, count=count, prefix=prefix), heads)

    @final
    def undeclared(self) -> int:
        """Pairs of a document of 1.5 times its longest border, within `SHORT`, at which head h differs from head h mod
        `heads`, for twice as many heads and one more; 0 if `heads` is right, or if the rule reads facts of tokens."""
        if self.reads():
            return 0  # facts come with a call
        steps = min(max([SHORT[0], *(3 * border // 2 for border in self.borders())]), SHORT[1])
        declared, every = self.dense(steps), self.dense(steps, heads=2 * self.heads() + 1)
        alike = torch.arange(every.shape[1]) % declared.shape[1]
        return int((every != declared[:, alike]).sum())

    @final
    def draw(self, queries: int = 6, keys: int | None = None, *, begins: Tensor | None = None,
             prefix: Tensor | None = None) -> str:
        """A picture in text: rows are queries, columns keys; heads that differ follow one another."""
        return picture.text(self.dense(queries, keys, begins=begins, prefix=prefix))

    @final
    def svg(self, queries: int = 6, keys: int | None = None, *, begins: Tensor | None = None,
            prefix: Tensor | None = None) -> str:
        """The same picture as SVG, the query's own key darker; heads that differ are side by side."""
        return picture.svg(self.dense(queries, keys, begins=begins, prefix=prefix), repr(self))

    def __and__(self, other: Mask) -> Mask:
        return _join(And, Or, self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return _join(Or, And, self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        return Not(self)

    def __repr__(self) -> str:
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        shown = [repr(item) for value in values for item in (value if isinstance(value, tuple) else (value,))]
        return f"{self.kind}({', '.join(shown)})" if shown else self.kind


@dataclass(frozen=True, repr=False)
class And(Mask):
    """Allowed by every operand. Written ``a & b``, which also simplifies."""

    operands: tuple[Mask, ...]

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return reduce(torch.logical_and, (part.rule(query, key, head) for part in self.operands))

    def lookahead(self) -> Lookahead:
        return min((part.lookahead() for part in self.operands), key=AMOUNTS.index)

    def reach(self) -> int | None:
        bounds = [bound for bound in (part.reach() for part in self.operands) if bound is not None]
        return min(bounds, default=None)

    def band(self) -> Band:
        return reduce(Band.meet, (part.band() for part in self.operands))

    def heads(self) -> int:
        return math.lcm(*(part.heads() for part in self.operands))

    def pattern(self) -> Pattern | None:
        merged = Pattern()
        for part in self.operands:
            pattern = part.pattern()
            if pattern is None:
                return None
            merged = merged.merge(pattern)
        return merged

    def parts(self) -> tuple[Mask, ...]:
        return self.operands

    def __repr__(self) -> str:
        return " & ".join(f"({part!r})" if isinstance(part, Or) else repr(part) for part in self.operands)


@dataclass(frozen=True, repr=False)
class Or(Mask):
    """Allowed by some operand. Written ``a | b``, which also simplifies."""

    operands: tuple[Mask, ...]

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return reduce(torch.logical_or, (part.rule(query, key, head) for part in self.operands))

    def lookahead(self) -> Lookahead:
        return max((part.lookahead() for part in self.operands), key=AMOUNTS.index)

    def reach(self) -> int | None:
        bounds = [part.reach() for part in self.operands]
        known = [bound for bound in bounds if bound is not None]
        return max(known) if len(known) == len(bounds) else None

    def band(self) -> Band:
        return reduce(Band.join, (part.band() for part in self.operands))

    def heads(self) -> int:
        return math.lcm(*(part.heads() for part in self.operands))

    def parts(self) -> tuple[Mask, ...]:
        return self.operands

    def __repr__(self) -> str:
        return " | ".join(f"({part!r})" if isinstance(part, And) else repr(part) for part in self.operands)


@dataclass(frozen=True, repr=False)
class Not(Mask):
    """Allowed where the operand is not. Written ``~a``; ``~~a`` is ``a``."""

    operand: Mask

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return torch.logical_not(self.operand.rule(query, key, head))

    def heads(self) -> int:
        return self.operand.heads()

    def parts(self) -> tuple[Mask, ...]:
        return (self.operand,)

    def __invert__(self) -> Mask:
        return self.operand

    def __repr__(self) -> str:
        return f"~({self.operand!r})" if isinstance(self.operand, And | Or) else f"~{self.operand!r}"


def _join(kind: type[And] | type[Or], dual: type[And] | type[Or], *masks: Mask) -> Mask:
    """Join the operands: flattened, each once, without those that change nothing; a single operand is returned as it
    is."""
    flat: list[Mask] = []
    for mask in masks:
        flat += mask.operands if isinstance(mask, kind) else (mask,)
    everything = [mask for mask in flat if mask.pattern() == Pattern()]
    if everything and kind is Or:
        return everything[0]
    kept = [mask for mask in dict.fromkeys(flat) if mask not in everything] or everything[:1]
    # a & (a | b) is a, and a | (a & b) is a.
    kept = [mask for mask in kept if not (isinstance(mask, dual) and set(mask.operands) & set(kept))]
    return kept[0] if len(kept) == 1 else kind(tuple(kept))
