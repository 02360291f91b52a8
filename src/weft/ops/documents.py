"""`each_document`: run packed documents as rows of their own, for mixers that cannot reset inside a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.core.span import Span

SHORTEST = 16
"""Documents of up to this many tokens are run together."""

Run = Callable[[Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Documents:
    """The pieces of documents in a chunk, row by row. Every row has at least one, of no tokens if it advances by none.

    Attributes:
        row: the row each stands in.
        first: the index of its first token in the chunk.
        count: its tokens.
        goes_on: whether the document began before the chunk.
    """

    row: Int64[Tensor, " R"]
    first: Int64[Tensor, " R"]
    count: Int64[Tensor, " R"]
    goes_on: Bool[Tensor, " R"]

    def pick(self, which: Int64[Tensor, " P"]) -> Documents:
        """Some of them."""
        return Documents(self.row[which], self.first[which], self.count[which], self.goes_on[which])


def find_documents(span: Span, batch: int, steps: int) -> Documents:
    """The pieces of documents in a chunk of at least one token. Reads the marks on the host."""
    ticks = span.ticks
    starts = ticks.starts().expand(batch, -1)
    marks = starts.clone() if ticks.valid is None else starts & ticks.valid
    marks[:, 0] = True
    row, first = marks.nonzero().unbind(1)
    total = torch.full_like(row, steps) if span.count is None else span.count[row]
    following = torch.cat([row[1:], row.new_full((1,), -1)])
    end = torch.where(following == row, torch.cat([first[1:], first[:1]]), total)
    return Documents(row, first, end - first, ~starts[row, first])


def each_document(x: Float[Tensor, "B T D"], carried: Float[Tensor, "B ..."] | None, span: Span,
                  run: Run) -> tuple[Tensor, Tensor | None]:
    """Unpack the documents of a chunk into rows, run them, and pack the results again.

    Documents are run together with others of about their length (within a factor of two, or up to `SHORTEST` tokens),
    so that padding at most doubles the work on long ones. This reads tensors on the host.

    Args:
        x: the chunk, at least one token.
        carried: what the state carries for each row; None without a state.
        span: resolved.
        run: (rows [R,L,D], what each carries [R,...] or None, counts [R]) to outputs [R,L,...] and what each row
            carries after its count. A document that begins in the chunk carries zeros.

    Returns:
        The outputs [B,T,...], and what each row carries after its last document.
    """
    batch, steps = x.shape[:2]
    documents = find_documents(span, batch, steps)
    outputs, afters, order = [], [], []
    place = torch.zeros(batch, steps, dtype=torch.int64, device=x.device)
    used = 0
    for which in _alike(documents.count):
        group = documents.pick(which)
        rows, inside, index = _unpack(x, group)
        y, after = run(rows, _start(carried, group), group.count)
        own = used + torch.arange(inside.numel(), device=x.device).view(inside.shape)
        place[group.row[:, None].expand_as(index)[inside], index[inside]] = own[inside]
        used += inside.numel()
        outputs.append(y.flatten(0, 1))
        afters.append(after)
        order.append(which)
    packed = torch.cat(outputs)[place.flatten()].unflatten(0, (batch, steps))
    return packed, _last(afters, torch.cat(order), documents.row)


def _alike(count: Tensor) -> list[Tensor]:
    """Indices of documents, grouped by length."""
    sizes = [max(SHORTEST, 1 << max(int(size) - 1, 0).bit_length()) for size in count.tolist()]
    return [torch.tensor([n for n, size in enumerate(sizes) if size == wanted], device=count.device)
            for wanted in sorted(set(sizes))]


def _unpack(x: Tensor, group: Documents) -> tuple[Tensor, Tensor, Tensor]:
    """The documents as rows [R,L,D], zero beyond their ends; which entries hold a token; and its index in the chunk."""
    offset = torch.arange(max(1, int(group.count.max())), device=x.device)
    inside = offset < group.count[:, None]
    index = (group.first[:, None] + offset).clamp(max=x.shape[1] - 1)
    rows = x[group.row[:, None], index]
    return rows.masked_fill(~inside.view(*inside.shape, *[1] * (x.dim() - 2)), 0), inside, index


def _start(carried: Tensor | None, group: Documents) -> Tensor | None:
    if carried is None:
        return None
    begins = ~group.goes_on.view(-1, *[1] * (carried.dim() - 1))
    return carried[group.row].masked_fill(begins, 0)


def _last(afters: list[Tensor | None], order: Tensor, row: Tensor) -> Tensor | None:
    """What each row's last document carries."""
    found = [after for after in afters if after is not None]
    if not found:
        return None
    following = torch.cat([row[1:], row.new_full((1,), -1)])
    return torch.cat(found)[order.argsort()[following != row]]
