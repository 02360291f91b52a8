"""Running a model on fake tensors, which have a shape, a dtype and the CPU as their device, but no data.

With these, unlike with tensors on the meta device, every part chooses the kernel that it chooses on the CPU, so that
operations and saved activations are those of a real run.

Floating-point operations of one operator call, from the shapes of its tensors. A multiplication and an addition are
two. Element-wise work, reductions, sorting and copying are not counted.

`torch.utils.flop_counter.flop_registry` has formulas for matrix products and convolutions; `FORMULAS` adds Fourier
transforms and the CPU's attention kernel. Forms declare the formulas of their own operators (`weft.ops.forms`).
`skipped` gives the operations of a call that its kernel leaves out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from weft.core.base_model import built_empty
from weft.core.layer import kept_dtypes
from weft.core.model import Model, ModelConfig
from weft.ops.banded_attention import banded_backward_skipped, banded_skipped
from weft.ops.fft_convolution import fourier
from weft.ops.forms import OPERATIONS, Formula
from weft.ops.native_attention import native_backward_skipped, native_skipped


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

    supports_higher_order_operators = True

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
        packet = func if isinstance(func, torch._ops.HigherOrderOperator) else func._overloadpacket
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


def formula_of(operator: Any) -> Callable[[Sequence[Any], Any], int] | None:
    """A function from the positional arguments and the result of a call to its operations; None for an operator whose
    calls are not counted.

    Args:
        operator: an overload packet, such as ``torch.ops.aten.mm``.
    """
    own = FORMULAS.get(str(operator)) or OPERATIONS.formula(str(operator))
    if own is not None:
        return lambda arguments, result: own(*arguments)
    from torch.utils.flop_counter import flop_registry  # imports Triton, which takes a third of a second

    known: Formula | None = flop_registry.get(operator)
    return None if known is None else lambda arguments, result: known(*arguments, out_val=result)


def skipped(operator: Any, arguments: Sequence[Any]) -> int:
    """The operations of attention over all pairs that the kernel leaves out: those of a query and a later key, or of
    pairs outside a band."""
    name = str(operator)
    if name in OUTSIDE:
        return OUTSIDE[name](*arguments)
    if name not in CAUSAL_FLAG or not (len(arguments) > CAUSAL_FLAG[name] and arguments[CAUSAL_FLAG[name]]):
        return 0
    steps: int = arguments[1].shape[2]
    return FORMULAS[name](*arguments) * (steps - 1) // (2 * steps)


def attention(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """q.k and weights.v over all pairs, [B,H,T,E] against [B,K,S,E] and [B,K,S,F]."""
    batch, heads, steps, size = q.shape
    return 2 * batch * heads * steps * k.shape[2] * (size + v.shape[3])


def _attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> int:
    """The scores again, then gradients of v, weights, q and k: three products of width E, two of width F."""
    batch, heads, steps, size = q.shape
    return 2 * batch * heads * steps * k.shape[2] * (3 * size + 2 * v.shape[3])


def _real_to_complex(x: Tensor, dims: Sequence[int], *_: Any) -> int:
    """A real transform costs half a complex one."""
    size = math.prod(x.shape[d] for d in dims)
    return fourier(size, x.numel() // max(size, 1)) // 2


def _complex_to_real(x: Tensor, dims: Sequence[int], normalization: int, last: int) -> int:
    size = math.prod([x.shape[d] for d in dims[:-1]]) * last
    return fourier(size, x.numel() // max(math.prod(x.shape[d] for d in dims), 1)) // 2


def _complex_to_complex(x: Tensor, dims: Sequence[int], *_: Any) -> int:
    size = math.prod(x.shape[d] for d in dims)
    return fourier(size, x.numel() // max(size, 1))


def _dot(a: Tensor, b: Tensor) -> int:
    return 2 * a.numel()


def _triangular(system: Tensor, right: Tensor, *_: Any) -> int:
    """Half of the product of the matrix and the right side."""
    return right.numel() * system.shape[-1]


FORMULAS: dict[str, Formula] = {"aten._fft_r2c": _real_to_complex, "aten._fft_c2r": _complex_to_real,
                                "aten._fft_c2c": _complex_to_complex,
                                "aten._scaled_dot_product_flash_attention_for_cpu": attention,
                                "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
                                "aten.linalg_solve_triangular": _triangular, "aten.mv": _dot, "aten.dot": _dot}

CAUSAL_FLAG = {"aten._scaled_dot_product_flash_attention_for_cpu": 4,
               "aten._scaled_dot_product_flash_attention_for_cpu_backward": 7}
"""The position of the causal flag among the arguments of these kernels."""

OUTSIDE: dict[str, Formula] = {"weft.banded_attention": banded_skipped,
                               "weft.banded_attention_backward": banded_backward_skipped,
                               "weft.native_attention": native_skipped,
                               "weft.native_attention_backward": native_backward_skipped}

FOURIER = frozenset({"aten._fft_r2c", "aten._fft_c2r", "aten._fft_c2c", "weft.fft_convolution"})
"""Operators of mixers that convolve over the whole sequence by Fourier transform."""


def is_foreign(operator: Any) -> bool:
    """Whether an operator is not one of PyTorch's own, so that only its author can give a formula."""
    return not str(operator).startswith(("aten.", "prim.", "prims.", "profiler."))


def schema_of(overload: torch._ops.OpOverload) -> list[str]:
    """The names of an operator's arguments, in order."""
    return [argument.name for argument in overload._schema.arguments]
