"""Errors of torch's compiler, raised again with what to do about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.core.errors import UnsupportedError

SHOWN = 2
"""Lines of the compiler's message that are passed on: the cause comes first, then pages about the graph."""


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
