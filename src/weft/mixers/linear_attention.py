"""Linear attention, normalised or as unnormalised fast weights."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from pydantic import model_validator
from torch import Tensor

from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.recurrent_layer import Carried, MatrixState
from weft.core.registry import register
from weft.core.span import Boundaries
from weft.masks import Bidirectional
from weft.mixers.kernel_attention import Features, KernelAttention, KernelAttentionConfig, NormalisedState
from weft.ops.feature_maps import FEATURE_MAPS, FeatureMap
from weft.positions.rope import RopeConfig


@register
class LinearAttentionConfig(KernelAttentionConfig):
    """Attention whose exponential is replaced by the product of two feature maps, in time O(T) and with a state of
    fixed size.

    Attributes:
        feature_map: of queries and keys: ``elu`` (elu(x) + 1), ``relu`` (with a floor of 0.001) or ``identity``.
        normalise: whether outputs are divided by the sum of their weights. Without, the layer is a linear network whose
            weights the tokens write and read, the fast weights of the 1990s (Schmidhuber 1992); its outputs grow with
            the length of the document, so a norm should follow.
    """

    kind: ClassVar[str] = "linear_attention"
    about = About(
        also_called=("linear_transformer",),
        source=("Katharopoulos et al. 2020, equations 4 to 7 and 16 to 20; Su et al. 2021, equation 19 (rotary "
                "positions); Schlag et al. 2021, section 2 (fast weights)"),
        equation=(r"y_t = \frac{\phi(q_t) S_t}{\phi(q_t) z_t}, \qquad S_t = S_{t-1} + \phi(k_t)^{\top} v_t, \quad z_t "
                  r"= z_{t-1} + \phi(k_t)"),
        differs=(("attention", "the softmax is replaced by feature maps, so that the state has a fixed size."),
                 ("performer", "the feature map is fixed and does not approximate softmax."),
                 ("retention", "forgets nothing.")),
        state_size="n_kv_heads d_head (d_value + 1) float32 numbers; without normaliser, d_value of them")

    feature_map: FeatureMap = "elu"
    normalise: bool = True

    @model_validator(mode="after")
    def _require_positive_features(self) -> Self:
        if self.normalise and self.feature_map == "identity":
            raise rule("feature_map", "the products of queries and keys without a feature map have either sign, so the "
                       "sum that outputs are divided by can be 0.", "Give 'elu', or set normalise to false.")
        return self

    def build(self, dims: Dims) -> LinearAttention:
        return LinearAttention(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2), cls(n_heads=4, n_kv_heads=2, d_head=4, d_value=3, bias="all", position=RopeConfig()),
                cls(n_heads=2, d_head=3, normalise=False, feature_map="identity"),
                cls(n_heads=2, feature_map="relu", bias="qkv"),
                cls(n_heads=2, n_kv_heads=1, d_head=4, mask=Bidirectional(), bias="output"),
                cls(n_heads=2, mask=Bidirectional(), position=RopeConfig(layout="half_split")),
                cls(n_heads=2, d_head=4, normalise=False, position=RopeConfig())]


class LinearAttention(KernelAttention):
    """y_t = phi(q_t) S_t / phi(q_t) z_t with a fixed feature map phi of queries and keys, which are not scaled by
    1 / sqrt(d_head); without normaliser y_t = phi(q_t) S_t.

    Below 0 the map elu(x) + 1 is computed as exp(x), which common implementations round to 0 from -17 on in float32.
    They also add an epsilon of about 1e-6 to the normaliser, and this one does not.
    """

    def __init__(self, config: LinearAttentionConfig, dims: Dims) -> None:
        super().__init__(config, config.sizes(dims).d_head, dims, normalise=config.normalise)
        self.config = config
        self.state_type = NormalisedState if config.normalise else MatrixState

    def declares(self) -> Declared:
        return replace(super().declares(), joins_pieces=True)

    def mapped(self, q: Tensor, k: Tensor, before: Carried, boundaries: Boundaries) -> Features:
        phi = FEATURE_MAPS[self.config.feature_map]
        return Features(phi(q), phi(k))
