"""Trained terms of low rank beside matrices that are frozen: the modules that LoRA puts in the place of maps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.declarations import Declared
from weft.core.layer import Part
from weft.linear.linear import Linear, Rewritten, dense, read
from weft.ops.dropout import Dropout
from weft.ops.linear import linear


class AdapterTerm(NamedTuple):
    """The term beside a matrix, or beside some of its rows.

    Attributes:
        rank: of B A.
        scale: the factor on B A.
        magnitude: whether rows have a trained length (DoRA).
    """

    rank: int
    scale: float
    magnitude: bool = False


class Term(NamedTuple):
    """s B A for some rows of a matrix, and with DoRA their lengths.

    Attributes:
        a: A [rank,in], which starts as `torch.nn.Linear` does, as in Hu's code (the paper draws it from a Gaussian).
        b: B [rows,rank], which starts at zero, so that the map starts equal to its base.
        magnitude: m [rows], which starts at the lengths of the rows; None without DoRA.
    """

    a: Linear
    b: Linear
    magnitude: nn.Parameter | None
    scale: float

    @classmethod
    def new(cls, base: nn.Module, rows: slice, recipe: AdapterTerm) -> Term:
        """A term for some rows of a map."""
        assert isinstance(base, nn.Linear | Rewritten), "only maps are adapted"
        like = next(tensor for tensor in (*base.parameters(), *base.buffers()) if tensor.is_floating_point())
        a = Linear(base.in_features, recipe.rank, False, allows=frozenset()).to(like)
        b = Linear(recipe.rank, len(range(base.out_features)[rows]), False, allows=frozenset()).to(like)
        nn.init.zeros_(b.weight)
        magnitude = None
        if recipe.magnitude:
            magnitude = nn.Parameter(_norms(_matrix(base)[0][rows]).detach().to(like))
        return cls(a, b, magnitude, recipe.scale)

    def trained(self) -> list[nn.Parameter]:
        """The parameters that training changes."""
        found = [self.a.weight, self.b.weight, self.magnitude]
        return [p for p in found if isinstance(p, nn.Parameter)]


class Adapted(Rewritten):
    """y = g (W x + D dropout(x)) + b with a trained D of low rank. g is 1, or with DoRA for each row i

        g_i = m_i / ||W_i + D_i||

    where the norm is a constant for the gradient, as published (Liu et al. 2024, section 4.3), and m is trained. A row
    is one output with all its inputs, whose weights the paper writes as a column. In evaluation mode the map is the
    product with g (W + D), and without dropout in training too. `peft` also drops inputs of (g - 1) W, so that under
    dropout the two differ.

    Args:
        base: a `Linear`, or another map, such as a quantised one, with W and b.
        dropout: of the inputs of D, in training.
    """

    def __init__(self, base: nn.Module, dropout: float) -> None:
        super().__init__()
        assert isinstance(base, nn.Linear | Rewritten), "only maps are adapted"
        self.in_features, self.out_features = base.in_features, base.out_features
        self.base, self.dropout = base, Dropout(dropout)

    @abstractmethod
    def terms(self) -> Mapping[str, Term]:
        """The terms, by the names of the rows that they are of; that of all rows has no name."""

    @abstractmethod
    def factors(self) -> tuple[Float[Tensor, "R in"], Float[Tensor, "out R"]]:
        """Two matrices; D is the second times the first."""

    @abstractmethod
    def gains(self, norms: Float[Tensor, " out"]) -> Float[Tensor, " out"] | None:
        """g, from the lengths of the rows of W + D; None where it is 1."""

    def product(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """The map. `forward` of each class calls it, since a class without one of its own may be a parametrisation."""
        first, second = self.factors()
        narrow = linear(self.dropout(x), first)
        y: Tensor = self.base(x) + linear(
            self.base.between(narrow) if isinstance(self.base, Rewritten) else narrow, second)
        if not self._magnified:
            return y
        weight, bias = _matrix(self.base)
        with torch.no_grad():
            norms = _norms(self._sum(weight))
        g = self.gains(norms)
        assert g is not None, "it has lengths"
        g = g.to(y.dtype)
        return y * g if bias is None else y * g + (1 - g) * bias

    def rebase(self, base: Rewritten) -> None:
        """Replace the map to which the terms are added by one that has some of its rows or columns."""
        self.base, self.in_features, self.out_features = base, base.in_features, base.out_features

    def trained(self) -> list[nn.Parameter]:
        """The parameters that training changes."""
        return [p for term in self.terms().values() for p in term.trained()]

    def declares(self) -> Declared:
        magnitudes = (term.magnitude for term in self.terms().values())
        return Declared(wide_in_training=tuple(each for each in magnitudes if each is not None))

    def perturb(self, generator: torch.Generator) -> None:
        with torch.no_grad():
            for term in self.terms().values():
                term.b.weight.copy_(_random(term.b.weight, generator))
                if term.magnitude is not None:
                    term.magnitude.mul_(1 + 0.1 * _random(term.magnitude, generator))

    def merged(self) -> Linear:
        base = self.base.merged() if isinstance(self.base, Rewritten) else self.base
        return Linear.of(nn.Parameter(self._dense(base.weight).detach()), base.bias)

    def dense(self) -> tuple[Tensor, Tensor | None] | None:
        if self.training and self.dropout.dropout_rate > 0:
            return None
        whole = (self.base.weight, self.base.bias) if isinstance(self.base, nn.Linear) else dense(self.base)
        return None if whole is None else (self._dense(whole[0]), whole[1])

    def read(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """As `Rewritten.read`. In training a dropped input is dropped for the whole call, as Gal and Ghahramani 2016
        drop those of recurrent matrices: the same ones at every step."""
        weight, bias = read(self.base, torch.promote_types(dtype, torch.float32))
        both = whole = self._sum(weight)
        if self.training and self.dropout.dropout_rate > 0:
            both = self._sum(weight, self.dropout(weight.new_ones(self.in_features)))
        g = self.gains(_norms(whole.detach()))
        return (both if g is None else g.to(both.dtype)[:, None] * both).to(dtype), bias

    def _sum(self, weight: Tensor, kept: Float[Tensor, " in"] | None = None) -> Tensor:
        """W + D, in float32 or wider, where D has only the inputs that are ``kept``."""
        wide = torch.promote_types(weight.dtype, torch.float32)
        first, second = (factor.to(wide) for factor in self.factors())
        return weight.to(wide) + linear(second, (first if kept is None else first * kept).t())

    def _dense(self, weight: Tensor) -> Tensor:
        """g (W + D), computed in float32 or wider and rounded once."""
        both = self._sum(weight)
        g = self.gains(_norms(both.detach()))
        return (both if g is None else g.to(both.dtype)[:, None] * both).to(weight.dtype)

    @property
    def _magnified(self) -> bool:
        return any(term.magnitude is not None for term in self.terms().values())


class LowRank(Adapted):
    """`Adapted` with one term for all rows: ``a.weight``, ``b.weight``, and with DoRA ``magnitude``."""

    def __init__(self, base: nn.Module, recipe: AdapterTerm, dropout: float) -> None:
        super().__init__(base, dropout)
        self.a, self.b, self.magnitude, self.scale = Term.new(base, slice(None), recipe)

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        return self.product(x)

    def terms(self) -> Mapping[str, Term]:
        return {"": Term(self.a, self.b, self.magnitude, self.scale)}

    def factors(self) -> tuple[Tensor, Tensor]:
        return self.a.weight, self.scale * self.b.weight

    def gains(self, norms: Float[Tensor, " out"]) -> Float[Tensor, " out"] | None:
        return None if self.magnitude is None else self.magnitude / norms

    def draws(self) -> tuple[str, ...]:
        return ("a.weight", "b.weight")


class LowRankParts(Adapted):
    """`Adapted` with terms of their own for some of the parts of a map that is several in one, such as the queries and
    values of attention: ``parts.q.a.weight``, ``parts.q.b.weight``, ``parts.q.magnitude``. D and g - 1 are zero in
    other rows.

    Args:
        base: a map whose ``outputs`` have names.
        recipes: of each part that has a term, by its name.
        dropout: of the inputs of all terms, the same inputs for all of them.
    """

    def __init__(self, base: nn.Module, recipes: Mapping[str, AdapterTerm], dropout: float) -> None:
        super().__init__(base, dropout)
        assert isinstance(base, Linear | Rewritten), "other maps have no parts"
        self._rows = {name: rows for name, rows in rows_of(base).items() if name in recipes}
        self.parts = nn.ModuleDict({name: _Rows(Term.new(base, rows, recipes[name]))
                                    for name, rows in self._rows.items()})

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        return self.product(x)

    def rebase(self, base: Rewritten) -> None:
        super().rebase(base)
        self._rows = {name: rows for name, rows in rows_of(base).items() if name in self.parts}

    def terms(self) -> Mapping[str, Term]:
        return {name: part.term() for name, part in self.parts.items() if isinstance(part, _Rows)}

    def factors(self) -> tuple[Tensor, Tensor]:
        terms = self.terms()
        columns = sum(term.a.out_features for term in terms.values())
        placed, before = [], 0
        for name, term in terms.items():
            rows, rank = self._rows[name], term.a.out_features
            placed.append(F.pad(term.scale * term.b.weight, (
                before, columns - before - rank, rows.start, self.out_features - rows.stop)))
            before += rank
        return torch.cat([term.a.weight for term in terms.values()]), torch.stack(placed).sum(0)

    def gains(self, norms: Float[Tensor, " out"]) -> Float[Tensor, " out"] | None:
        found, pieces, end = self.terms(), list[Tensor](), 0
        if not self._magnified:
            return None
        for name, rows in self._rows.items():
            magnitude = found[name].magnitude
            assert magnitude is not None, "all have lengths, or none has"
            pieces += [torch.ones_like(norms[end:rows.start]), magnitude / norms[rows]]
            end = rows.stop
        return torch.cat([*pieces, torch.ones_like(norms[end:])])

    def draws(self) -> tuple[str, ...]:
        return tuple(f"parts.{name}.{each}.weight" for name in self._rows for each in "ab")


class _Rows(Part):
    """The parameters of a term."""

    def __init__(self, term: Term) -> None:
        super().__init__()
        self.a, self.b, self.magnitude, self._scale = term

    def term(self) -> Term:
        return Term(self.a, self.b, self.magnitude, self._scale)


def adapted_maps(model: nn.Module) -> dict[str, Adapted]:
    """The maps of a model that have an adapter, by path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Adapted)}


def rows_of(module: nn.Module) -> dict[str, slice]:
    """The rows of each of the parts of a map, by name; none for a map that is one."""
    found, end = dict[str, slice](), 0
    for name, count in (module.outputs if isinstance(module, Linear | Rewritten) else {}).items():
        found[name] = slice(end, end + count)
        end += count
    return found


def _matrix(base: nn.Module) -> tuple[Tensor, Tensor | None]:
    """The matrix by which a base multiplies, and its bias."""
    if isinstance(base, nn.Linear):
        return base.weight, base.bias
    found = base.dense() if isinstance(base, Rewritten) else None
    assert found is not None, "what is adapted multiplies by one matrix"
    return found


def _random(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)


def _norms(matrix: Float[Tensor, "rows in"]) -> Float[Tensor, " rows"]:
    """The lengths of rows, in float32 or wider; for a row of zeros the least positive number, so that dividing by it is
    no NaN."""
    wide = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    norms: Tensor = torch.linalg.vector_norm(wide, dim=1)
    return norms.clamp_min(torch.finfo(wide.dtype).tiny)
