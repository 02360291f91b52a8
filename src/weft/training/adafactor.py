"""Adafactor: step sizes relative to the size of the parameters, and second moments that are kept in less memory, or
averaged over a growing window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.part_config import About
from weft.core.registry import register
from weft.parallel.layout import whole
from weft.training.optimizers import OptimizerConfig
from weft.training.parameter_groups import PLACE


@register
class AdafactorConfig(OptimizerConfig):
    """Adafactor with factored second moments: `torch.optim.Adafactor`. For a matrix G of gradients in step t:

        R <- R + t^-e (rowmeans(G^2) - R);  C <- C + t^-e (columnmeans(G^2) - C);  V = R C / mean(R)
        U = G / sqrt(V);  W <- W - min(lr, 1/sqrt(t)) max(eps, RMS(W)) U / max(1, RMS(U) / d) - lr weight_decay W

    RMS is the root mean square of all entries. Of a matrix [n,m] only n + m numbers are kept; a vector keeps its V. In
    a tensor of more dimensions every matrix of the last two is factored. The decay is applied first. There is no
    momentum. A bound below V keeps the root from zero (torch: the spacing of the dtype).

    Attributes:
        lr: largest step relative to the size of a parameter.
        decay_exponent: e; the averages have a window that grows as t^e.
        min_scale: eps, smallest size that a parameter's step is relative to.
        clip_threshold: d, largest root mean square of U.
        weight_decay: of matrices.
    """

    kind: ClassVar[str] = "adafactor"
    about = About(
        source="Shazeer and Stern 2018, algorithms 4 and 5, as in torch.optim.Adafactor",
        equation=(r"V = \frac{R\, C}{\operatorname{mean}(R)}, \quad U = \frac{G}{\sqrt{V}}, \quad W \leftarrow W - "
                  r"\min\left(\eta, \tfrac{1}{\sqrt{t}}\right) \max(\epsilon, \operatorname{RMS}(W)) \frac{U}{\max(1, "
                  r"\operatorname{RMS}(U) / d)} - \eta \lambda W"),
        differs=(("adamw", "keeps n + m numbers of a matrix in place of 2 n m, has no momentum, and its steps are "
                           "relative to the size of the weights."),
                 ("adafactor_unfactored", "the second moments are factored.")))

    lr: float = Field(default=1e-2, gt=0)
    decay_exponent: float = Field(default=0.8, ge=0)
    min_scale: float = Field(default=1e-3, ge=0)
    clip_threshold: float = Field(default=1.0, ge=1)
    weight_decay: float = Field(default=0.0, ge=0)

    def problems(self, model: nn.Module) -> list[str]:
        return [*super().problems(model), *_complex_problems(model, self.kind)]

    def create(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(self.parameter_groups(model, self.weight_decay), lr=self.lr,
                                     beta2_decay=-self.decay_exponent, eps=(None, self.min_scale),
                                     d=self.clip_threshold)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(lr=3e-2, decay_exponent=0.5, min_scale=1e-2, clip_threshold=2.0, weight_decay=0.1)]


@register
class UnfactoredAdafactorConfig(OptimizerConfig):
    """Adafactor without factored moments, with momentum and a decay that follows the rate, as PaLM was trained: Adam
    whose steps are relative to the size of each parameter, and whose window of second moments grows. In step k:

        beta2 = 1 - k^-e;  v <- beta2 v + (1-beta2) (g^2 + 1e-30);  u = g / sqrt(v)
        a = lr max(eps, RMS(w)) / max(1, RMS(u) / d);  m <- beta1 m + (1-beta1) a u;  w <- w - m - weight_decay lr^2 w

    RMS is the root mean square of all entries of a tensor. PaLM keeps lr at 1e-2 for 10,000 steps and lets it fall as
    1/sqrt(k) then. Momentum averages the scaled steps, as Adafactor's does, not the gradients, and has no correction
    for its start at zero. The term 1e-30, eps and d are Adafactor's; PaLM does not mention them.

    Attributes:
        lr: learning rate of a parameter whose entries have a root mean square of 1.
        decay_exponent: e.
        beta1: of the momentum; 0: none is kept.
        min_scale: eps, smallest size that a parameter's step is relative to.
        clip_threshold: d, largest root mean square of u; None: any.
        weight_decay: factor of lr^2, with the group's current lr, in the decay of matrices.
    """

    kind: ClassVar[str] = "adafactor_unfactored"
    about = About(
        also_called=("palm",),
        source=("Chowdhery et al. 2022 (PaLM), section 5; Shazeer and Stern 2018, sections 5 to 8 (step sizes "
                "relative to parameters, clipped updates, growing window)"),
        equation=(r"v \leftarrow \beta_{2,k} v + (1 - \beta_{2,k}) g^2, \quad u = \frac{g}{\sqrt{v}}, \quad m "
                  r"\leftarrow \beta_1 m + (1 - \beta_1)\, a\, u, \quad w \leftarrow w - m - \lambda \eta^2 w, \quad "
                  r"\beta_{2,k} = 1 - k^{-e}"),
        differs=(("adafactor", "keeps all second moments and a momentum."),
                 ("adamw", "its steps are relative to the size of the weights, and its window of second moments "
                           "grows.")))

    lr: float = Field(default=1e-2, gt=0)
    decay_exponent: float = Field(default=0.8, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    min_scale: float = Field(default=1e-3, ge=0)
    clip_threshold: float | None = Field(default=1.0, gt=0)
    weight_decay: float = Field(default=1.0, ge=0)

    def problems(self, model: nn.Module) -> list[str]:
        return [*super().problems(model), *_complex_problems(model, self.kind)]

    def create(self, model: nn.Module) -> torch.optim.Optimizer:
        return UnfactoredAdafactor(self.parameter_groups(model, self.weight_decay), self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(lr=3e-2, decay_exponent=0.5, beta1=0.0, min_scale=1e-2, clip_threshold=None,
                           weight_decay=0.0)]


class UnfactoredAdafactor(torch.optim.Optimizer):
    """See `UnfactoredAdafactorConfig`. The state of a parameter is the number of its steps, its second moments, and
    with momentum the averaged step.

    Args:
        groups: of parameters, with a ``weight_decay`` each.
    """

    def __init__(self, groups: list[dict[str, Any]], config: UnfactoredAdafactorConfig) -> None:
        super().__init__(groups, {"lr": config.lr})
        self.config = config

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    moved = self._moved(parameter, parameter.grad, group["lr"])
                    parameter.mul_(1 - group["weight_decay"] * group["lr"] ** 2).sub_(moved)
        return loss

    def _moved(self, parameter: Tensor, gradient: Tensor, lr: float) -> Tensor:
        """The update that is subtracted from a parameter besides its decay."""
        config, state = self.config, self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["variance"] = torch.zeros_like(parameter)
            if config.beta1 > 0:
                state["momentum"] = torch.zeros_like(parameter)
        state["step"] += 1
        state["variance"].lerp_(gradient.square() + 1e-30, float(state["step"]) ** -config.decay_exponent)
        update: Tensor = gradient * state["variance"].rsqrt()
        rate = lr * max(config.min_scale, root_mean_square(parameter))
        if config.clip_threshold is not None:
            rate /= max(1.0, root_mean_square(update) / config.clip_threshold)
        if config.beta1 == 0:
            return update * rate
        state["momentum"].lerp_(update * rate, 1 - config.beta1)
        moved: Tensor = state["momentum"]
        return moved


def root_mean_square(tensor: Tensor) -> float:
    """The root mean square of all entries of a tensor, also of one that FSDP2 shards; 0 of none."""
    return float(whole(tensor.norm())) / math.sqrt(max(1, tensor.numel()))


def _complex_problems(model: nn.Module, kind: str) -> list[str]:
    names = [name for name, parameter in model.named_parameters() if parameter.is_complex()]
    return [f"{PLACE}.kind: {kind}, which does not train complex numbers such as {names[0]}. Use adamw."
            ] if names else []
