"""A step recorded as the list of its tensor operations.

Layers never branch on a tensor's values: which operations a call performs depends on shapes and plain Python facts
alone. So a step that agrees with an earlier one in these is the same list of operations on other tensors.
`FunctionRecorder`
records the list while a step runs; `weft.decoding.tape` replays it without the Python code around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self, final

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from weft.ops.native.sequence import NativeCall

FACTS = frozenset({"__get__", "__len__", "dim", "size", "stride", "numel", "nelement", "ndimension", "element_size",
                   "storage_offset", "get_device", "is_contiguous", "is_floating_point", "is_complex", "is_signed",
                   "is_inference", "is_same_size", "result_type", "is_tensor"})
"""Functions that return a tensor's shape, strides or type, and read no values."""
ON_DATA = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
"""PyTorch's tags of operators that read values on the host, or whose results have shapes that depend on values."""
COMPOSED = "CompositeImplicitAutograd"
"""PyTorch's dispatch key of operators that only call other operators."""
DENSE = frozenset({torch.strided, torch._mkldnn})  # type: ignore[attr-defined]
"""Layouts in which the shape determines how many numbers are stored."""


@final
class Ref(int):
    """The index of a tensor in `Recording.tensors`."""

    __slots__ = ()


@final
@dataclass(frozen=True, slots=True)
class Call:
    """One operation.

    Attributes:
        args: positional arguments, with a `Ref` in place of each tensor.
        takes: the tensors among its arguments.
        writes: the arguments that it writes to.
        outs: the tensors it returned; none for a function called for its effect.
        single: whether it returned one tensor rather than a sequence.
        expected: the truth value that it returned, where it converts a tensor to a bool; None elsewhere. A replay must
            return the same.
        in_c: what the call is in a sequence of native code; empty: it does not stand in one.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    takes: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    outs: tuple[Ref, ...]
    single: bool
    expected: bool | None
    in_c: tuple[NativeCall, ...] = ()

    def of(self, others: dict[Ref, Ref]) -> Call:
        """Return the same call with its tensors replaced as ``others`` maps them."""
        if others.keys().isdisjoint(self.takes):
            return self
        def other(ref: Ref) -> Ref:
            return others.get(ref, ref)

        return Call(self.function, mapped(self.args, other),
                    {key: mapped(each, other) for key, each in self.options.items()}, tuple(map(other, self.takes)),
                    tuple(map(other, self.writes)), self.outs, self.single, self.expected)


@final
@dataclass(frozen=True)
class Recording:
    """The calls of one step and their tensors.

    Attributes:
        calls: the calls in order.
        tensors: every tensor of the calls. The references keep them allocated, so that no identity is reused.
        places: the index in ``tensors`` of each, by `id`.
        produced: indices of the tensors that a call returned; the others existed before the step.
    """

    calls: list[Call] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    produced: set[int] = field(default_factory=set)

    def ref(self, tensor: Tensor) -> Ref:
        """Return the tensor's reference; a new tensor is appended."""
        if id(tensor) not in self.places:
            self.places[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return Ref(self.places[id(tensor)])


def name_of(function: Callable[..., Any]) -> str:
    """Return the function's ``__name__``, or an empty string."""
    return getattr(function, "__name__", "")


def refs_in(value: object) -> Iterator[Ref]:
    """Yield every `Ref` inside arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from refs_in(each)


def mapped(value: Any, function: Callable[[Ref], Any]) -> Any:
    """Return arguments with every `Ref` replaced by ``function`` of it."""
    if isinstance(value, Ref):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)(mapped(each, function) for each in value)
    return value


def _writes(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any],
            takes: Sequence[Ref]) -> tuple[Ref, ...]:
    """Return the tensors that a call writes to."""
    if isinstance(function, OpOverload):
        return tuple(takes) if function._schema.is_mutable else ()
    if isinstance(function, OpOverloadPacket):
        overloads = [getattr(function, name) for name in function.overloads()]
        return tuple(takes) if any(each._schema.is_mutable for each in overloads) else ()
    name = name_of(function)
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or options.get("inplace"):
        return tuple(refs_in(args[:1]))
    return tuple(refs_in(options["out"])) if "out" in options else ()


def storage_of(tensor: Tensor) -> int:
    """Return the address of the tensor's storage, equal for tensors that share memory; 0 for layouts without one."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


@final
class _OperatorMode(TorchDispatchMode):
    """Intercepts every operator that is dispatched, including those not called through a torch function.

    Attributes:
        on_data: the last operator that read values or whose result's shape depended on them; None if there was none.
        expected: whether values may be read now. True while a tensor is converted to a bool, since the tape checks that
            conversion at every replay.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_data: OpOverload | None = None
        self.expected = False

    def __torch_dispatch__(self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if not self.expected and _depends_on_data(func, args):
            self.on_data = func
        if _is_composed(func):
            # Without gradients PyTorch would run a composite operator's parts below this mode. Decomposing it here,
            # with the mode active again, intercepts each part.
            with self:
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@cache
def _is_composed(operator: OpOverload) -> bool:
    """Return whether the operator only calls other operators. PyTorch is asked once for each: asking takes longer than
    recording a call."""
    found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), COMPOSED)
    return found


def _depends_on_data(operator: OpOverload, args: tuple[Any, ...]) -> bool:
    """Return whether the operator reads values on the host, or its result's shape depends on them."""
    if operator is torch.ops.aten.index.Tensor:  # tagged because of boolean masks; integer indices fix the shape
        return any(index.dtype in (torch.bool, torch.uint8) for index in args[1] if index is not None)
    return not ON_DATA.isdisjoint(operator.tags)


@final
class FunctionRecorder(TorchFunctionMode):
    """Records the torch functions that are called in its block.

    Attributes:
        obstacle: why another step might differ from the recorded one, which makes the recording unusable; None if
            nothing stands against it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recording = Recording()
        self.obstacle: str | None = None
        self._operators = _OperatorMode()
        self._before: set[int] = set()  # storages that existed before the step
        self._made: set[int] = set()  # storages that the recorded calls allocated

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._operators.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._operators.__exit__(*error)  # type: ignore[no-untyped-call]
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._operators.on_data is not None:
            self.obstacle = f"{self._operators.on_data}: depends on values"

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        options = kwargs or {}
        self._operators.expected = name_of(func) == "__bool__"
        found = func(*args, **options)
        self._operators.expected = False
        outs = (found,) if isinstance(found, Tensor) else _sequence(found)
        if outs or (name_of(func) not in FACTS and _tensors((args, tuple(options.values())))):
            self._write(func, args, options, found, outs)
        return found

    def _write(self, function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], found: object,
               outs: tuple[Tensor, ...]) -> None:
        name, expected = name_of(function), None
        if name == "__bool__" and isinstance(found, bool):
            expected = found
        elif not outs and found is not None:
            self.obstacle = f"{name}: a value is read"
        takes: list[Ref] = []
        taken = tuple([self._enter(each, takes) for each in args])
        named = {key: self._enter(each, takes) for key, each in options.items()}
        writes = _writes(function, taken, named, takes)
        given = tuple([self._give(out) for out in outs])
        self.recording.calls.append(Call(function, taken, named, tuple(takes), writes, given,
                                         isinstance(found, Tensor), expected))

    def _enter(self, value: Any, takes: list[Ref]) -> Any:
        """Return an argument with a `Ref` in place of each tensor, and append these to ``takes``."""
        if isinstance(value, Tensor):
            takes.append(self._take(value))
            return takes[-1]
        if isinstance(value, tuple | list):
            return (list if isinstance(value, list) else tuple)([self._enter(each, takes) for each in value])
        return value

    def _take(self, tensor: Tensor) -> Ref:
        if id(tensor) not in self.recording.places:
            memory = storage_of(tensor)
            if memory and memory in self._made:
                self.obstacle = "a tensor in memory of this step that no recorded call returned"
            self._before.add(memory)
        return self.recording.ref(tensor)

    def _give(self, tensor: Tensor) -> Ref:
        if tensor.layout not in DENSE:
            self.obstacle = f"a tensor of layout {tensor.layout}: the size of its storage depends on values"
        if id(tensor) not in self.recording.places:
            self.recording.produced.add(len(self.recording.tensors))
            memory = storage_of(tensor)
            if memory not in self._before:
                self._made.add(memory)
        return self.recording.ref(tensor)


def _tensors(value: object) -> list[Tensor]:
    """Return every tensor inside arguments."""
    if isinstance(value, tuple | list):
        return [tensor for each in value for tensor in _tensors(each)]
    return [value] if isinstance(value, Tensor) else []


def _sequence(found: object) -> tuple[Tensor, ...]:
    """Return the tensors of a sequence that holds only tensors; an empty tuple for anything else."""
    if isinstance(found, tuple | list) and all(isinstance(each, Tensor) for each in found):
        return tuple(found)
    return ()
