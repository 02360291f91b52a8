"""Documents packed into rows, unpacked into one row each, for operators that cannot stop at a boundary inside a row.

Documents of similar length (within a factor of two, or up to `SHORTEST` tokens) form a group, so that padding at most
doubles the work on long ones. The number of documents and their lengths are read on the host. Use this inside an
operator only: neither a compiler nor a recorded step may depend on numbers in a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

SHORTEST = 16
"""Tokens: all documents up to this length form one group."""


@dataclass(frozen=True)
class DocumentGroup:
    """Documents of similar length; L is the length of the longest.

    Attributes:
        row: the row of each document.
        index: the place of each token in its row; an arbitrary place where the document has ended.
        inside: which entries hold a token of the document.
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


def groups_of(starts: Bool[Tensor, "B T"], count: Int64[Tensor, " B"] | None) -> Iterator[DocumentGroup]:
    """Group the pieces of documents in a chunk of at least one token; a row's first token begins a piece.

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
        yield DocumentGroup(row[which], (first[which, None] + offset).clamp(max=steps - 1), inside)
