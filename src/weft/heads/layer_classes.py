"""The head with scores of classes from every layer, for supervised layer-wise pre-training."""

from __future__ import annotations

from typing import ClassVar, Self

from jaxtyping import Float
from torch import Tensor, nn

from weft.core.model import Classifier
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.heads.base import ClassifierConfig
from weft.heads.classifier import small
from weft.ops.dropout import Dropout


@register
class LayerClassesConfig(ClassifierConfig):
    """scores_l = W_l h_l + b_l of each layer l of a ``dense`` model, whose own scores are those of its last layer; in
    any other model, of its vectors alone. The vector of a row is that of its first token."""

    kind: ClassVar[str] = "layer_classes"
    about = About(
        source="Bengio et al. 2006, section 4 (supervised greedy pre-training)",
        equation=r"s_l = W_l h_l + b_l \quad \text{for every layer } l",
        differs=(("pooled", "scores classes from every layer, for training one layer after another."),))

    def build(self, dims: Dims) -> LayerClasses:
        return self.build_for(dims, (dims.d_model,))

    def build_for(self, dims: Dims, widths: tuple[int, ...]) -> LayerClasses:
        """The head of a model whose layers have these widths."""
        if self.classes is None:
            raise dims.problem("n_classes", "missing.", "Say how many classes there are, or name them as labels.")
        if self.transform:
            raise dims.problem("transform", "the heads of layers are linear maps.", "Leave it out.")
        return LayerClasses(self, widths, self.classes)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_classes=3), cls(labels=("no", "yes"), dropout=0.1)]


class LayerClasses(Classifier):
    """A linear map [C,D_l] with a bias for each layer."""

    pooled = True

    def __init__(self, config: LayerClassesConfig, widths: tuple[int, ...], n_outputs: int) -> None:
        super().__init__()
        self.n_outputs, self.labels = n_outputs, config.labels
        self.dropout = Dropout(config.dropout)
        self.maps = nn.ModuleList(small(width, n_outputs) for width in widths)

    def scores(self, h: Float[Tensor, "B T D"], span: Span) -> Float[Tensor, "B C"]:
        return self.layer_scores(len(self.maps) - 1, h[:, 0])

    def layer_scores(self, layer: int, units: Float[Tensor, "B D"]) -> Float[Tensor, "B C"]:
        """The scores from a layer's units."""
        scores: Tensor = self.maps[layer](self.dropout(units))
        return scores
