"""LoRA: a trained map of low rank beside a matrix that is frozen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import ClassVar, Self, final

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.registry import register
from weft.linear.linear import Linear, Rewritten
from weft.linear.rewrite import RewriteConfig, Rewriter, nearest_end
from weft.ops.dropout import Dropout
from weft.ops.linear import linear


@final
class LowRank(Rewritten):
    """y = base(x) + s B A dropout(x), s = alpha / rank, or alpha / sqrt(rank) where it is rank-stabilised.

    x [...,in], y [...,out]; ``a.weight`` is A [rank,in], ``b.weight`` is B [out,rank]. B starts at zero, so that the
    map starts equal to its base; A starts as `torch.nn.Linear` does, as in Hu's code (the paper draws it from a
    Gaussian).

    Args:
        base: a `Linear`, or another map, such as a quantised one.
        rank: of B A.
        scale: s.
        dropout: of the inputs of A, in training.
    """

    def __init__(self, base: nn.Module, rank: int, scale: float, dropout: float) -> None:
        super().__init__()
        assert isinstance(base, nn.Linear | Rewritten), "only maps are adapted"
        self.in_features, self.out_features = base.in_features, base.out_features
        like = next(tensor for tensor in (*base.parameters(), *base.buffers()) if tensor.is_floating_point())
        self.base, self.scale, self.dropout = base, scale, Dropout(dropout)
        self.a = Linear(self.in_features, rank, False, allows=frozenset()).to(like)
        self.b = Linear(rank, self.out_features, False, allows=frozenset()).to(like)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        y: Tensor = self.base(x) + self.scale * self.b(self.a(self.dropout(x)))
        return y

    def draws(self) -> tuple[str, ...]:
        return ("a.weight", "b.weight")

    def perturb(self, generator: torch.Generator) -> None:
        weight = self.b.weight
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight))

    def merged(self) -> Linear:
        base = self.base.merged() if isinstance(self.base, Rewritten) else self.base
        weight, bias = self._dense(base.weight), base.bias
        return Linear.of(nn.Parameter(weight.detach()), bias)

    def dense(self) -> tuple[Tensor, Tensor | None] | None:
        if self.training and self.dropout.dropout_rate > 0:
            return None
        base = self.base.dense() if isinstance(self.base, Rewritten) else (self.base.weight, self.base.bias)
        return None if base is None else (self._dense(base[0]), base[1])

    def _dense(self, weight: Tensor) -> Tensor:
        """W + s B A, computed in float32 or wider and rounded once."""
        wide = torch.promote_types(weight.dtype, torch.float32)
        return (weight.to(wide) + self.scale * linear(self.b.weight.to(wide), self.a.weight.to(wide).t())).to(
            weight.dtype)


@register
class LoRAConfig(RewriteConfig):
    """Low-rank adaptation: W x becomes W x + (alpha / rank) B A x, and of the whole model only A and B train.

    ``alpha``: scale of the term; ``dropout``: on the inputs of A; ``rank_stabilised``: alpha / sqrt(rank), so that the
    size of B A x does not shrink as the rank grows; ``also_train``: patterns of further parameters that train, such as
    ``head.*`` or ``*.norm*``."""

    kind: ClassVar[str] = "lora"
    source: ClassVar[str] = ("Hu et al. 2022 (arXiv:2106.09685), section 4.1; Kalajdzievski 2023 (arXiv:2312.03732), "
                             "theorem 3.2 (rank-stabilised)")
    use = "adapt"

    rank: int = Field(default=8, gt=0)
    alpha: float = Field(default=16.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    rank_stabilised: bool = False
    also_train: list[str] = Field(default_factory=list)

    @property
    def scale(self) -> float:
        """The factor on B A x."""
        return self.alpha / (math.sqrt(self.rank) if self.rank_stabilised else self.rank)

    def rewriter(self) -> Rewriter:
        return lambda module: LowRank(module, self.rank, self.scale, self.dropout)

    def settle(self, model: nn.Module, made: Sequence[nn.Module]) -> Iterator[str]:
        names = {name for name, _ in model.named_parameters()}
        for index, pattern in enumerate(self.also_train):
            if not any(fnmatchcase(name, pattern) for name in names):
                yield (f"also_train.{index}: {pattern!r} matches no parameter of this model. "
                       f"{nearest_end(pattern, sorted(names))}")
        trained = {id(p) for module in model.modules() if isinstance(module, LowRank)
                   for p in (module.a.weight, module.b.weight)}
        kept = {id(p) for p in model.parameters() if p.requires_grad} if _adapted_before(model, made) else set[int]()
        for name, p in model.named_parameters():
            chosen = any(fnmatchcase(name, pattern) for pattern in self.also_train)
            p.requires_grad_(p.is_floating_point() and (id(p) in trained | kept or chosen))

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(rank=2), cls(rank=1, alpha=3.0, dropout=0.5, rank_stabilised=True, maps=["*"])]


def _adapted_before(model: nn.Module, made: Sequence[nn.Module]) -> bool:
    """Whether an earlier rewrite of this kind has chosen which parameters train."""
    new = {id(module) for module in made}
    return any(isinstance(module, LowRank) and id(module) not in new for module in model.modules())
