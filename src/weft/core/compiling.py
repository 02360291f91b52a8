"""Whether torch's compiler traces, and what it refuses, as an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

from weft.core.errors import UnsupportedError

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
