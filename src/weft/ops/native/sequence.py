"""Several calls of native code one after another, by one call from Python: what a step of decoding consists of.

Starting an operation from Python takes PyTorch some microseconds, and calling threads together for it as much again,
which is longer than most operations on one token take. So an operator that is written in C can declare how a recorded
call of it stands in a `Sequence`: `written` takes its arguments and its result, and returns the C function and its
arguments, a structure that begins with `CallHeader`. The sequence keeps these structures; what changes from run to
run are the addresses of a few tensors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.ops.native.library import ADDRESS, COUNT, Incomplete, NativeLibrary, code_of, instructions, loaded, structure

_COMPUTED, _NO_MEMORY = 0, 1
PARTS = 8
"""As in shared.h."""


CallHeader = structure(
    (COUNT, "next done pieces early_done failed threads entered"), (PARTS * COUNT, "at early_at"))
"""The first fields of every call's structure; `Shared` of shared.h."""


class NativeCall(NamedTuple):
    """A call in C.

    Attributes:
        function: its name without the instruction set, such as ``weft_product_call``.
        call: its arguments, with the number of its pieces in ``shared.pieces``.
        takes: the tensors whose addresses it is given, by the field that holds the address (``map.values``).
        results: the fields that hold the addresses of its results; none: it writes to one of ``takes``.
        holds: tensors besides, whose memory it works in.
    """

    function: str
    call: ctypes.Structure
    takes: Mapping[str, Tensor]
    results: tuple[str, ...]
    holds: tuple[Tensor, ...] = ()


Writer = Callable[..., NativeCall | tuple[NativeCall, ...] | None]
"""Takes the result of a recorded call, or the sequence of its results, and its arguments; returns what it is in C, or
None if this call cannot stand in a sequence."""
WRITERS: dict[Callable[..., Any], Writer] = {}
"""By the function that is recorded."""


def calls_of(writer: Writer, result: Any, *args: Any, **options: Any) -> tuple[NativeCall, ...]:
    """The calls in C of a recorded call; empty if it cannot stand in a sequence."""
    found = writer(result, *args, **options) or ()
    return (found,) if isinstance(found, NativeCall) else found


def written(function: Callable[..., Any]) -> Callable[[Writer], Writer]:
    """Declare how calls of a function stand in a sequence."""
    def declare(writer: Writer) -> Writer:
        WRITERS[function] = writer
        return writer

    return declare


@cache
def _offset(kind: type[ctypes.Structure], field: str) -> int:
    """The offset of a field in a structure, in bytes."""
    name, _, rest = field.partition(".")
    offset: int = getattr(kind, name).offset
    return offset + (_offset(next(each[1] for each in kind._fields_ if each[0] == name), rest) if rest else 0)


def place_of(call: ctypes.Structure, field: str, address: int | None = None) -> ctypes.c_void_p:
    """The place in a structure that holds an address, by names with dots between them; ``address`` is written to it."""
    place = ctypes.c_void_p.from_buffer(call, _offset(type(call), field))
    if address is not None:
        place.value = address
    return place


class _Entry(NamedTuple):
    """The entry points of the library, in the instruction set of this process: what runs sequences and single calls,
    the address of what runs them on several threads, and those of its functions."""

    run: Any
    one: Any
    parallel: int | None
    handle: ctypes.CDLL
    instructions: str
    known: dict[str, int]

    def address(self, function: str) -> int:
        """That of a function, by its name without the instruction set."""
        if function not in self.known:
            found = ctypes.cast(self.handle[f"{function}_{code_of(self.instructions)}"], ctypes.c_void_p).value
            assert found is not None, "a function of the library has an address"
            self.known[function] = found
        return self.known[function]


@cache
def entry() -> _Entry:
    """It is determined once: reading the environment would take as long as a small call."""
    found, library = instructions(), loaded()
    assert isinstance(found, str) and isinstance(library,
                                                 NativeLibrary), "calls are written only where there is a library"
    run, one = library.handle.weft_sequence, library.handle.weft_alone
    run.argtypes = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p, ctypes.c_long)
    one.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_void_p)
    return _Entry(run, one, library.parallel, library.handle, found, {})


def perform(one: NativeCall | tuple[NativeCall, ...] | None, *results: Tensor, threads: int = 1) -> None:
    """Run one call by itself; on one thread if it is short, since calling others together takes microseconds."""
    assert isinstance(one, NativeCall), "its arguments lie as the call takes them"
    for field, tensor in (*one.takes.items(), *zip(one.results, results, strict=True)):
        place_of(one.call, field, tensor.data_ptr())
    status = alone(one.function)(threads, ctypes.addressof(one.call))
    if status:
        raise failed(status)


@cache
def alone(function: str) -> Callable[[int, int], int]:
    """A function that runs one call of a function by itself, without a function of Python's besides: it takes the
    number of threads and the address of the call's structure, and returns 0, or what `failed` takes."""
    own = entry()
    return partial(own.one, own.parallel, own.address(function))


def failed(status: int) -> Exception:
    """The error for what a sequence returned, if it did not compute."""
    if status == _NO_MEMORY:
        return Incomplete("a step in C could not reserve the memory for its vectors. Give it fewer threads or a "
                          "smaller batch.")
    return IndexError("a line outside of the tensor that a step writes to.")


_Call = structure((ADDRESS, "work call"))
"""`Call` of sequence.c."""


class Calls:
    """A sequence of calls.

    Args:
        inputs: for each tensor that `__call__` is given, the places that hold its address.
        results: for each tensor that a run makes, one like it, and the places that hold its address.
    """

    def __init__(self, calls: Sequence[NativeCall], inputs: Iterable[Sequence[ctypes.c_void_p]],
                 results: Iterable[tuple[Tensor, Sequence[ctypes.c_void_p]]]) -> None:
        own = entry()
        self._calls, self._inputs, self._results = tuple(calls), tuple(map(tuple, inputs)), tuple(results)
        self._list = (_Call * len(calls))(*[_Call(own.address(each.function), ctypes.addressof(each.call))
                                            for each in calls])
        self._run, self._parallel = own.run, own.parallel
        self._at, self._count = ctypes.addressof(self._list), len(calls)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run all calls, and return the tensors that were made."""
        for tensor, places in zip(tensors, self._inputs, strict=True):
            address = tensor.data_ptr()
            for place in places:
                place.value = address
        made = []
        for like, own in self._results:
            made.append(torch.empty_like(like))
            for place in own:
                place.value = made[-1].data_ptr()
        self.run(torch.get_num_threads())
        return tuple(made)

    def run(self, threads: int) -> None:
        """Run all calls with the addresses that they have."""
        status = self._run(self._parallel, threads, self._at, self._count)
        if status != _COMPUTED:
            raise failed(status)
