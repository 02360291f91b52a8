"""Running a model on fake tensors, which have a shape, a dtype and the CPU as their device, but no data.

With these, unlike with tensors on the meta device, every part chooses the kernel that it chooses on the CPU, so that
operations and saved activations are those of a real run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from weft.analysis.formulas import FOURIER, formula_of, is_foreign, schema_of, skipped
from weft.core.empty_model import built_empty
from weft.core.layer import kept_dtypes
from weft.core.model import Model, ModelConfig


def shape_of(source: ModelConfig | Model, mode: FakeTensorMode, dtype: torch.dtype | None) -> Model:
    """The model with fake tensors as its parameters and buffers; ``source`` is not changed.

    Args:
        source: a configuration, or a model with its rewrites.
        mode: the mode of the fake tensors.
        dtype: the dtype of the weights; None: the model's own.
    """
    return _emptied(source if isinstance(source, Model) else built_empty(source), mode, dtype)


def _emptied(model: Model, mode: FakeTensorMode, dtype: torch.dtype | None) -> Model:
    """A copy with fake tensors as parameters and buffers; tensors that are shared stay shared."""
    kept = kept_dtypes(model)
    twins: dict[int, object] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        own = dtype is None or not tensor.is_floating_point()
        twins[id(tensor)] = _twin(tensor, mode, tensor.dtype if own or dtype is None else kept.after(tensor, dtype))
    return copy.deepcopy(model, twins)


def _twin(tensor: Tensor, mode: FakeTensorMode, dtype: torch.dtype) -> Tensor:
    with mode:
        empty = torch.empty(tensor.shape, dtype=dtype)
        return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


class ValuesRead(TorchDispatchMode):
    """Supplies the values that a model reads and that fake tensors do not have."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        value = _value(func, args, named) if func in READING else None
        return func(*args, **named) if value is None else value


class OperationCounter(ValuesRead):
    """Counts operations.

    Attributes:
        calls: paths of the modules that are being called, the innermost last.
        outside: the path to which operations outside of any module's call are attributed.
        flops: operations by path; attention counts all pairs.
        skipped: operations in ``flops`` that the kernels leave out.
        fourier: operations of Fourier transforms by path.
        lengths: by path, the tokens of the rows [B,T,D] that the module was last called with.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.outside = ""
        self.flops: dict[str, int] = {}
        self.fourier: dict[str, int] = {}
        self.lengths: dict[str, int] = {}
        self.skipped = 0
        self._formulas: dict[Any, Any] = {}  # `formula_of` each operator

    def uncounted(self) -> list[str]:
        """Operators from outside PyTorch without a formula that were called."""
        return sorted([str(each) for each, formula in self._formulas.items() if formula is None and is_foreign(each)])

    def total(self) -> int:
        """The number of all operations."""
        return sum(self.flops.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        value = _value(func, args, named) if func in READING else None
        if value is not None:
            return value
        result = func(*args, **named)
        packet = func._overloadpacket
        if packet not in self._formulas:
            self._formulas[packet] = formula_of(packet)
        formula = self._formulas[packet]
        if formula is not None:
            arguments = _positional(func, args, named) if named else args
            cost = formula(arguments, result)
            if cost:  # not element-wise work, which is not counted, also where one operator does all of it
                self._count(packet, arguments, cost)
        return result

    def _count(self, packet: Any, arguments: Sequence[Any], cost: int) -> None:
        place = self.calls[-1] if self.calls else self.outside
        self.flops[place] = self.flops.get(place, 0) + cost
        self.skipped += skipped(packet, arguments)
        if str(packet) in FOURIER:
            self.fourier[place] = self.fourier.get(place, 0) + cost


def _positional(func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a call in the schema's order, up to the first that was omitted."""
    values = list(args)
    for name in schema_of(func)[len(values):]:
        if name not in kwargs:
            break
        values.append(kwargs[name])
    return values


READING = frozenset({torch.ops.aten._local_scalar_dense.default, torch.ops.aten.bincount.default})
"""Operators that read data of a tensor."""


def _value(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The value of one of the operators of `READING`; None where it reads data that there is. Boolean checks are true,
    the choices of experts are spread evenly, and no token is padding (the last bin, see
    `weft.ops.expert_dispatch.grouped`)."""
    if func is torch.ops.aten._local_scalar_dense.default and args[0].dtype is torch.bool:
        return True
    if func is torch.ops.aten.bincount.default and isinstance(args[0], FakeTensor):
        count = args[0].numel()
        bins = (kwargs.get("minlength") or args[2]) - 1
        with _disable_current_modes():
            return torch.tensor([*(count // bins + (index < count % bins) for index in range(bins)), 0])
    return None


@contextmanager
def tallied(model: nn.Module, mode: FakeTensorMode) -> Iterator[OperationCounter]:
    """Count the operations inside the block; each is attributed to the innermost module that is being called."""
    tally = OperationCounter()

    def enter(path: str, module: nn.Module, inputs: Any) -> None:
        tally.calls.append(path)
        if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim() == 3:
            tally.lengths[path] = inputs[0].shape[1]

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        tally.calls.pop()

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(partial(enter, path)).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        hooks.enter_context(mode)
        hooks.enter_context(tally)
        yield tally
