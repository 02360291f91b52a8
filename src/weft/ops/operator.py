"""`operator` makes a Python function one operator to `torch.compile`, `differentiate` gives it a backward pass;
`transformed` is true where such operators give way to those of PyTorch.

Results that a backward pass recomputes in place of keeping them (rematerialisation, Chen et al. 2016, section 4.1):
those that cost little beside the matrix products that read them, such as normalised vectors and activations.

An operator marks a result as `cheap` and passes a recipe that computes it again. Inside `dropping_cheap` autograd keeps
the recipe in place of the result; elsewhere nothing changes. A recipe returns the same bits, so gradients do not depend
on whether a result was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from weft.core.errors import ConfigError

Kernel = Callable[..., Any]


def transformed() -> bool:
    """Whether a transform of `torch.func` is active (`grad`, `vmap`, `jvp`, `hessian`). They can differentiate and
    batch only PyTorch's operators, so a form without operators of ours must serve."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


class _Operators:
    """The operators that have been declared, so that a file that is loaded again can declare its operators anew."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, torch.library.Library]] = {}

    def begin(self, name: str, file: str) -> torch.library.Library:
        """The library in which a file may declare an operator."""
        other, library = self._known.get(name, (file, None))
        if other != file:
            raise ConfigError([f"the operator {name!r} is declared by {other} and by {file}. Give one of them another "
                               "name."])
        if library is not None:
            library._destroy()
        self._known[name] = file, torch.library.Library(name.split("::")[0], "FRAGMENT")
        return self._known[name][1]

    def library(self, name: str) -> torch.library.Library:
        """The library that holds the declaration of an operator."""
        return self._known[name][1]


_OPERATORS = _Operators()


def operator(name: str, kernel: Kernel, shapes: Kernel) -> Kernel:
    """Declare ``kernel`` as an operator, whose schema follows from its annotations. A file that is loaded again
    declares its operators anew.

    `torch.library.custom_op` does the same, but its first call imports the compiler, which takes seconds.

    Args:
        name: "elman_scan" for ``weft::elman_scan``, or with a namespace, "mine::scan".
        kernel: from tensors and plain values to new tensors; it must change none of its arguments.
        shapes: with the same signature; returns empty tensors of the results' shapes and dtypes.

    Raises:
        ConfigError: another file has declared an operator of the name.
    """
    full = _full(name)
    library = _OPERATORS.begin(full, kernel.__code__.co_filename)
    schema = torch.library.infer_schema(kernel, mutates_args=())
    space, short = full.split("::")
    library.define(f"{short}{schema}")
    if not schema.endswith("-> Tensor"):  # a kernel of one result writes it into a tensor that it makes
        kernel, shapes = _dense(kernel), _dense(shapes)
    library.impl(short, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(full, shapes, lib=library)
    declared: Kernel = getattr(getattr(torch.ops, space), short).default
    return declared


def _dense(function: Kernel) -> Kernel:
    """The function of several results with each laid out row by row: compiled code reads a result as ``shapes`` lays it
    out, and the layout of what a kernel computes can depend on the device."""

    def run(*args: Any) -> Any:
        return tuple(each.contiguous() for each in function(*args))

    return run


def _full(name: str) -> str:
    return name if "::" in name else f"weft::{name}"


def widen(x: Tensor) -> Tensor:
    """``x`` in float32, or unchanged where its dtype is wider: in narrower floats means and variances lose too many
    bits."""
    return x if x.dtype == torch.float32 else x.to(torch.promote_types(x.dtype, torch.float32))


def again(plain: Callable[..., Tensor | tuple[Tensor, ...]], inputs: Sequence[Tensor | None],
          *above: Tensor) -> list[Tensor | None]:
    """The gradients of ``inputs``, for a backward pass that is differentiated itself; None for those that need none.

    Args:
        plain: computes the result or results again from the inputs, by PyTorch's operators, whose backward passes can
            be differentiated.
        inputs: the arguments of the operator. One of them may be a function of another, or another itself: each is
            passed on by a name of its own, so that its gradient is the partial one.
        above: the gradients of the results.
    """
    named = [x if x is None or not x.requires_grad else x.view_as(x) for x in inputs]
    leaves = [x for x in named if x is not None and x.requires_grad]
    gradients = iter(torch.autograd.grad(listed(plain(*named)), leaves, above, create_graph=True))
    return [None if x is None or not x.requires_grad else next(gradients) for x in named]


def differentiable(name: str, kernel: Kernel, shapes: Kernel, backward: Kernel, plain: Kernel, count: int, *,
                   keeps: bool = False) -> Kernel:
    """Declare ``kernel`` as an operator that keeps its arguments for its backward pass, which is an operator too.

    Args:
        name: of the operator; that of the backward pass ends in ``_backward``.
        kernel: as of `operator`.
        shapes: as of `operator`.
        backward: from the gradients of the results and the arguments to the gradients of the first ``count``
            arguments, tensors, an empty one for an argument that is None.
        plain: the results by PyTorch's operators, for a backward pass that is differentiated itself.
        count: see above.
        keeps: whether the last result is for the backward pass, which gets it after the arguments; it has no gradient.
    """
    def like(above: tuple[Tensor, ...], arguments: tuple[Any, ...]) -> Any:
        found = tuple(above[0].new_empty(0) if x is None else x.new_empty(x.shape) for x in arguments[:count])
        return found if count > 1 else found[0]

    def gradient(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)  # read once: what a checkpoint computes again it gives once
        given = [next(saved) if tensor else value for tensor, value in ctx.given]
        above: list[Any] = list(slopes[:results])
        if any(slope is None for slope in above):
            above = [torch.zeros_like(empty) if slope is None else slope
                     for slope, empty in zip(above, listed(shapes(*given)), strict=False)]
        others: list[None] = [None] * (len(given) - count)
        if torch.is_grad_enabled():
            return *again(lambda *first: plain(*first, *given[count:]), given[:count], *above), *others
        found = listed(work(*above, *given, *saved))
        return *(None if x is None else slope for x, slope in zip(given[:count], found, strict=True)), *others

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.given = [(isinstance(x, Tensor), None if isinstance(x, Tensor) else x) for x in inputs]
        kept = output[-1:] if keeps else ()
        ctx.set_materialize_grads(False)  # what is kept would get zeros
        ctx.mark_non_differentiable(*kept)
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)), *kept)

    declared = operator(name, kernel, shapes)
    results = len(declared._schema.returns) - keeps  # type: ignore[attr-defined]
    work = operator(f"{name}_backward", backward, lambda *given: like(given[:results], given[results:]))
    differentiate(name, gradient, save)
    return declared


def listed(results: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """The results of an operator of one or of several."""
    return (results,) if isinstance(results, Tensor) else results


def differentiate(name: str, gradient: Kernel, save: Kernel) -> None:
    """Give an operator a backward pass.

    Args:
        gradient: from (ctx, *gradients of the results) to the gradients of the arguments.
        save: called with (ctx, inputs, output); stores in ``ctx`` what ``gradient`` reads.
    """
    full = _full(name)
    torch.library.register_autograd(full, gradient, setup_context=save, lib=_OPERATORS.library(full))


LEAST = 1 << 18
"""Numbers in a result, 1 MiB in float32, below which the bookkeeping costs more than the memory is worth."""

Recipe: TypeAlias = Callable[[], Tensor]


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
