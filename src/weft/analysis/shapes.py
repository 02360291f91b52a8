"""Running a model on shapes alone: tensors that know their size and claim to be on the CPU, and hold nothing.

Unlike the meta device, such tensors make every part choose the kernel that it would choose on the CPU, so operations
and saved activations are those of a real run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from weft.analysis.formulas import FOURIER, flops_of, has_formula, is_foreign, schema_of, skipped
from weft.core.layer import kept_dtypes
from weft.core.model import Model, ModelConfig, built_model


def shape_of(source: ModelConfig | Model, mode: FakeTensorMode, dtype: torch.dtype | None) -> Model:
    """The model without its numbers; ``source`` is not changed.

    Args:
        source: a configuration, or a model (its rewrites, such as adapters, are kept).
        mode: of the tensors.
        dtype: of the weights; None: the model's own.
    """
    return _emptied(source if isinstance(source, Model) else built_empty(source), mode, dtype)


def built_empty(config: ModelConfig) -> Model:
    """The model of a configuration on the meta device: enough to count its parameters, and ten times as fast as
    `shape_of`."""
    try:
        with torch.device("meta"):
            return built_model(config)
    except (RuntimeError, NotImplementedError, TypeError):
        # Models that look at numbers while they are built (tables of counts) are small before they are fitted.
        return built_model(config)


def _emptied(model: Model, mode: FakeTensorMode, dtype: torch.dtype | None) -> Model:
    """A copy whose parameters and buffers are shapes; what is shared stays shared."""
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


class Tally(TorchDispatchMode):
    """Counts operations, and answers the questions that a model asks of numbers which shapes do not have.

    Attributes:
        calls: paths of the modules that are being called, the innermost last.
        outside: whose operations those are that no module's call makes, set from outside.
        flops: by place, over all pairs where attention is concerned.
        skipped: operations in ``flops`` that the kernels leave out.
        fourier: by place, those of Fourier transforms.
        lengths: by place, tokens of the rows [B,T,D] that the module was last called with.
        uncounted: operators of others that no formula is known for.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[str] = []
        self.outside = ""
        self.flops: dict[str, int] = {}
        self.fourier: dict[str, int] = {}
        self.lengths: dict[str, int] = {}
        self.skipped = 0
        self.uncounted: set[str] = set()

    @property
    def place(self) -> str:
        """Whose operations these are."""
        return self.calls[-1] if self.calls else self.outside

    def total(self) -> int:
        """All operations."""
        return sum(self.flops.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        answer = _answer(func, args, given)
        if answer is not None:
            return answer
        result = func(*args, **given)
        packet = func._overloadpacket
        if has_formula(packet):
            self._count(packet, _positional(func, args, given), result)
        elif is_foreign(packet):
            self.uncounted.add(str(packet))
        return result

    def _count(self, packet: Any, arguments: list[Any], result: Any) -> None:
        cost = flops_of(packet, arguments, result)
        self.flops[self.place] = self.flops.get(self.place, 0) + cost
        self.skipped += skipped(packet, arguments)
        if str(packet) in FOURIER:
            self.fourier[self.place] = self.fourier.get(self.place, 0) + cost


def _positional(func: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """All arguments of a call in the schema's order, as far as they were given."""
    values = list(args)
    for name in schema_of(func)[len(values):]:
        if name not in kwargs:
            break
        values.append(kwargs[name])
    return values


def _answer(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A check on values holds. Choices of experts fall evenly, and no token is padding (the last bin, see
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
def tallied(model: nn.Module, mode: FakeTensorMode) -> Iterator[Tally]:
    """Count what happens inside, the innermost module that is being called taking each operation."""
    tally = Tally()

    def enter(path: str) -> Any:
        def hook(module: nn.Module, inputs: Any) -> None:
            tally.calls.append(path)
            if inputs and isinstance(inputs[0], Tensor) and inputs[0].dim() == 3:
                tally.lengths[path] = inputs[0].shape[1]

        return hook

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        tally.calls.pop()

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(enter(path)).remove)
            hooks.callback(module.register_forward_hook(leave).remove)
        hooks.enter_context(mode)
        hooks.enter_context(tally)
        yield tally
