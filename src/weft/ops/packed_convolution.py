"""The convolution of `fft_convolution` over packed documents, without terms from one document to another.

Documents packed into rows, unpacked into one row each, for operators that cannot stop at a boundary inside a row.

Documents of similar length (within a factor of two, or up to `SHORTEST` tokens) form a group, so that padding at most
doubles the work on long ones. The number of documents and their lengths are read on the host. Use this inside an
operator only: neither a compiler nor a recorded step may depend on numbers in a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from weft.ops import fft_convolution as whole
from weft.ops import native_long_convolution as in_c
from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import differentiable


class PackedConvolutionCall(NamedTuple):
    """The arguments of `packed_convolution`."""

    u: Float[Tensor, "B T H"]
    kernel: Float[Tensor, "H T"]
    starts: Bool[Tensor, "B T"]
    counts: Int64[Tensor, " B"] | None


def packed_convolution(u: Float[Tensor, "B T H"], kernel: Float[Tensor, "H T"], starts: Bool[Tensor, "B T"],
                       count: Int64[Tensor, " B"] | None) -> Float[Tensor, "B T H"]:
    """y_t = sum of k_l u_{t-l} over the tokens of t's document; zero beyond each row's count.

    One operator to the compiler, since the starts of documents are read on the host.

    Args:
        u: inputs, in float32 or float64.
        kernel: at least as long as the longest document.
        starts: where a document begins; a row's first token begins one.
        count: tokens of each row; None: all.
    """
    return PACKED_CONVOLUTION(PackedConvolutionCall(u, kernel, starts, count))


def _direct(call: PackedConvolutionCall) -> Tensor:
    u, kernel, starts, count = call
    places = torch.arange(u.shape[1], device=u.device)
    lags, documents = places[:, None] - places, starts.cumsum(1)
    inside = (places < u.shape[1])[None] if count is None else places < count[:, None]
    visible = (lags >= 0) & (documents[:, :, None] == documents[:, None]) & inside[:, :, None] & inside[:, None]
    # A selection: a product with zeros would let NaN through.
    terms = torch.where(visible[..., None], kernel.t()[lags.clamp(min=0)] * u[:, None], 0.0)  # [B,T,S,H]
    return terms.sum(2)


def _operator(call: PackedConvolutionCall) -> Tensor:
    y: Tensor = _forward(*call)
    return y


def _native(call: PackedConvolutionCall) -> Tensor:
    u, kernel, starts, counts = call
    return in_c.in_c(u, kernel[:, : u.shape[1]], in_c.first_read(starts, counts))


def _in_c(call: PackedConvolutionCall) -> str | None:
    if call.kernel.shape[1] < call.u.shape[1]:
        return "the kernel is shorter than the rows"
    return in_c.why_no_terms(call.u, call.kernel)


def _long(call: PackedConvolutionCall) -> str | None:
    return in_c.too_long(call.u.shape[1])


def _run(u: Tensor, kernel: Tensor, starts: Tensor, count: Tensor | None) -> Tensor:
    y = torch.zeros_like(u)
    for group in groups_of(starts, count):
        rows = group.rows(u).transpose(1, 2)
        group.put(y, whole.run(rows, kernel[:, : rows.shape[2]]).transpose(1, 2))
    return y


def _run_shapes(u: Tensor, kernel: Tensor, starts: Tensor, count: Tensor | None) -> Tensor:
    return torch.empty_like(u)


def _run_backward(grad: Tensor, u: Tensor, kernel: Tensor, starts: Tensor,
                  count: Tensor | None) -> tuple[Tensor, Tensor]:
    grad_u, grad_kernel = torch.zeros_like(u), torch.zeros_like(kernel)
    for group in groups_of(starts, count):
        above, rows = group.rows(grad).transpose(1, 2), group.rows(u).transpose(1, 2)
        length = rows.shape[2]
        to_rows, to_kernel = whole.run_backward(above, rows, kernel[:, :length])
        group.put(grad_u, to_rows.transpose(1, 2))
        grad_kernel = grad_kernel + torch.nn.functional.pad(to_kernel, (0, kernel.shape[1] - length))
    return grad_u, grad_kernel


_forward = differentiable("packed_convolution", _run, _run_shapes, _run_backward, _run, 2)


def _examples(make: Make) -> Iterator[PackedConvolutionCall]:
    for steps in (7, 37):
        starts = torch.arange(2 * steps).view(2, steps) % 5 == 2
        yield PackedConvolutionCall(make(2, steps, 3), make(3, steps), starts, None)
        yield PackedConvolutionCall(make(2, steps, 3), make(3, steps), starts, torch.tensor([steps - 1, 0]))


PACKED_CONVOLUTION = OPERATIONS.add(Operation(
    "packed_convolution", "a convolution that begins anew with every document",
    Form(REFERENCE, _direct, "term by term, in O(T^2)", known_as=("direct",)),
    Form("native", _native, "term by term in C", devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}),
         transformed=False, serves=_in_c, worth=_long, flops=in_c.FLOPS, known_as=("c",)),
    Form("operator", _operator, "documents grouped by length, as one operator", transformed=False,
         known_as=("groups",)),
    subject="u", examples=_examples))


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
