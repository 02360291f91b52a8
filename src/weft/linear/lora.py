"""LoRA: a trained map of low rank beside a matrix that is frozen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Self, TypeVar

from pydantic import Field
from torch import nn

from weft.core.part_config import About
from weft.core.registry import register
from weft.linear.low_rank import Adapted, AdapterTerm, LowRank, LowRankParts, rows_of
from weft.linear.rewrite import RewriteConfig, Rewriter, matches, nearest_end, rows_named

N = TypeVar("N", int, float)
Rank = Annotated[int, Field(gt=0)]
Alpha = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@register
class LoRAConfig(RewriteConfig):
    """Low-rank adaptation: W x becomes W x + (alpha / rank) B A x, and of the whole model only A and B train.

    ``alpha``: scale of the term; ``dropout``: on the inputs of A; ``rank_stabilised``: alpha / sqrt(rank), so that the
    size of B A x does not shrink as the rank grows; ``dora``: W + (alpha / rank) B A is divided by the lengths of its
    rows, each the weights of one output, and multiplied by trained lengths m, which start at those of W (eq. 5); the
    lengths by which it is divided are constants for the gradient (section 4.3); ``ranks`` and ``alphas``: those of
    some maps, by patterns such as ``maps`` has, of which the first that matches counts; ``also_train``: patterns of
    further parameters that train, such as ``head.*`` or ``*.norm*``. Published: rank 1 to 64, alpha constant over
    ranks, dropout 0.1, on queries and values (``maps: [qkv.q, qkv.v]``). A pattern of several maps in one, such as
    ``qkv``, puts one term beside all its rows; one of some of its outputs, such as ``qkv.q``, beside these rows. Left
    out, ``maps`` also leaves out maps with fewer inputs or outputs than ``rank``.

    Attributes:
        rank: columns of B and rows of A.
        alpha: scale of the added term, which is divided by the rank.
        dropout: probability with which an input of A is dropped in training.
        rank_stabilised: whether alpha is divided by the square root of the rank instead.
        dora: whether the lengths of the rows of W + (alpha / rank) B A are trained apart from their directions.
        ranks: ranks of some maps, by pattern; the first that matches counts.
        alphas: alphas of some maps, by pattern; the first that matches counts.
        also_train: patterns of further parameters that train, such as ``head.*``.
    """

    kind: ClassVar[str] = "lora"
    about = About(
        also_called=("adapter", "adapters", "low_rank", "peft", "dora"),
        source=("Hu et al. 2022 (arXiv:2106.09685), section 4.1; Kalajdzievski 2023 (arXiv:2312.03732), theorem 3.2 "
                "(rank-stabilised); Liu et al. 2024 (arXiv:2402.09353), equation 5 (dora)"),
        equation=r"W x + \frac{\alpha}{r} B A x, \qquad A \in \mathbb{R}^{r \times m},\; B \in \mathbb{R}^{n \times r}",
        differs=(("int8", "adds trained matrices and changes no weight, where int8 stores weights in fewer bits; "
                          "both may be applied."),))
    use = "adapt"
    names_outputs = True

    rank: int = Field(default=8, gt=0)
    alpha: float = Field(default=16.0, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    rank_stabilised: bool = False
    dora: bool = False
    ranks: dict[str, Rank] = Field(default_factory=dict)
    alphas: dict[str, Alpha] = Field(default_factory=dict)
    also_train: list[str] = Field(default_factory=list)

    def recipe(self, path: str) -> AdapterTerm:
        """The term beside the map at this path, or beside the outputs that it names."""
        rank, alpha = _first(self.ranks, path, self.rank), _first(self.alphas, path, self.alpha)
        return AdapterTerm(rank, alpha / (math.sqrt(rank) if self.rank_stabilised else rank), self.dora)

    def rewriter(self) -> Rewriter:
        return lambda module: LowRank(module, self.recipe(""), self.dropout)

    def applied(self, path: str, module: nn.Module, rewriter: Rewriter) -> nn.Module:
        whole = self.maps is None or any(matches(path, pattern) for pattern in self.maps)
        if whole:
            return LowRank(module, self.recipe(path), self.dropout)
        named = {name: f"{path}.{name}" for name in rows_named(module)
                 if any(matches(f"{path}.{name}", pattern) for pattern in self.maps or ())}
        return LowRankParts(module, {name: self.recipe(each) for name, each in named.items()}, self.dropout)

    def fits(self, module: nn.Module) -> bool:
        return min(_size(module)) >= self.rank

    def settle(self, model: nn.Module, made: Sequence[nn.Module]) -> Iterator[str]:
        adapted = {path: module for path, module in model.named_modules() if isinstance(module, Adapted)}
        mine = {id(module) for module in made}
        yield from self._misfits({path: module for path, module in adapted.items() if id(module) in mine})
        names = {name for name, _ in model.named_parameters()}
        for index, pattern in enumerate(self.also_train):
            if not any(fnmatchcase(name, pattern) for name in names):
                yield (f"also_train.{index}: {pattern!r} matches no parameter of this model. "
                       f"{nearest_end(pattern, sorted(names))}")
        trained = {id(p) for module in adapted.values() for p in module.trained()}
        # An earlier rewrite of this kind has chosen which parameters train.
        again = any(id(module) not in mine for module in adapted.values())
        kept = {id(p) for p in model.parameters() if p.requires_grad} if again else set[int]()
        for name, p in model.named_parameters():
            chosen = any(fnmatchcase(name, pattern) for pattern in self.also_train)
            p.requires_grad_(p.is_floating_point() and (id(p) in trained | kept or chosen))

    def _misfits(self, made: Mapping[str, Adapted]) -> Iterator[str]:
        """Ranks above the sizes of matrices, and patterns of ranks and alphas that concern no map."""
        places = {f"{path}.{name}" if name else path: (module, name) for path, module in made.items()
                  for name in module.terms()}
        large = {}
        for path, (module, name) in places.items():
            ins, outs = module.in_features, len(range(module.out_features)[rows_of(module.base).get(name, slice(None))])
            if module.terms()[name].a.out_features > min(ins, outs):
                large[path] = f"{path} ({outs} x {ins})"
        if large:
            first = next(iter(large))
            yield (f"rank: above the size of {len(large)} matri{'x' if len(large) == 1 else 'ces'}: "
                   f"{', '.join(list(large.values())[:5])}. Lower it there (ranks: {{{first}: 1}}), or leave them out "
                   "of `maps`.")
        for field, patterns in (("ranks", self.ranks), ("alphas", self.alphas)):
            for pattern in patterns:
                if not any(matches(path, pattern) for path in places):
                    yield f"{field}.{pattern}: it matches no adapted map. {nearest_end(pattern, sorted(places))}"

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(rank=2), cls(rank=1, alpha=3.0, dropout=0.5, rank_stabilised=True, maps=["*"]),
                cls(rank=2, dora=True, kinds=["*"], ranks={"*": 1}, alphas={"*": 2.0})]


def _first(patterns: Mapping[str, N], path: str, otherwise: N) -> N:
    return next((value for pattern, value in patterns.items() if matches(path, pattern)), otherwise)


def _size(module: nn.Module) -> tuple[int, int]:
    found: tuple[int, int] = module.in_features, module.out_features  # type: ignore[assignment]
    return found
