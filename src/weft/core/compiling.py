"""Whether torch's compiler traces, and what it refuses, as an error that says what to do.

Checks of tensor values, on which no choice of a kernel depends.

On the CPU the condition is read and an error raised. On other devices it becomes an asynchronous assertion, so that
the host does not wait for the device; meta tensors hold no values to check. ``torch.compile`` traces the same
assertion.

`Direct`: modules whose calls run `forward` directly if there are no hooks to call.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partialmethod
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from weft.core.errors import UnsupportedError, UserError

F = TypeVar("F", bound=Callable[..., Any])

compiler_traces = cache(torch.compiler.is_dynamo_compiling)
"""Whether `torch.compile` traces the caller. The function returns False wherever it really runs, so a cached result is
right and costs no Python call; the compiler traces through caches and puts True in the function's place."""

SHOWN = 2
"""Lines of the compiler's message that are passed on: the cause comes first, then pages about the graph."""


def constant_to_compiler(function: F) -> F:
    """Mark a function of plain values, whose result `torch.compile` then takes for a constant instead of tracing it.
    What `torch.compiler.assume_constant_result` does, without importing the compiler, which takes seconds."""
    vars(function)["_dynamo_marked_constant"] = True
    return function


def unseen_by_compiler(function: F) -> F:
    """Mark a function that `torch.compile` calls without tracing it, at the price of a graph that is cut there. What
    `torch.compiler.disable` does, without importing the compiler."""
    vars(function)["_torchdynamo_disable"] = True
    return function


@contextmanager
def compiler_errors(where: str) -> Iterator[None]:
    """A context for a call of what `torch.compile` returned, which compiles when it is first called.

    Args:
        where: the option that requested compilation.

    Raises:
        UnsupportedError: this model or machine cannot be compiled.
    """
    from torch._dynamo.exc import TorchDynamoException  # imports the compiler, which takes a second

    try:
        yield
    except TorchDynamoException as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UnsupportedError(f"torch.compile failed: {' '.join(lines[:SHOWN])}.", where=where,
                               remedy="Leave it out, or see `weft doctor` for what the compiler needs.") from None


@contextmanager
def sparing_compilers() -> Iterator[None]:
    """A context in which a terminal's Ctrl-C does not reach the programs that this process starts.

    A terminal interrupts them too. A C++ compiler that ends of it is no error to PyTorch while it tries instruction
    sets: it does without them, and what is computed then rounds otherwise; later it is an error of compilation.
    """
    begin = subprocess.Popen.__init__
    subprocess.Popen.__init__ = partialmethod(begin, start_new_session=True)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        subprocess.Popen.__init__ = begin  # type: ignore[method-assign]


def require(condition: Tensor, error: type[UserError], what: str, *, where: str, remedy: str) -> None:
    """Raise ``error(what, where=where, remedy=remedy)`` unless every entry of ``condition`` is true."""
    # What `torch.compiler.is_compiling` comes to, without its two calls.
    if compiler_traces() or torch.compiler._is_compiling_flag or condition.device.type not in ("cpu", "meta"):
        torch._assert_async(condition.all(), f"{where}: {what} {remedy}")
    elif condition.device.type == "cpu" and not bool(_whole(condition).all()):
        raise error(what, where=where, remedy=remedy)


def _whole(tensor: Tensor) -> Tensor:
    """The tensor without the wrappers of `torch.func` transforms (`vmap`, `grad`): the entries of all rows of a batch.
    A wrapped tensor has no value that the host could read."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


TORCH_CALL = nn.Module.__call__
"""PyTorch's call of a module; tracers (`torch.fx`, `torch.export`) replace it while they trace."""


def calls_forward_alone(module: nn.Module) -> bool:
    """Whether a call of a module runs the ``forward`` of its class and nothing else: there are no hooks, on it or on
    all modules, it has no compiled form or ``forward`` of its own, and nothing is traced."""
    return not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks or torch_module._global_forward_hooks
                or torch_module._global_forward_pre_hooks or torch_module._global_backward_hooks
                or torch_module._global_backward_pre_hooks or module._compiled_call_impl is not None
                or "forward" in vars(module) or torch._C._get_tracing_state()
                or nn.Module.__call__ is not TORCH_CALL)


class Direct(nn.Module):
    """Base of modules that are called often.

    `torch.nn.Module` calls two Python functions before `forward`, which in a step of one token take more time than the
    computation of a small layer. A call of this class runs `forward` directly whenever those two would do nothing else:
    the module has no hooks and no compiled form, there are no global hooks, and nothing is traced.

    For the same reason modules that run in every step read children and parameters from ``_modules`` and
    ``_parameters``, where torch stores them: as attributes they are looked up by `Module.__getattr__`, in Python.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
                or torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks
                or torch_module._global_backward_hooks or torch_module._global_backward_pre_hooks
                or self._compiled_call_impl is not None or torch._C._get_tracing_state()
                or nn.Module.__call__ is not TORCH_CALL):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)
