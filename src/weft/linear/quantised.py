"""Linear maps and embeddings whose matrix is stored in fewer bits than floats have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

from jaxtyping import Float, Int64
from torch import Tensor, nn

from weft.core.declarations import Declared
from weft.core.layer import Part
from weft.linear.linear import UNNAMED, Linear, Rewritten, Use
from weft.linear.rewrite import RewriteConfig, Rewriter
from weft.ops.linear import Map


class QuantisedMatrix(Part, ABC):
    """A matrix [out,in] in few bits: integers in ``values`` and their scales in ``scale``.

    Neither is a parameter: they do not train. Parts that share a matrix share this module. ``like``, an empty buffer,
    has the dtype of the matrix as floats, so that casts of the model and its files keep that dtype.

    Args:
        weight: the matrix as floats.
        values, scale: what stands for it.
    """

    def __init__(self, weight: Float[Tensor, "out in"], values: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("like", weight.detach().new_empty(0))  # first, since adapters take the first dtype
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.values: Tensor
        self.scale: Tensor
        self.like: Tensor

    @abstractmethod
    def weight(self) -> Float[Tensor, "out in"]:
        """The matrix that the integers stand for, in the model's dtype."""

    @abstractmethod
    def rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape in"]:
        """Some rows of it."""

    @abstractmethod
    def product(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """x times its transpose."""

    @abstractmethod
    def off(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... #out"]:
        """By how much, at most, `product` differs from that with the matrix of floats."""

    @abstractmethod
    def off_rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape #in"]:
        """By how much, at most, entries of `rows` differ from those of the matrix of floats."""


@final
class QuantisedLinear(Rewritten):
    """y = W x + b with a `QuantisedMatrix` W. x [...,in], y [...,out].

    Args:
        matrix: W.
        bias: the parameter of the map that it replaces.
        outputs: the names of outputs of that map.
    """

    allows: frozenset[Use] = frozenset({"adapt"})

    def __init__(self, matrix: QuantisedMatrix, bias: nn.Parameter | None,
                 outputs: Mapping[str, int] = UNNAMED) -> None:
        super().__init__()
        self.outputs = dict(outputs)
        self.out_features, self.in_features = matrix.out_features, matrix.in_features
        self.matrix = matrix
        self.bias = bias

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        y = self.matrix.product(x)
        return y if self.bias is None else y + self.bias

    def merged(self) -> Linear:
        return Linear.of(nn.Parameter(self.matrix.weight()), self.bias)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        return self.matrix.weight(), self.bias

    def bound(self, x: Tensor) -> Tensor:
        return self.matrix.off(x.detach())

    def stored(self) -> Map:
        return Map(self.matrix.values, self.matrix.scale, self.bias)


def quantised_matrices(model: nn.Module) -> dict[str, QuantisedMatrix]:
    """The quantised matrices of a model, by path, one that several parts share once."""
    return {path: module for path, module in model.named_modules() if isinstance(module, QuantisedMatrix)}


def matrix_of(base: nn.Module) -> nn.Module | nn.Parameter:
    """The quantised matrix of a map, or its parameter."""
    return base.matrix if isinstance(base, QuantisedLinear) else base.get_parameter("weight")


@final
class QuantisedEmbedding(Rewritten):
    """Rows of a `QuantisedMatrix`: the embedding whose table is a quantised readout's matrix. Tokens [...] to vectors
    [...,in]."""

    def __init__(self, matrix: QuantisedMatrix) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = matrix.out_features, matrix.in_features
        self.out_features, self.in_features = matrix.out_features, matrix.in_features
        self.matrix = matrix

    def declares(self) -> Declared:
        return Declared(role="embeddings")

    def forward(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape in"]:
        return self.matrix.rows(tokens)

    def merged(self) -> Linear:
        return Linear.of(nn.Parameter(self.matrix.weight()))

    def dense(self) -> tuple[Tensor, Tensor | None]:
        return self.matrix.weight(), None

    def bound(self, x: Tensor) -> Tensor:
        return self.matrix.off_rows(x)


class QuantiseConfig(RewriteConfig):
    """Base of rewrites that store matrices in few bits."""

    use = "quantise"
    keeps_weight = False

    @abstractmethod
    def matrix(self, weight: Tensor) -> QuantisedMatrix:
        """A matrix of floats in few bits."""

    def rewriter(self) -> Rewriter:
        made: dict[int, QuantisedMatrix] = {}

        def rewrite(module: nn.Module) -> nn.Module:
            assert isinstance(module, nn.Linear | nn.Embedding), "only these may be quantised"
            if id(module.weight) not in made:
                made[id(module.weight)] = self.matrix(module.weight)
            held = made[id(module.weight)]
            if isinstance(module, nn.Embedding):
                return QuantisedEmbedding(held)
            return QuantisedLinear(held, module.bias, module.outputs if isinstance(module, Linear) else UNNAMED)

        return rewrite
