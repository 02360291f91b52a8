"""`operator`: make a Python function one operator to `torch.compile`, with a backward of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Kernel = Callable[..., Any]


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


def differentiate(name: str, gradient: Kernel, save: Kernel) -> None:
    """Give the operator a backward.

    Args:
        name: as declared.
        gradient: (ctx, *gradients of the results) to the gradients of the arguments.
        save: (ctx, inputs, output), keeps what ``gradient`` reads.
    """
    torch.library.register_autograd(f"weft::{name}", gradient, setup_context=save)
