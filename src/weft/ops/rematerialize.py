"""Results that a backward pass works out again in place of keeping them (rematerialisation, Chen et al. 2016, section
4.1): those that cost little beside the matrix products which take them in, such as normalised vectors and activations.

An operator says of a result that it is `cheap`, and how to make it. Inside `dropping_cheap` autograd keeps the recipe
where it would have kept the result; elsewhere nothing changes. A recipe gives the same bits again, so gradients do not
depend on which way was taken.
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
    """A result that can be made again, and that is held while a backward pass goes through those that took it in."""

    def __init__(self, y: Tensor, recipe: Recipe) -> None:
        self.storage = StorageWeakRef(y.untyped_storage())
        self._recipe, self._saved, self._left = recipe, 0, 0
        self._value: Tensor | None = None

    def save(self) -> None:
        """Count one more operator that wants it."""
        self._saved += 1

    def make(self) -> Tensor:
        """The result, for one of the operators that want it; with the last of them it is let go."""
        value = self._value
        if value is None:
            with torch.no_grad():
                value = self._recipe()
            self._left = self._saved
        self._left -= 1
        self._value = value if self._left else None
        return value


class _View(NamedTuple):
    """What autograd keeps in place of a cheap result, or of a view of it."""

    cheap: _Cheap
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


_active: ContextVar[dict[int, _Cheap] | None] = ContextVar("cheap results", default=None)


def cheap(y: Tensor, recipe: Recipe) -> Tensor:
    """``y`` itself, which ``recipe`` makes again bit for bit, in the same layout, from what is kept anyway.

    A recipe must hold neither ``y`` nor tensors that autograd does not keep for other reasons.
    """
    # Without gradients nothing is kept; with them the compiler decides itself what to keep.
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return y
    known = _active.get()
    if known is None or y.numel() < LEAST:
        return y
    for key in [key for key, value in known.items() if value.storage.expired()]:
        del known[key]  # nobody holds that result any more, and its recipe would hold its arguments
    known[y.untyped_storage()._cdata] = _Cheap(y, recipe)
    return y


def apart(part: Tensor) -> Tensor:
    """``part`` of a larger result of which nothing else is kept, so that it does not hold all of that: a copy inside
    `dropping_cheap`, if it is worth one."""
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
        # A weak reference keeps the address of a storage from being used again, so an equal address is the same one.
        found = known.get(tensor.untyped_storage()._cdata)
        if found is None:
            return tensor
        found.save()
        return _View(found, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

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
