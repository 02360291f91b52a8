"""`operator`: make a Python function one operator to `torch.compile`, with a backward of its own; `transformed`: where
such operators give way to those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[..., Any]


def transformed() -> bool:
    """Whether a transform of `torch.func` is at work (`grad`, `vmap`, `jvp`, `hessian`). They know the derivatives and
    batches of PyTorch's operators alone, so that a plain form must serve."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def operator(name: str, kernel: Kernel, shapes: Kernel) -> Kernel:
    """Declare ``kernel`` as the operator ``weft::name``; the schema is read off its annotations.

    `torch.library.custom_op` does the same, but imports the compiler, which takes seconds, when first called.

    Args:
        name: not taken yet.
        kernel: tensors and plain values to new tensors; it changes none of its arguments.
        shapes: the same signature; empty tensors of the results' shapes and dtypes.
    """
    full = f"weft::{name}"
    torch.library.define(full, torch.library.infer_schema(kernel, mutates_args=()))
    torch.library.impl(full, "CompositeExplicitAutograd", kernel)
    torch.library.register_fake(full, shapes)
    found: Kernel = getattr(torch.ops.weft, name).default
    return found


def again(y: Tensor, inputs: Sequence[Tensor | None], dy: Tensor) -> list[Tensor | None]:
    """The gradients of ``inputs``, for a backward pass that is differentiated itself; None for those that need none.

    Args:
        y: worked out again from the inputs, by operators of PyTorch's.
        inputs: as they were given.
        dy: the gradient of ``y``.
    """
    wanted = [x for x in inputs if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return [None if x is None or not x.requires_grad else next(found) for x in inputs]


def differentiate(name: str, gradient: Kernel, save: Kernel) -> None:
    """Give the operator a backward.

    Args:
        name: as declared.
        gradient: (ctx, *gradients of the results) to the gradients of the arguments.
        save: (ctx, inputs, output), keeps what ``gradient`` reads.
    """
    torch.library.register_autograd(f"weft::{name}", gradient, setup_context=save)
