"""Muon: matrices move along the orthogonal matrix that is nearest to their momentum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.part_config import About
from weft.core.registry import register
from weft.parallel.layout import as_held, whole
from weft.training.optimizers import OptimizerConfig
from weft.training.parameter_groups import PLACE, labelled

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of Jordan's quintic iteration: they bring singular values fast to between about 0.7 and 1.2, not to 1."""
SMALLEST = 1e-7
"""Smallest norm that a matrix is divided by before the iteration."""


@register
class MuonConfig(OptimizerConfig):
    """Muon for the matrices of hidden linear maps, beside AdamW for everything else. For a matrix [rows,columns]:

        B <- momentum B + (1-momentum) G;  U = momentum B + (1-momentum) G  (nesterov; otherwise U = B)
        X = U / |U|, then ``iterations`` times  X <- 3.4445 X - 4.775 (X X^T) X + 2.0315 (X X^T)^2 X
        W <- W - lr weight_decay W - lr s X

    X has the singular vectors of U and singular values near 1. s makes updates of different shapes alike:
    ``jordan``: s = sqrt(max(1, rows/columns)); ``rms``: s = 0.2 sqrt(max(rows, columns)), with which the entries of an
    update are as large as AdamW's, so that the learning rates and decays known for AdamW can be used (Liu et al. 2025).

    Readouts, embeddings, vectors, `Declared.dynamics`, kernels of convolutions, recurrent matrices and other tables of
    numbers move by AdamW with the rate ``adamw_lr``, eps 1e-8 and the same ``weight_decay``. A map that computes
    several things, such as queries, keys and values, is one matrix. The iteration is computed in the dtype of the
    weights: bfloat16, as in Jordan's code and `torch.optim.Muon`, rounds the update to 8 bits, so that runs which
    differ only in the order of a sum would no longer agree.

    Attributes:
        lr: peak learning rate of the matrices; the schedule multiplies ``adamw_lr`` alike.
        update_scale: s.
        momentum: of the matrices.
        nesterov: whether the update looks ahead.
        iterations: of Newton and Schulz.
        weight_decay: of matrices, embeddings and readouts.
        adamw_lr: peak learning rate of all other parameters. A tenth of the default leaves embeddings and readout of a
            short run where they began; Jordan's runs have 0.002 to 0.008 for the readout.
        beta1: of AdamW.
        beta2: of AdamW.
    """

    kind: ClassVar[str] = "muon"
    about = About(
        source=("Jordan et al. 2024, kellerjordan.github.io/posts/muon; Liu et al. 2025 (arXiv:2502.16982), section "
                "2.2 (weight decay, the scale rms)"),
        equation=(r"B \leftarrow \mu B + (1 - \mu) G, \quad X_0 = \frac{U}{\lVert U \rVert}, \quad X_{i+1} = a X_i + "
                  r"b (X_i X_i^{\top}) X_i + c (X_i X_i^{\top})^2 X_i, \quad W \leftarrow W - \eta \lambda W - \eta s "
                  r"X"),
        differs=(("adamw", "the update of a matrix has singular values near 1, in place of entries near 1; other "
                           "parameters move by AdamW."),))

    lr: float = Field(default=0.02, gt=0)
    update_scale: Literal["jordan", "rms"] = "jordan"
    momentum: float = Field(default=0.95, ge=0, lt=1)
    nesterov: bool = True
    iterations: int = Field(default=5, ge=1, lt=100)
    weight_decay: float = Field(default=0.1, ge=0)
    adamw_lr: float = Field(default=3e-3, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)

    def problems(self, model: nn.Module) -> list[str]:
        found = super().problems(model)
        if not any(each.hidden for each in labelled(model)):
            found.append(f"{PLACE}.kind: muon, and this model trains no matrix of a hidden linear map. Use adamw.")
        return found

    def create(self, model: nn.Module) -> torch.optim.Optimizer:
        return Muon(self.parameter_groups(model, self.weight_decay, others=self.adamw_lr), self)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(lr=1e-3, update_scale="rms", momentum=0.9, nesterov=False, iterations=6, weight_decay=0.0,
                           adamw_lr=1e-3, beta1=0.8, beta2=0.99)]


class Muon(torch.optim.Optimizer):
    """See `MuonConfig`. The state of a matrix is its ``momentum_buffer``; that of other parameters is AdamW's.

    Args:
        groups: of parameters; those whose ``hidden`` is true hold matrices.
    """

    def __init__(self, groups: list[dict[str, Any]], config: MuonConfig) -> None:
        others = [group for group in groups if not group["hidden"]]
        fused = not any(parameter.is_complex() for group in others for parameter in group["params"])
        # It fills in its settings in the groups; parameters and state are those of this optimiser, see `step`.
        self._adamw = None if not others else torch.optim.AdamW(
            others, lr=config.lr, betas=(config.beta1, config.beta2), eps=1e-8, fused=fused)
        super().__init__(groups, {"lr": config.lr})
        self.config = config

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for matrix in group["params"] if group["hidden"] else ():
                if matrix.grad is not None:
                    update = self._update(matrix, matrix.grad)
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=group["lr"])
        if self._adamw is not None:
            # Assigned anew because loading a state replaces both.
            self._adamw.param_groups = [group for group in self.param_groups if not group["hidden"]]
            self._adamw.state = self.state
            self._adamw.step()
        return loss

    def _update(self, matrix: Tensor, gradient: Tensor) -> Tensor:
        """s X of a matrix [rows,columns]."""
        config, state = self.config, self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        average = state["momentum_buffer"].lerp_(gradient, 1 - config.momentum)
        ahead = gradient.lerp(average, config.momentum) if config.nesterov else average
        rows, columns = matrix.shape
        like_adamw = config.update_scale == "rms"
        scale = 0.2 * math.sqrt(max(rows, columns)) if like_adamw else math.sqrt(max(1.0, rows / columns))
        # Where FSDP2 shards the matrix, every process gathers it and computes the same update of it.
        return as_held(orthogonalised(whole(ahead), config.iterations) * scale, matrix)


def orthogonalised(matrix: Tensor, iterations: int) -> Tensor:
    """A matrix [rows,columns] with the same singular vectors and singular values near 1, by Jordan's quintic iteration
    of Newton and Schulz, in the matrix's dtype. One that is smaller than |matrix| by more than about 3.4^iterations
    stays below that, since an iteration multiplies small ones by 3.4445."""
    a, b, c = COEFFICIENTS
    x = matrix / matrix.norm().clamp(min=SMALLEST)
    x = x.T if x.shape[0] > x.shape[1] else x  # so that X X^T is the smaller of the two products
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    result: Tensor = x.T if matrix.shape[0] > matrix.shape[1] else x
    return result
