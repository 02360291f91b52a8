"""Rows of a table by their numbers, with the table's gradient added up in float32.

    y = W[n],   dW[v] = sum of dy over the places where n = v

A row's gradient has as many terms as its token occurs in the batch. PyTorch adds them one by one in the dtype of the
table: bfloat16 has 8 bits, so that a term below 1/256 of the sum so far vanishes. With 4096 tokens and a vocabulary of
256 the gradient is off by 3 %, against 0.2 % for a sum in float32 that is rounded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional as F

from weft.ops.forms import OPERATIONS, REFERENCE, Form, Make, Operation
from weft.ops.operator import again, widen


class EmbeddingCall(NamedTuple):
    """The arguments of `embedding`."""

    numbers: Int64[Tensor, "*N"]
    table: Float[Tensor, "V D"]


def embedding(numbers: Int64[Tensor, "*N"], table: Float[Tensor, "V D"]) -> Float[Tensor, "*N D"]:
    """The rows of ``table`` with these numbers; its gradient is summed in float32 or wider and rounded once."""
    return EMBEDDING(EmbeddingCall(numbers, table))


def _library(call: EmbeddingCall) -> Tensor:
    return F.embedding(call.numbers, call.table)


def _wide_sums(call: EmbeddingCall) -> Tensor:
    y: Tensor = _Embedding.apply(*call)  # type: ignore[no-untyped-call]
    return y


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(numbers, table)
        return F.embedding(numbers, table)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[None, Tensor | None]:
        numbers, table = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is needed, which PyTorch's own operator has
            return None, again(partial(F.embedding, numbers), [table], dy)[0]
        # -1: no number stands for padding; False: terms are not divided by how often their number occurs.
        total = torch.ops.aten.embedding_dense_backward(widen(dy), numbers, table.shape[0], -1, False)
        return None, total.to(table.dtype)


def _examples(make: Make) -> Iterator[EmbeddingCall]:
    yield EmbeddingCall(torch.arange(14).view(2, 7) % 4, make(5, 3))
    yield EmbeddingCall(torch.arange(6) % 3, make(3, 4))
    yield EmbeddingCall(torch.zeros(2, 0, dtype=torch.int64), make(5, 3))


EMBEDDING = OPERATIONS.add(Operation(
    "embedding", "rows of a table by their numbers",
    Form(REFERENCE, _library, "PyTorch's own", known_as=("library", "torch")),
    # What the compiler writes for the reference adds in float32 as well.
    Form("wide_sums", _wide_sums, "the gradient summed in float32", gradients="with", compiled=False, transformed=False,
         dtypes=frozenset({torch.bfloat16, torch.float16}), known_as=("wide", "float32")),
    subject="table", examples=_examples, known_as=("lookup", "table")))
