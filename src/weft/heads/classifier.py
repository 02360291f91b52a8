"""The common base of heads for classes: a map of the vectors, an activation and a norm, if wanted, and the map to
scores."""

from __future__ import annotations

from torch import Tensor, nn

from weft.core.model import Classifier
from weft.core.part_config import Dims
from weft.heads.base import ClassifierConfig
from weft.linear.linear import Linear
from weft.ops.activations import ACTIVATIONS
from weft.ops.dropout import Dropout

STD = 0.02
"""Standard deviation of the initial weights of classifiers (Devlin et al. 2019, their code)."""


def small(d_in: int, d_out: int, *, bias: bool = True) -> Linear:
    """A linear map with small initial weights, and a bias of zero if it has one."""
    made = Linear(d_in, d_out, bias)
    nn.init.normal_(made.weight, std=STD)
    if made.bias is not None:
        nn.init.zeros_(made.bias)
    return made


class LinearClassifier(Classifier):
    """scores = W x + b of vectors x [..., D], or W norm(f(V x + v)) + b with a transform.

    Attributes:
        transform: V [D,D] and v; None without one.
        map: W [C,D] and b.
    """

    def __init__(self, config: ClassifierConfig, dims: Dims, n_outputs: int) -> None:
        super().__init__()
        self.n_outputs, self.labels = n_outputs, config.labels
        width = dims.d_model
        self.transform = small(width, width, bias=config.transform_bias) if config.transform else None
        self.activation = ACTIVATIONS[config.activation]
        self.norm = config.norm.build_size(width)
        self.dropout = Dropout(config.dropout)
        self.map = small(width, n_outputs)

    def of_vectors(self, x: Tensor) -> Tensor:
        """The scores [..., C] of vectors [..., D]."""
        x = x if self.transform is None else self.norm(self.activation(self.transform(x)))
        scores: Tensor = self.map(self.dropout(x))
        return scores
