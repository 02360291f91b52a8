"""Optimisers in a run's configuration. The learning rate is the peak that the schedule multiplies."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from weft.core.config import rule
from weft.core.model import Model
from weft.core.part_config import About, PartConfig
from weft.core.registry import register
from weft.parallel.layout import as_sharded
from weft.training.parameter_groups import PLACE, GroupSettings, blocks_of, depths, group_of, group_problems, labelled


class OptimizerConfig(PartConfig):
    """Base of an optimiser's configuration.

    Class attributes:
        transfers: whether it divides by the size of gradients as Adam does, for which the rates of
            `weft.models.width_transfer` hold.

    Attributes:
        lr: peak learning rate.
        dynamics_lr: factor of the learning rate of `Declared.dynamics`, such as the modes and steps of state-space
            models (Gu et al. 2022 train them with a lower one).
        layer_decay: factor of the learning rate from each block to the one below it: the parameters above the blocks
            have the whole rate, block l of L (from 1) layer_decay^(L+1-l) of it, embeddings and what else lies before
            the blocks layer_decay^(L+1). Howard and Ruder 2018, section 3.2, take 1/2.6.
        groups: parameters with a rate or decay of their own, see `weft.training.parameter_groups.GroupSettings`.
    """

    group: ClassVar[str] = "optimizer"
    transfers: ClassVar[bool] = False

    lr: float = Field(default=1e-3, gt=0)

    dynamics_lr: float = Field(default=1.0, gt=0)
    layer_decay: float = Field(default=1.0, gt=0, le=1)
    groups: list[GroupSettings] = Field(default_factory=list)

    @abstractmethod
    def create(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of a model's parameters."""

    def problems(self, model: nn.Module) -> list[str]:
        """Why this optimiser cannot train the model as configured; each names the field concerned."""
        found = list(group_problems(model, self.groups))
        if self.layer_decay != 1.0 and not blocks_of(model):
            found.append(f"{PLACE}.layer_decay: {self.layer_decay:g}, and this model has no blocks. Leave it out.")
        if isinstance(model, Model) and model.rate_factors and not self.transfers:
            found.append(f"{PLACE}.kind: {self.kind!r}, while model.parametrization is for Adam, whose updates have "
                         "one size. Use adamw, or leave the parametrization out.")
        return found

    def parameter_groups(self, model: nn.Module, weight_decay: float, *,
                         others: float | None = None) -> list[dict[str, Any]]:
        """The trained parameters in groups of one learning rate and decay. A group's ``factor`` multiplies the
        learning rate.

        Args:
            weight_decay: of matrices, readouts and embeddings; vectors and `Declared.dynamics` have none.
            others: the peak rate of all parameters but the matrices of hidden linear maps (`Labelled.hidden`), which
                then are in groups whose ``hidden`` is true; None: every parameter has ``lr``.
        """
        below = depths(model) if self.layer_decay != 1.0 else {}
        rates = model.rate_factors if isinstance(model, Model) else {}
        groups: dict[tuple[bool, bool, float, float], dict[str, Any]] = {}
        for each in labelled(model):
            hidden, own = each.hidden and others is not None, group_of(each, self.groups)
            lr = self.lr if hidden or others is None else others
            factor = lr / self.lr * (self.dynamics_lr if each.kind == "dynamics" else 1.0)
            decay = 0.0 if each.kind in ("vectors", "dynamics") else weight_decay
            if own is not None:
                factor = factor if own.lr is None else own.lr / self.lr
                decay = decay if own.weight_decay is None else own.weight_decay
            transferred = rates.get(each.name, 1.0)
            factor, decay = factor * transferred, decay / transferred
            factor *= self.layer_decay ** below.get(id(each.parameter), 0)
            # torch's fused kernels take parameters of which all or none are sharded.
            key = (hidden, as_sharded(each.parameter) is not None, decay, factor)
            group = groups.setdefault(key, {"params": [], "weight_decay": decay, "factor": factor, "hidden": hidden})
            group["params"].append(each.parameter)
        return list(groups.values())


@register
class AdamWConfig(OptimizerConfig):
    """Adam with decoupled weight decay.

        m <- beta1 m + (1-beta1) g;  v <- beta2 v + (1-beta2) g^2;  w <- w - lr (m^ / (sqrt(v^) + eps) + weight_decay w)

    Matrices (embeddings too) decay; vectors such as biases and gains, and `Declared.dynamics`, do not.

    Attributes:
        beta1: decay of the average of gradients m, for each step.
        beta2: decay of the average of squared gradients v, for each step.
        eps: added to the root of v, in units of the gradient.
        weight_decay: share of a weight that a step of size lr = 1 takes away.
    """

    kind: ClassVar[str] = "adamw"
    transfers: ClassVar[bool] = True
    about = About(
        source="Loshchilov and Hutter 2019, algorithm 2",
        equation=(r"m \leftarrow \beta_1 m + (1 - \beta_1) g, \quad v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \quad "
                  r"w \leftarrow w - \eta \left( \frac{\hat{m}}{\sqrt{\hat{v}} + \epsilon} + \lambda w \right)"),
        differs=(("sgd", "every weight has a step size of its own, by the size of its gradients."),
                 ("muon", "treats a matrix as so many numbers.")))

    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)

    def create(self, model: nn.Module) -> torch.optim.Optimizer:
        # The fused kernel takes a third of the time of the others but does not support complex numbers.
        fused = not any(p.is_complex() for p in model.parameters())
        return torch.optim.AdamW(self.parameter_groups(model, self.weight_decay), lr=self.lr,
                                 betas=(self.beta1, self.beta2), eps=self.eps, fused=fused)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(lr=1e-2, dynamics_lr=0.1, beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.0)]


@register
class SGDConfig(OptimizerConfig):
    """Stochastic gradient descent, with or without momentum. The default rate is that of Zaremba et al. 2014 (section
    4) for language models whose gradients are clipped; with momentum a smaller one does.

        u <- momentum u + g + weight_decay w;  w <- w - lr u      (nesterov: w <- w - lr (g + momentum u))

    Attributes:
        momentum: share of the last update that is kept, for each step; 0: none.
        nesterov: whether the gradient is added to the momentum once more.
        weight_decay: factor of the weights that is added to their gradients.
    """

    kind: ClassVar[str] = "sgd"
    about = About(
        source="Robbins and Monro 1951; Sutskever et al. 2013 (momentum, Nesterov's form)",
        equation=r"u \leftarrow \mu u + g + \lambda w, \qquad w \leftarrow w - \eta u",
        differs=(("adamw", "all weights have one step size, and the decay is part of the gradient."),))

    lr: float = Field(default=1.0, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise rule("nesterov", "true without momentum.", "Set momentum, such as 0.9, or leave nesterov out.")
        return self

    def create(self, model: nn.Module) -> torch.optim.Optimizer:
        groups = self.parameter_groups(model, self.weight_decay)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(lr=0.5, momentum=0.9, nesterov=True, weight_decay=1e-4)]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group the learning rate ``lr``, times the group's own factor where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("factor", 1.0)
