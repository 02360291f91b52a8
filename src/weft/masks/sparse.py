"""Sparse patterns with long reach: strided and fixed (Child et al. 2019), global tokens (Beltagy et al. 2020).

Child et al. give two heads, each half of a pattern. All three ways of their section 4.2 are expressions:

    per_head(window(l), strided(l))                  each head one half
    window(l) | strided(l)                           merged in every head
    window(l) in one layer, strided(l) in the next   alternating

and likewise with ``block(l)`` and ``fixed(l, c)``. Their paper's local half has l + 1 keys, ``window(l + 1)``; their
released code has l. Columns are counted from the begin of the query's document.

The reach of tokens through several layers of attention: products of masks as boolean matrices.

    R_p = (I | A_p) (I | A_{p-1}) ... (I | A_1)        A_n [T,T]: layer n's mask, heads joined; I: the residual stream

In R_p a query sees a key if the output of layer p at the query can depend on the input of layer 1 at the key: through
k_1 in A_p(i), k_2 in A_{p-1}(k_1), and so on down (Child et al. 2019, section 4.2). Heads are joined, for the output
projection mixes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.errors import ConfigError, InputError
from weft.core.part_config import About
from weft.masks import picture
from weft.masks.base import Mask
from weft.masks.expression import register_mask
from weft.masks.terms import Band, Key, Lookahead, Query, require_count


@register_mask
@dataclass(frozen=True, repr=False)
class Strided(Mask):
    """Every ``stride``-th key back from the query, its own included: j <= i, (i - j) mod stride = 0.

    Attributes:
        stride: tokens from one key to the next.
    """

    kind: ClassVar[str] = "strided"
    about = About(
        source="Child et al. 2019, section 4.2, second strided head",
        equation=r"A(i) = \{ j \le i : (i - j) \bmod s = 0 \}",
        differs=(("dilated", "reaches to the beginning, however far that is."),
                 ("fixed", "its columns move with the query.")))

    stride: int

    def __post_init__(self) -> None:
        require_count(self.kind, "stride", self.stride, 1, "keys are at least one token apart")

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        back = query.order - key.order
        return (back >= 0) & (back % self.stride == 0)

    def lookahead(self) -> Lookahead:
        return "none"

    def borders(self) -> tuple[int, ...]:
        return (self.stride,)


@register_mask
@dataclass(frozen=True, repr=False)
class Block(Mask):
    """The earlier keys of the query's block of ``stride`` tokens: floor(j / stride) = floor(i / stride), j <= i.

    Attributes:
        stride: tokens of a block.
    """

    kind: ClassVar[str] = "block"
    about = About(
        source="Child et al. 2019, section 4.2, first fixed head",
        equation=r"A(i) = \{ j \le i : \lfloor j / s \rfloor = \lfloor i / s \rfloor \}",
        differs=(("window", "starts anew at every block's border, where a window moves with the query."),
                 ("segments", "does not see the block before.")))

    stride: int

    def __post_init__(self) -> None:
        require_count(self.kind, "stride", self.stride, 1, "a block holds at least the query's own key")

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        index = query.order - query.begin
        return (key.order <= query.order) & (key.order >= query.order - index % self.stride)

    def lookahead(self) -> Lookahead:
        return "none"

    def reach(self) -> int:
        return self.stride


@register_mask
@dataclass(frozen=True, repr=False)
class Fixed(Mask):
    """The last ``summary`` earlier keys of every block of ``stride``: j <= i, j mod stride >= stride - summary.

    ``head`` h > 0 takes the ``summary`` columns before those of h - 1, for heads that should summarise different parts:
    ``per_head(fixed(8, 2), fixed(8, 2, 1))``.

    Attributes:
        stride: tokens of a block.
        summary: tokens at the end of a block that all later queries see.
        head: which group of columns, counted from the block's end.
    """

    kind: ClassVar[str] = "fixed"
    about = About(
        source="Child et al. 2019, section 4.2, second fixed head",
        equation=r"A(i) = \{ j \le i : j \bmod s \ge s - c \}",
        differs=(("strided", "all queries see the same columns, where those of strided move with the query."),
                 ("block", "sees the ends of all blocks, where block sees all of its own.")))

    stride: int
    summary: int
    head: int = 0

    def __post_init__(self) -> None:
        require_count(self.kind, "stride", self.stride, 1, "a block holds at least one token")
        require_count(self.kind, "summary", self.summary, 1, "a block has at least one summary column")
        require_count(self.kind, "head", self.head, 0, "heads are counted from 0")
        if (self.head + 1) * self.summary > self.stride:
            raise ConfigError([f"fixed: summary columns {self.summary} of head {self.head} lie outside a block of "
                               f"{self.stride}. Keep (head + 1) * summary within stride."])

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        column = (key.order - query.begin) % self.stride
        end = self.stride - self.head * self.summary
        return (key.order <= query.order) & (column >= end - self.summary) & (column < end)

    def lookahead(self) -> Lookahead:
        return "none"

    def borders(self) -> tuple[int, ...]:
        return (self.stride,)

    def __repr__(self) -> str:
        return f"fixed({self.stride}, {self.summary}{f', {self.head}' if self.head else ''})"


@register_mask
@dataclass(frozen=True, repr=False, init=False)
class GlobalTokens(Mask):
    """The tokens at ``indices`` of a document attend to all keys, and all queries attend to them; ``causal & (... |
    global(0))`` keeps it causal, which with a window is attention with sinks.

    Longformer also has separate projections for global tokens; this is the mask alone.

    Attributes:
        indices: positions of the global tokens in a document, from 0.
    """

    kind: ClassVar[str] = "global"
    about = About(
        source="Beltagy et al. 2020, section 3.1; Xiao et al. 2024, section 3.2 (sinks)",
        equation=r"A(i) = \{ j : i \in G \text{ or } j \in G \}",
        differs=(("globals", "its tokens have the same places in every document."),))

    indices: tuple[int, ...]

    def __init__(self, *indices: int) -> None:
        if not indices:
            raise ConfigError(["global: no token is given. Give the indices of the global tokens, such as global(0)."])
        for index in indices:
            require_count(self.kind, "indices", index, 0, "tokens are counted from the begin of their document, from 0")
        object.__setattr__(self, "indices", tuple(sorted(set(indices))))

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        i, j = query.order - query.begin, key.order - query.begin
        return reduce(torch.logical_or, ((i == index) | (j == index) for index in self.indices))

    def place(self) -> int:
        return self.indices[-1]

    def band(self) -> Band:
        """A global token lies among the first tokens, and so do the earlier keys that it attends to."""
        return Band(1, None, self.indices[-1] + 1)

    def borders(self) -> tuple[int, ...]:
        return (self.indices[-1] + 1,)


@dataclass(frozen=True)
class Reach:
    """After how many layers a query sees a key.

    Attributes:
        masks: of the layers, the one nearest to the input first; after the last they begin anew.
        layers: the least p with the pair in R_p; 0 for a pair that no number of layers connects.
    """

    masks: tuple[Mask, ...]
    layers: Int64[Tensor, "T T"]

    def after(self, count: int) -> Bool[Tensor, "T T"]:
        """R_p of ``count`` layers: True where the query sees the key."""
        return (self.layers > 0) & (self.layers <= count)

    def share(self, count: int) -> float:
        """The share of all pairs allowed in principle (`wanted`) that ``count`` layers connect."""
        return float(self.after(count)[self.wanted()].double().mean())

    def wanted(self) -> Bool[Tensor, "T T"]:
        """The pairs that full attention connects: all, or where every mask is causal those of no later key."""
        every = torch.ones_like(self.layers, dtype=torch.bool)
        return every.tril() if all(mask.causal() for mask in self.masks) else every

    def max_path_length(self) -> int | None:
        """The largest number of layers that a pair needs (Vaswani et al. 2017, table 1: the maximum path length); None
        where some pair of `wanted` is never connected."""
        needed = self.layers[self.wanted()]
        return None if bool((needed == 0).any()) else int(needed.max())

    def draw(self) -> str:
        """A picture in text: rows are queries, columns keys, a cell is the number of layers; ``.`` is never."""
        return picture.numbers(self.layers)

    def svg(self) -> str:
        """The same picture as SVG: the fewer layers, the darker."""
        names = ", ".join(map(repr, self.masks))
        longest = self.max_path_length()
        return picture.graded(self.layers, f"{names}: max path length {'none' if longest is None else longest}")


def reach(masks: Mask | Sequence[Mask], steps: int) -> Reach:
    """Compute after how many layers each of ``steps`` tokens sees each other.

    Args:
        masks: of the layers, from the one nearest to the input on; a single mask for layers that are alike.
        steps: tokens of the sequence. Time and memory grow with their square times the number of layers.

    Raises:
        InputError: there is no mask, or no token.
    """
    layers = (masks,) if isinstance(masks, Mask) else tuple(masks)
    if not layers or steps < 1:
        raise InputError(f"{len(layers)} masks and {steps} tokens.", where="reach",
                         remedy="Give at least one mask and one token.")
    own = torch.eye(steps, dtype=torch.bool)
    seen = [mask.dense(steps)[0].any(0) | own for mask in layers]
    reached, found, count, idle = own, torch.zeros(steps, steps, dtype=torch.int64), 0, 0
    while idle < len(layers):  # until none of the layers adds a pair
        following = (seen[count % len(layers)].float() @ reached.float()) > 0
        count, idle = count + 1, 0 if count == 0 or bool((following & ~reached).any()) else idle + 1
        found = torch.where(following & (found == 0), count, found)
        reached = following
    return Reach(layers, found)


def as_image(mask: Mask, query: int, rows: int, columns: int) -> str:
    """Draw the keys of one query as pixels of an image that is read row by row: ``@`` the query, ``#`` a key that it
    attends to, ``.`` another; heads that differ follow one another (Child et al. 2019, figure 3, upper row).

    Args:
        query: index of the query, from 0.
        columns: of the image; a row has this many tokens.

    Raises:
        InputError: the query lies outside the image.
    """
    if not 0 <= query < rows * columns:
        raise InputError(f"query {query} of an image of {rows} x {columns} pixels.", where="as_image",
                         remedy=f"Give an index from 0 to {rows * columns - 1}.")
    heads = mask.dense(rows * columns)[0, :, query].unflatten(-1, (rows, columns))
    return picture.pixels(heads, divmod(query, columns))
