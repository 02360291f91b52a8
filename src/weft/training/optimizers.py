"""Optimisers in a run's configuration. The learning rate is the peak that the schedule multiplies."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import nn

from weft.core.config import rule
from weft.core.layer import Part
from weft.core.part_config import PartConfig
from weft.core.registry import register


class OptimizerConfig(PartConfig):
    """Base of an optimiser's configuration.

    Attributes:
        lr: peak learning rate.
        dynamics_lr: factor of the learning rate of `Part.dynamics`, such as the modes and steps of state-space models
            (Gu et al. 2022 train them with a lower one).
    """

    group: ClassVar[str] = "optimizer"

    lr: float = Field(default=1e-3, gt=0)

    dynamics_lr: float = Field(default=1.0, gt=0)

    @abstractmethod
    def create(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of a model's parameters."""


@register
class AdamWConfig(OptimizerConfig):
    """Adam with decoupled weight decay.

        m <- beta1 m + (1-beta1) g;  v <- beta2 v + (1-beta2) g^2;  w <- w - lr (m^ / (sqrt(v^) + eps) + weight_decay w)

    Matrices (embeddings too) decay; vectors such as biases and gains, and `Part.dynamics`, do not.
    """

    kind: ClassVar[str] = "adamw"
    source: ClassVar[str] = "Loshchilov and Hutter 2019, algorithm 2"

    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)

    def create(self, model: nn.Module) -> torch.optim.Optimizer:
        # The fused kernel takes a third of the time of the others but does not support complex numbers.
        fused = not any(p.is_complex() for p in model.parameters())
        return torch.optim.AdamW(parameter_groups(model, self.weight_decay, self.dynamics_lr), lr=self.lr,
                                 betas=(self.beta1, self.beta2), eps=self.eps, fused=fused)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(lr=1e-2, dynamics_lr=0.1, beta1=0.8, beta2=0.99, eps=1e-6, weight_decay=0.0)]


@register
class SGDConfig(OptimizerConfig):
    """Stochastic gradient descent, with or without momentum.

        u <- momentum u + g + weight_decay w;  w <- w - lr u      (nesterov: w <- w - lr (g + momentum u))
    """

    kind: ClassVar[str] = "sgd"
    source: ClassVar[str] = "Robbins and Monro 1951; Sutskever et al. 2013 (momentum, Nesterov's form)"

    lr: float = Field(default=0.1, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise rule("nesterov", "true without momentum.", "Set momentum, such as 0.9, or leave nesterov out.")
        return self

    def create(self, model: nn.Module) -> torch.optim.Optimizer:
        groups = parameter_groups(model, self.weight_decay, self.dynamics_lr)
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.nesterov)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(lr=0.5, momentum=0.9, nesterov=True, weight_decay=1e-4)]


def parameter_groups(model: nn.Module, weight_decay: float, dynamics_lr: float = 1.0) -> list[dict[str, Any]]:
    """Parameter groups: matrices, which decay, and vectors and `Part.dynamics`, which do not. Empty groups are left
    out. ``factor`` multiplies a group's learning rate."""
    trained = [p for p in model.parameters() if p.requires_grad]
    special = {id(p) for part in model.modules() if isinstance(part, Part) for p in part.dynamics()}
    plain = [p for p in trained if id(p) not in special]
    groups = [{"params": [p for p in plain if p.dim() >= 2], "weight_decay": weight_decay, "factor": 1.0},
              {"params": [p for p in plain if p.dim() < 2], "weight_decay": 0.0, "factor": 1.0},
              {"params": [p for p in trained if id(p) in special], "weight_decay": 0.0, "factor": dynamics_lr}]
    return [group for group in groups if group["params"]]


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every group the learning rate ``lr``, times the group's own factor where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("factor", 1.0)
