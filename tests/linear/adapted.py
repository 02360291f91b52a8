"""Ways in which somebody changes what a linear map computes without changing its own parameters."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from weft.linear.linear import Linear


@final
class LowRank(nn.Linear):
    """W x + B A x, of rank 2 (Hu et al. 2022), trained or not."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.a = nn.Parameter(torch.randn(2, linear.in_features, dtype=linear.weight.dtype))
        self.b = nn.Parameter(torch.randn(linear.out_features, 2, dtype=linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.a), self.b)


@final
class Rounded(nn.Linear):
    """Multiplies by its weights rounded to eighths."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, (8 * self.weight).round() / 8, self.bias)


class Doubling(nn.Module):
    """A parametrisation."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def _hooked(linear: nn.Linear) -> nn.Linear:
    linear.register_forward_hook(lambda module, inputs, y: y + 1)
    return linear


def _hooked_before(linear: nn.Linear) -> nn.Linear:
    linear.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    return linear


def _replaced(linear: nn.Linear) -> nn.Linear:
    def tripled(self: nn.Linear, x: Tensor) -> Tensor:
        return 3 * F.linear(x, self.weight, self.bias)

    linear.forward = MethodType(tripled, linear)  # type: ignore[method-assign]
    return linear


def _parametrised(linear: nn.Linear) -> nn.Module:
    return parametrize.register_parametrization(linear, "weight", Doubling())


ADAPTERS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "low rank": LowRank, "rounded": Rounded, "hook": _hooked, "hook before": _hooked_before, "forward": _replaced,
    "parametrisation": _parametrised, "weight norm": parametrizations.weight_norm,
}


def adapt(model: nn.Module, name: str) -> Any:
    """``model`` with every linear map adapted; what is made of a map is seeded by its place."""
    for module in list(model.modules()):
        for index, (child_name, child) in enumerate(list(module.named_children())):
            if type(child) in (Linear, nn.Linear):
                torch.manual_seed(index)
                setattr(module, child_name, ADAPTERS[name](child))
    if name == "weight norm":  # it starts as the map itself
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("original0"):
                nn.init.uniform_(parameter, 1.0, 2.0)
    return model
