"""The reach of tokens through several layers of attention: products of masks as boolean matrices.

    R_p = (I | A_p) (I | A_{p-1}) ... (I | A_1)        A_n [T,T]: layer n's mask, heads joined; I: the residual stream

In R_p a query sees a key if the output of layer p at the query can depend on the input of layer 1 at the key: through
k_1 in A_p(i), k_2 in A_{p-1}(k_1), and so on down (Child et al. 2019, section 4.2). Heads are joined, for the output
projection mixes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.errors import InputError
from weft.masks import picture
from weft.masks.base import Mask


@final
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
