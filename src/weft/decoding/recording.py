"""A step written down as the tensor operations it comes to.

Layers never choose by reading a tensor: which operations a call comes to depends on shapes and plain facts alone. So a
step that agrees with an earlier one in these is the same list of operations on other tensors. `Recorder` writes the
list down while a step runs; `weft.decoding.tape` plays it again without the Python around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, final

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

FACTS = frozenset({"__get__", "__len__", "dim", "size", "stride", "numel", "nelement", "ndimension", "element_size",
                   "storage_offset", "get_device", "is_contiguous", "is_floating_point", "is_complex", "is_signed",
                   "is_inference", "is_same_size", "result_type", "is_tensor"})
"""What tells shapes, strides and types, not values."""
ON_DATA = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
"""How PyTorch marks operators that read values on the host, or whose results have shapes that depend on values."""
COMPOSED = "CompositeImplicitAutograd"
"""What PyTorch calls operators that do nothing but call others."""
DENSE = frozenset({torch.strided, torch._mkldnn})  # type: ignore[attr-defined]
"""Layouts whose sizes the shape tells."""


@final
class Ref(int):
    """The place of a tensor in `Recording.tensors`."""

    __slots__ = ()


@final
@dataclass(frozen=True, slots=True)
class Call:
    """One operation.

    Attributes:
        function: of torch.
        args: positional arguments, a `Ref` for each tensor.
        options: named arguments, likewise.
        takes: the tensors among its arguments.
        writes: those of them that it writes into.
        outs: the tensors it gave; none for what works by its effect.
        single: it gave one tensor, not a sequence.
        expected: what it must say again, where it says whether a tensor is true; None elsewhere.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    takes: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    outs: tuple[Ref, ...]
    single: bool
    expected: bool | None

    def of(self, others: dict[Ref, Ref]) -> Call:
        """The same call of other tensors, where ``others`` has any for those it takes."""
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
    """What was written down.

    Attributes:
        calls: in order.
        tensors: every tensor that was met, kept alive.
        places: of each of them, by its identity.
        produced: places of those that a call gave; the others were there before.
    """

    calls: list[Call] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    produced: set[int] = field(default_factory=set)

    def ref(self, tensor: Tensor) -> Ref:
        """Where a tensor stands; it is entered if it was not met."""
        if id(tensor) not in self.places:
            self.places[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
        return Ref(self.places[id(tensor)])


def name_of(function: Callable[..., Any]) -> str:
    """A function's own name."""
    return getattr(function, "__name__", "")


def refs_in(value: object) -> Iterator[Ref]:
    """Every `Ref` inside arguments."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from refs_in(each)


def mapped(value: Any, function: Callable[[Ref], Any]) -> Any:
    """Arguments with ``function`` of every `Ref` in its place."""
    if isinstance(value, Ref):
        return function(value)
    if isinstance(value, tuple | list):
        return type(value)(mapped(each, function) for each in value)
    return value


def _writes(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any],
            takes: Sequence[Ref]) -> tuple[Ref, ...]:
    """The tensors that a call writes into."""
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
    """The same for tensors that share memory; 0 for those that have none that could be shared."""
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


@final
class _Operators(TorchDispatchMode):
    """Sees every operator that torch's functions come to, also where no function of torch's was called.

    Attributes:
        on_data: the last one that reads values or gives a shape that depends on them; None: there was none.
        expected: values may be read now, since what they say is asked again whenever the step is played.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_data: OpOverload | None = None
        self.expected = False

    def __torch_dispatch__(self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if not self.expected and _depends_on_data(func, args):
            self.on_data = func
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), COMPOSED):
            with self:  # of other operators, which without gradients would not be seen one by one
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _depends_on_data(operator: OpOverload, args: tuple[Any, ...]) -> bool:
    """The operator reads values on the host, or gives a shape that depends on them."""
    if operator is torch.ops.aten.index.Tensor:  # it is marked for its masks; other indices give their own shape
        return any(index.dtype in (torch.bool, torch.uint8) for index in args[1] if index is not None)
    return not ON_DATA.isdisjoint(operator.tags)


@final
class Recorder(TorchFunctionMode):
    """Writes down the torch functions that are called in its block.

    Attributes:
        recording: what was written down.
        obstacle: what was met that another step might do otherwise; the recording is then worth nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recording = Recording()
        self.obstacle: str | None = None
        self._operators = _Operators()
        self._before: set[int] = set()
        self._made: set[int] = set()

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
        """An argument with a `Ref` for each tensor; these join ``takes``."""
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
                self.obstacle = "a tensor of the step's own that no call gave"
            self._before.add(memory)
        return self.recording.ref(tensor)

    def _give(self, tensor: Tensor) -> Ref:
        if tensor.layout not in DENSE:
            self.obstacle = f"a tensor of layout {tensor.layout}: how much it holds depends on values"
        if id(tensor) not in self.recording.places:
            self.recording.produced.add(len(self.recording.tensors))
            memory = storage_of(tensor)
            if memory not in self._before:
                self._made.add(memory)
        return self.recording.ref(tensor)


def _tensors(value: object) -> list[Tensor]:
    """Every tensor inside arguments."""
    if isinstance(value, tuple | list):
        return [tensor for each in value for tensor in _tensors(each)]
    return [value] if isinstance(value, Tensor) else []


def _sequence(found: object) -> tuple[Tensor, ...]:
    """The tensors of a sequence of tensors; none of anything else."""
    if isinstance(found, tuple | list) and all(isinstance(each, Tensor) for each in found):
        return tuple(found)
    return ()
