"""Results that a backward pass recomputes in place of keeping them (rematerialisation, Chen et al. 2016, section 4.1):
those that cost little beside the matrix products that read them, such as normalised vectors and activations.

An operator marks a result as `cheap` and passes a recipe that computes it again. Inside `dropping_cheap` autograd keeps
the recipe in place of the result; elsewhere nothing changes. A recipe returns the same bits, so gradients do not depend
on whether a result was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias, final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

LEAST = 1 << 18
"""Numbers in a result, 1 MiB in float32, below which the bookkeeping costs more than the memory is worth."""

Recipe: TypeAlias = Callable[[], Tensor]


@final
class _Cheap:
    """A result that can be recomputed. In a backward pass it is kept from the first operator that reads it to the
    last."""

    def __init__(self, y: Tensor, recipe: Recipe) -> None:
        self.storage = StorageWeakRef(y.untyped_storage())
        self._recipe, self._saved, self._left = recipe, 0, 0
        self._value: Tensor | None = None

    def save(self) -> None:
        """Count one more operator that reads it in its backward pass."""
        self._saved += 1

    def make(self) -> Tensor:
        """Return the result to one of the operators that read it; after the last of them it is freed."""
        value = self._value
        if value is None:
            with torch.no_grad():
                value = self._recipe()
            self._left = self._saved
        self._left -= 1
        self._value = value if self._left else None
        return value


class _View(NamedTuple):
    """The object that autograd keeps in place of a cheap result or of a view of one."""

    cheap: _Cheap
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


_active: ContextVar[dict[int, _Cheap] | None] = ContextVar("cheap results", default=None)


def cheap(y: Tensor, recipe: Recipe) -> Tensor:
    """Return ``y``, which ``recipe`` recomputes bit for bit, in the same layout, from tensors that are kept anyway.

    A recipe must hold neither ``y`` nor tensors that autograd does not keep for other reasons.
    """
    # Without gradients nothing is kept; under torch.compile its partitioner decides what is recomputed.
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return y
    known = _active.get()
    if known is None or y.numel() < LEAST:
        return y
    for key in [key for key, value in known.items() if value.storage.expired()]:
        del known[key]  # the result has been freed, and its recipe would keep its arguments alive
    known[y.untyped_storage()._cdata] = _Cheap(y, recipe)
    return y


def apart(part: Tensor) -> Tensor:
    """Return ``part``, a view of a larger result, so that it does not keep all of that in memory: a copy inside
    `dropping_cheap` where the part is large, else the view itself."""
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return part
    if _active.get() is None or part.numel() < LEAST:
        return part
    return part.clone()


@contextmanager
def dropping_cheap() -> Iterator[None]:
    """Inside, the backward pass of what is computed keeps recipes of `cheap` results in place of them."""
    known: dict[int, _Cheap] = {}

    def pack(tensor: Tensor) -> Tensor | _View:
        # The weak reference keeps the storage's address from being reused, so an equal address is the same storage.
        result = known.get(tensor.untyped_storage()._cdata)
        if result is None:
            return tensor
        result.save()
        return _View(result, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def unpack(kept: Tensor | _View) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        return kept.cheap.make().as_strided(kept.size, kept.stride, kept.offset)

    token = _active.set(known)
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield
    finally:
        _active.reset(token)
        known.clear()
