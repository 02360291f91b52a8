"""Documents packed into rows, taken apart into rows of their own, for operators that cannot be fenced inside a row.

Documents go together with others of about their length (within a factor of two, or up to `SHORTEST` tokens), so that
padding at most doubles the work on long ones. How many there are and how long, is read on the host: this belongs inside
an operator, where neither a compiler nor a recorded step sees it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

SHORTEST = 16
"""Documents of up to this many tokens are run together."""


@dataclass(frozen=True)
class Group:
    """Documents of about one length, L the longest's.

    Attributes:
        row: the row each stands in.
        index: of each token in its row; any token's where there is none.
        inside: which entries hold a token.
    """

    row: Int64[Tensor, " R"]
    index: Int64[Tensor, "R L"]
    inside: Bool[Tensor, "R L"]

    def rows(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "R L D"]:
        """The documents, zero beyond their ends."""
        return x[self.row[:, None], self.index].masked_fill(~self.inside[..., None], 0)

    def put(self, y: Float[Tensor, "B T D"], rows: Float[Tensor, "R L D"]) -> None:
        """Write them back to where they stand."""
        y[self.row[:, None].expand_as(self.index)[self.inside], self.index[self.inside]] = rows[self.inside]


def groups_of(starts: Bool[Tensor, "B T"], count: Int64[Tensor, " B"] | None) -> Iterator[Group]:
    """The pieces of documents in a chunk of at least one token; a row's first token begins one.

    Args:
        starts: where a document begins.
        count: tokens of each row; None: all.
    """
    steps = starts.shape[1]
    places = torch.arange(steps, device=starts.device)
    marks = starts if count is None else starts & (places < count[:, None])
    row, first = (marks | (places == 0)).nonzero().unbind(1)
    total = torch.full_like(row, steps) if count is None else count[row]
    following = torch.cat([row[1:], row.new_full((1,), -1)])
    length = torch.where(following == row, torch.cat([first[1:], first[:1]]), total) - first
    sizes = torch.tensor([max(SHORTEST, 1 << max(size - 1, 0).bit_length()) if size else 0
                          for size in length.tolist()], device=length.device)
    for size in sorted(set(sizes.tolist()) - {0}):
        which = sizes == size
        offset = places[: int(length[which].max())]
        inside = offset < length[which, None]
        yield Group(row[which], (first[which, None] + offset).clamp(max=steps - 1), inside)
