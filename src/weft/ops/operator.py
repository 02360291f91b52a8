"""`operator`: make a Python function one operator to `torch.compile`, with a backward of its own; `transformed`: where
such operators give way to those of PyTorch; `Offer`: whether a form pays at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from weft.core.errors import ConfigError

Kernel = Callable[..., Any]


def transformed() -> bool:
    """Whether a transform of `torch.func` is at work (`grad`, `vmap`, `jvp`, `hessian`). They know the derivatives and
    batches of PyTorch's operators alone, so that a plain form must serve."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


@final
class Offer:
    """Whether a form pays at all, for as long as something outside of calls stays as it is.

    Attributes:
        why_not: why it does not, in words; None: it does. Whatever it depends on sets it.
    """

    def __init__(self, why_not: str | None) -> None:
        self.why_not = why_not


@final
class _Operators:
    """What has been declared, so that a file that is loaded again can declare its own anew."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, torch.library.Library]] = {}

    def begin(self, name: str, file: str) -> torch.library.Library:
        """Room for the declaration of an operator by a file."""
        other, library = self._known.get(name, (file, None))
        if other != file:
            raise ConfigError([f"the operator {name!r} is declared by {other} and by {file}. Give one of them another "
                               "name."])
        if library is not None:
            library._destroy()
        self._known[name] = file, torch.library.Library(name.split("::")[0], "FRAGMENT")
        return self._known[name][1]

    def library(self, name: str) -> torch.library.Library:
        """That holds the declaration."""
        return self._known[name][1]


_OPERATORS = _Operators()


def operator(name: str, kernel: Kernel, shapes: Kernel) -> Kernel:
    """Declare ``kernel`` as an operator; the schema is read off its annotations. A file that is loaded again declares
    its operators anew.

    `torch.library.custom_op` does the same, but imports the compiler, which takes seconds, when first called.

    Args:
        name: "elman_scan" for ``weft::elman_scan``, or with a namespace of one's own, "mine::scan".
        kernel: tensors and plain values to new tensors; it changes none of its arguments.
        shapes: the same signature; empty tensors of the results' shapes and dtypes.

    Raises:
        ConfigError: another file has declared an operator of the name.
    """
    full = _full(name)
    library = _OPERATORS.begin(full, kernel.__code__.co_filename)
    schema = torch.library.infer_schema(kernel, mutates_args=())
    space, short = full.split("::")
    library.define(f"{short}{schema}")
    library.impl(short, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(full, shapes, lib=library)
    found: Kernel = getattr(getattr(torch.ops, space), short).default
    return found


def _full(name: str) -> str:
    return name if "::" in name else f"weft::{name}"


def widen(x: Tensor) -> Tensor:
    """``x`` in float32, or in its own dtype if that is wider: means and variances of narrower floats lose too much."""
    return x if x.dtype == torch.float32 else x.to(torch.promote_types(x.dtype, torch.float32))


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
    full = _full(name)
    torch.library.register_autograd(full, gradient, setup_context=save, lib=_OPERATORS.library(full))
