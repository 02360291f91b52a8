"""Linear maps whose matrix is stored in eight bits per entry."""

from __future__ import annotations

from typing import ClassVar, Self, final

from jaxtyping import Float, Int64
from torch import Tensor, nn

from weft.core.layer import Part
from weft.core.registry import register
from weft.linear.linear import Linear, Rewritten, Use
from weft.linear.rewrite import RewriteConfig, Rewriter
from weft.ops.int8_linear import int8_linear, quantised


@final
class Int8Matrix(Part):
    """W as s Q: ``values`` Q [out,in], integers from -127 to 127, and ``scale`` s [out], the largest entry of each row
    over 127, in float32 or wider in every dtype of the model. Each entry of s Q is within s / 2 of that of W.

    Neither is a parameter: they do not train. Parts that share a matrix share this module. ``like``, an empty buffer,
    has the dtype of the matrix as floats, so that casts of the model and its files keep that dtype.
    """

    def __init__(self, weight: Float[Tensor, "out in"]) -> None:
        super().__init__()
        values, scale = quantised(weight)
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)
        self.register_buffer("like", weight.detach().new_empty(0))
        self.values: Tensor
        self.scale: Tensor
        self.like: Tensor

    def exact(self) -> tuple[Tensor, ...]:
        return (self.scale,)

    def weight(self) -> Float[Tensor, "out in"]:
        """s Q."""
        return (self.values.to(self.scale.dtype) * self.scale[:, None]).to(self.like.dtype)

    def rows(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape in"]:
        """Some rows of s Q."""
        return (self.values[tokens].to(self.scale.dtype) * self.scale[tokens][..., None]).to(self.like.dtype)


@final
class Int8Linear(Rewritten):
    """y = s (x Q^T) + b. x [...,in], y [...,out].

    Args:
        matrix: s and Q.
        bias: the parameter of the map that it replaces.
    """

    allows: frozenset[Use] = frozenset({"adapt"})

    def __init__(self, matrix: Int8Matrix, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.out_features, self.in_features = matrix.values.shape
        self.matrix = matrix
        self.bias = bias

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        y = int8_linear(x, self.matrix.values, self.matrix.scale)
        return y if self.bias is None else y + self.bias

    def merged(self) -> Linear:
        return Linear.of(nn.Parameter(self.matrix.weight()), self.bias)

    def dense(self) -> tuple[Tensor, Tensor | None]:
        return self.matrix.weight(), self.bias

    def bound(self, x: Tensor) -> Tensor:
        """At most s / 2 for each entry of the matrix, times the entry of x."""
        return x.detach().abs().to(self.matrix.scale.dtype).sum(-1, keepdim=True) * (self.matrix.scale / 2)


@final
class Int8Embedding(Rewritten):
    """Rows of s Q: the embedding whose table is a quantised readout's matrix. Tokens [...] to vectors [...,in]."""

    role = "embeddings"

    def __init__(self, matrix: Int8Matrix) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = matrix.values.shape
        self.out_features, self.in_features = matrix.values.shape
        self.matrix = matrix

    def forward(self, tokens: Int64[Tensor, "*shape"]) -> Float[Tensor, "*shape in"]:
        return self.matrix.rows(tokens)

    def merged(self) -> Linear:
        return Linear.of(nn.Parameter(self.matrix.weight()))

    def dense(self) -> tuple[Tensor, Tensor | None]:
        return self.matrix.weight(), None

    def bound(self, x: Tensor) -> Tensor:
        return self.matrix.scale[x][..., None] / 2


@register
class Int8Config(RewriteConfig):
    """Weights in eight bits: each row of a matrix as integers from -127 to 127 times one number, rounded to the
    nearest. Activations stay in the model's floats. The matrices do not train; LoRA may be applied to them. A tied
    embedding is quantised with its readout."""

    kind: ClassVar[str] = "int8"
    source: ClassVar[str] = "Dettmers et al. 2022 (arXiv:2208.07339), section 2 (absolute maximum, one scale a row)"
    use = "quantise"
    keeps_weight = False

    def rewriter(self) -> Rewriter:
        made: dict[int, Int8Matrix] = {}

        def rewrite(module: nn.Module) -> nn.Module:
            assert isinstance(module, nn.Linear | nn.Embedding), "only these may be quantised"
            if id(module.weight) not in made:
                made[id(module.weight)] = Int8Matrix(module.weight)
            matrix = made[id(module.weight)]
            return Int8Embedding(matrix) if isinstance(module, nn.Embedding) else Int8Linear(matrix, module.bias)

        return rewrite

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(maps=["*"])]
