"""`Recurrent`, the base of the layers of Elman networks, GRUs and LSTMs.

All tokens are projected at once, a scan runs over time, and an output projection returns to d_model where the hidden
size differs. Documents that begin inside a chunk reset the state; rows may advance by different counts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.part_config import About
from weft.core.recurrent_layer import Carried, Recurred, RecurrentLayer
from weft.core.span import Boundaries, Span
from weft.linear.linear import HoldsMatrix, Linear, dense, read
from weft.mixers.base import MixerConfig
from weft.ops.operator import widen
from weft.ops.recurrence import after_count


class RecurrentConfig(MixerConfig):
    """Options of all recurrent networks.

    Attributes:
        d_hidden: hidden units H; None: d_model. Where they differ, a linear map without bias returns to d_model.
        bias: whether the steps add a bias.
    """

    about = About(state_size="d_hidden float32 numbers")

    d_hidden: int | None = Field(default=None, gt=0)
    bias: bool = True

    def in_words(self, d_model: int = 0) -> str:
        name = self.about.title or self.kind.replace("_", " ")
        return f"{name} {d_model if self.d_hidden is None else self.d_hidden:,}"


class Recurrent(RecurrentLayer[Tensor], HoldsMatrix, ABC):
    """A recurrent network from [B,T,D] to [B,T,D]. The initial state is zero. The recurrence is computed in float32 or
    better: a long memory adds small numbers to large ones at every step, which bfloat16 rounds away.

    Subclasses declare the number of ``gates`` of size H, the number of tensors that the state ``carries``, `scan`,
    `opened` and `inference`. Opened, the recurrent matrix is the map ``recurrent``, which adapters can stand beside.
    Weights and biases are drawn uniformly between -1/sqrt(H) and 1/sqrt(H).
    """

    gates: ClassVar[int]
    carries: ClassVar[int] = 1
    child: ClassVar[str] = "recurrent"
    held: ClassVar[Mapping[str, str]] = MappingProxyType({"weight": "recurrent_weight"})
    calls = False

    def __init__(self, d_model: int, d_hidden: int | None, bias: bool) -> None:
        super().__init__()
        self.d_hidden = d_model if d_hidden is None else d_hidden
        self.input = Linear(d_model, self.gates * self.d_hidden, bias=bias)
        self.recurrent_weight = nn.Parameter(self.input.weight.new_empty(self.gates * self.d_hidden, self.d_hidden))
        bound = 1 / math.sqrt(self.d_hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        same = self.d_hidden == d_model
        self.output = nn.Identity() if same else Linear(self.d_hidden, d_model, bias=False)
        self.recurrent: nn.Module | None = None

    def with_map(self) -> Self:
        """This part opened."""
        if self.recurrent is not None:
            return self
        return self.with_child(Linear.of(self.recurrent_weight, allows=frozenset({"adapt"})), "recurrent_weight")

    def with_matrix(self) -> Self:
        """This part with one recurrent matrix, in which an adapter is contained; itself where it has one."""
        whole = None if self.recurrent is None else dense(self.recurrent)
        if whole is None:
            return self
        closed = self.with_child(None)
        closed.recurrent_weight = nn.Parameter(self.matrix(torch.promote_types(whole[0].dtype, torch.float32)).detach())
        return closed

    def matrix(self, dtype: torch.dtype) -> Float[Tensor, "G H"]:
        """The recurrent matrix in a dtype."""
        return self.recurrent_weight.to(dtype) if self.recurrent is None else read(self.recurrent, dtype)[0]

    @abstractmethod
    def scan(self, projected: Float[Tensor, "T B G"], before: tuple[Tensor, ...],
             starts: Tensor | None) -> tuple[Tensor, ...]:
        """The carried tensors after every step, [T,B,H] each, the output first.

        Args:
            projected: the contribution of the input to every gate, G = gates * H.
            before: the carried tensors before the first step, in the dtype of ``projected``.
            starts: [T,B], True where a document starts; None: nowhere.
        """

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.d_hidden,),) * self.carries

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> Float[Tensor, "T B G"]:
        inputs: Tensor = self.input(x.transpose(0, 1))
        return inputs

    def recur(self, projected: Float[Tensor, "T B G"], before: Carried, boundaries: Boundaries, span: Span) -> Recurred:
        inputs, entering = widen(projected), []
        for value in before:
            entering.append(inputs.new_zeros(inputs.shape[1], self.d_hidden) if value is None
                            else value.to(inputs.dtype))
        after = self.scan(inputs, tuple(entering), None if boundaries.starts is None else boundaries.starts.t())
        last = []
        for first, steps in zip(entering, after, strict=True):
            last.append(after_count(first, steps, span.count))
        return Recurred(after[0].transpose(0, 1).to(projected.dtype), tuple(last))
