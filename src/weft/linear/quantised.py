"""Linear maps and embeddings whose matrix is stored in fewer bits than floats have. Matrices in four bits an entry.

Matrices in eight bits an entry.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.declarations import Declared
from weft.core.layer import Part
from weft.core.part_config import About
from weft.core.registry import register
from weft.linear.linear import UNNAMED, Linear, Rewritten, Use
from weft.linear.rewrite import RewriteConfig, Rewriter
from weft.ops.int4_linear import FARTHEST, GROUP, four_bits, int4_linear, matrix
from weft.ops.int8_linear import int8_linear, quantised
from weft.ops.linear import Map, linear


class QuantisedMatrix(Part, ABC):
    """A matrix [out,in] in few bits: integers in ``values`` and their scales in ``scale``.

    Neither is a parameter: they do not train. Parts that share a matrix share this module. ``like``, an empty buffer,
    has the dtype of the matrix as floats, so that casts of the model and its files keep that dtype.

    Args:
        weight: the matrix as floats.
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


class Int4Matrix(QuantisedMatrix):
    """W as integers from -8 to 7, two in each byte of ``values`` [out,16 G], and one ``scale`` [out,G] in bfloat16, in
    every dtype of the model, for each group of 32 inputs (`weft.ops.int4_linear`): 4.5 bits an entry. Each entry is
    within 1.02 steps of that of W, half a step except beyond the largest integer."""

    def __init__(self, weight: Float[Tensor, "out in"]) -> None:
        super().__init__(weight, *four_bits(weight))

    def declares(self) -> Declared:
        return Declared(same_dtype=(self.scale,))

    def weight(self) -> Float[Tensor, "out in"]:
        return self._floats(self.values, self.scale)

    def rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape in"]:
        return self._floats(self.values[tokens], self.scale[tokens])

    def _floats(self, values: Tensor, scale: Tensor) -> Tensor:
        wide = torch.promote_types(self.like.dtype, torch.float32)
        return matrix(values, scale, self.in_features, wide).to(self.like.dtype)

    def product(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        return int4_linear(x, self.values, self.scale)

    def off(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... #out"]:
        wide = torch.promote_types(x.dtype, torch.float32)
        sizes = F.pad(x.abs().to(wide), (0, -x.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP)).sum(-1)
        return linear(FARTHEST * sizes, self.scale.abs().to(wide))

    def off_rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape #in"]:
        steps = self.scale[tokens].abs().float().repeat_interleave(GROUP, -1)
        return FARTHEST * steps[..., :self.in_features]


@register
class Int4Config(QuantiseConfig):
    """Weights in four and a half bits: integers from -8 to 7, and for each group of 32 inputs of a row one scale in
    bfloat16, the one of two that rounds with the smaller squared error. Activations stay in the model's floats. The
    matrices do not train; LoRA may be applied to them. A tied embedding is quantised with its readout."""

    kind: ClassVar[str] = "int4"
    about = About(
        also_called=("nf4", "fp4", "four_bit"),
        source=("Dettmers & Zettlemoyer 2023 (arXiv:2212.09720), section 2 (a scale for each block of weights; theirs "
                "are of 64 and float data types beside integers)"),
        equation=r"W_{r,g} \approx s_{r,g}\, q_{r,g}, \qquad q \in \{-8, \ldots, 7\}^{32}",
        differs=(("int8", "half the bits, with a scale for 32 inputs in place of a whole row."),))

    def matrix(self, weight: Tensor) -> Int4Matrix:
        return Int4Matrix(weight)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(maps=["*"])]


class Int8Matrix(QuantisedMatrix):
    """W as s Q: ``values`` Q [out,in], integers from -127 to 127, and ``scale`` s [out], the largest entry of each row
    over 127, in float32 or wider in every dtype of the model. Each entry of s Q is within s / 2 of that of W."""

    def __init__(self, weight: Float[Tensor, "out in"]) -> None:
        super().__init__(weight, *quantised(weight))

    def declares(self) -> Declared:
        return Declared(exact=(self.scale,))

    def weight(self) -> Float[Tensor, "out in"]:
        return (self.values.to(self.scale.dtype) * self.scale[:, None]).to(self.like.dtype)

    def rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape in"]:
        return (self.values[tokens].to(self.scale.dtype) * self.scale[tokens][..., None]).to(self.like.dtype)

    def product(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        return int8_linear(x, self.values, self.scale)

    def off(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... #out"]:
        """s / 2 for each entry of the matrix, times the entry of x."""
        return x.abs().to(self.scale.dtype).sum(-1, keepdim=True) * (self.scale / 2)

    def off_rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape #in"]:
        return self.scale[tokens][..., None] / 2


@register
class Int8Config(QuantiseConfig):
    """Weights in eight bits: each row of a matrix as integers from -127 to 127 times one number, rounded to the
    nearest. Activations stay in the model's floats. The matrices do not train; LoRA may be applied to them. A tied
    embedding is quantised with its readout."""

    kind: ClassVar[str] = "int8"
    about = About(
        also_called=("quantise", "quantize", "quantised", "quantized", "quantisation", "quantization", "eight_bit"),
        source="Dettmers et al. 2022 (arXiv:2208.07339), section 2 (absolute maximum, one scale a row)",
        equation=(r"W_r \approx s_r\, q_r, \qquad s_r = \frac{\max_j |W_{rj}|}{127}, \quad q_r \in \{-127, \ldots, "
                  r"127\}"),
        differs=(("int4", "twice the bits, and one scale for a row."),))

    def matrix(self, weight: Tensor) -> Int8Matrix:
        return Int8Matrix(weight)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(maps=["*"])]
