"""Fast weights: a linear network whose weights the tokens write, by a sum or by the delta rule."""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar, Literal, Self

from jaxtyping import Float
from pydantic import Field, model_validator
from torch import Tensor

from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.part_config import About, Dims
from weft.core.recurrent_layer import Carried, MatrixState, Recurred, RecurrentLayer
from weft.core.registry import register
from weft.core.span import Boundaries, Span
from weft.linear.linear import Linear
from weft.mixers.base import MixerConfig
from weft.mixers.self_attention import HeadSizes, head_sizes
from weft.ops.delta_rule import delta_rule
from weft.ops.feature_maps import FEATURE_MAPS, deterministic_projection
from weft.ops.linear_recurrence import linear_recurrence
from weft.ops.linear_recurrence_chunks import CHUNK
from weft.ops.operator import widen

PROJECTIONS = MappingProxyType(dict.fromkeys(("qkv", "rate", "output"), "memory projections"))
EPSILON = 1e-5
"""Added to the sums by which features are divided, as in released code."""


@register
class FastWeightsConfig(MixerConfig):
    """A memory to which tokens add outer products of keys and values, or which they correct by the delta rule.

    The fast weights of the 1990s (Schmidhuber 1992) are ``rule: sum``, ``feature_map: identity`` and
    ``normalise_features: false``; a model's outputs then grow with the length of the document, so a norm should follow.

    Attributes:
        n_heads: heads H.
        d_head: features of a head's queries and keys before the feature map; None: d_model / n_heads.
        d_value: features of a head's values; None: d_head.
        rule: ``delta``, by which a token replaces a share of what its key returns, or ``sum``.
        feature_map: of queries and keys: ``dpfp``, ``elu`` (elu(x) + 1), ``relu`` (with a floor of 0.001) or
            ``identity``.
        nu: by which ``dpfp`` makes 2 nu d_head features.
        normalise_features: whether the features of a query or key are divided by their sum.
    """

    kind: ClassVar[str] = "fast_weights"
    about = About(
        also_called=("fast_weight_programmer", "dpfp"),
        source="Schlag et al. 2021 (arXiv:2102.11174), sections 2, 4.2 and 5.3; Schmidhuber 1992",
        equation=(r"S_t = S_{t-1} + \beta_t\, \phi(k_t) \left( v_t - \phi(k_t)^{\top} S_{t-1} \right)^{\top}, \qquad "
                  r"y_t = W_o\, \phi(q_t) S_t"),
        differs=(("delta_net", "queries and keys pass a feature map, and there is no convolution or norm."),
                 ("linear_attention", "a token can correct what was stored.")),
        state_size="n_heads M d_value float32 numbers; M = 2 nu d_head features for dpfp, else d_head")

    n_heads: int = Field(default=4, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    rule: Literal["delta", "sum"] = "delta"
    feature_map: Literal["dpfp", "elu", "relu", "identity"] = "dpfp"
    nu: int = Field(default=1, gt=0)
    normalise_features: bool = True

    @model_validator(mode="after")
    def _require_bounded_keys(self) -> Self:
        if self.feature_map == "identity" and self.normalise_features:
            raise rule("feature_map", "numbers of either sign have no sum to divide by, for it can be 0.",
                       "Give 'dpfp', 'elu' or 'relu', or set normalise_features to false.")
        if self.rule == "delta" and not self.normalise_features:
            raise rule("normalise_features", "false, but by the delta rule a memory with keys longer than 1 can grow "
                       "without end.", "Set it to true, give the rule 'sum', or use the mixer 'delta_net'.")
        if "nu" in self.model_fields_set and self.nu != 1 and self.feature_map != "dpfp":
            raise rule("nu", f"{self.nu}, but the feature map {self.feature_map!r} has none.",
                       "Leave nu out, or give the feature map 'dpfp'.")
        return self

    def build(self, dims: Dims) -> FastWeights:
        return FastWeights(self, head_sizes(self.n_heads, None, self.d_head, self.d_value, dims), dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2, d_head=3, nu=2), cls(n_heads=2, d_value=3, feature_map="elu"),
                cls(n_heads=3, d_head=2, rule="sum", feature_map="identity", normalise_features=False)]


class FastWeights(RecurrentLayer[tuple[Tensor, Tensor | None]]):
    """S_t = S_{t-1} + beta_t phi(k_t) (v_t - phi(k_t)^T S_{t-1})^T with beta_t = sigmoid(x_t W_b) of every head, or
    S_t = S_{t-1} + phi(k_t) v_t^T, and y = (phi(q_t) S_t) W_o.

    phi divides its features by their sum unless ``normalise_features`` is false, so that a key's are at most 1 long and
    the delta rule cannot overshoot. State: S, H M d_value numbers in float32 or better, in which all of it is computed.
    """

    state_type = MatrixState

    def __init__(self, config: FastWeightsConfig, sizes: HeadSizes, dims: Dims) -> None:
        super().__init__()
        self.config, self.sizes, self.widths = config, sizes, sizes.split()
        self.features = sizes.d_head * (2 * config.nu if config.feature_map == "dpfp" else 1)
        self.qkv = Linear(dims.d_model, sum(self.widths), bias=False,
                          outputs=dict(zip("qkv", self.widths, strict=True)))
        self.rate = Linear(dims.d_model, sizes.heads, bias=True) if config.rule == "delta" else None
        self.output = Linear(sizes.heads * sizes.d_value, dims.d_model, bias=False)

    def declares(self) -> Declared:
        return Declared(role="memory", child_roles=PROJECTIONS, borders=(CHUNK,), joins_pieces=True)

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.sizes.heads, self.features, self.sizes.d_value),)

    def project(self, x: Float[Tensor, "B T D"], before: Carried, span: Span) -> tuple[Tensor, Tensor | None]:
        return self.qkv(x), None if self.rate is None else self.rate(x)

    def recur(self, projected: tuple[Tensor, Tensor | None], before: Carried, boundaries: Boundaries,
              span: Span) -> Recurred:
        qkv, rate = projected
        q, k, v = widen(qkv).split_with_sizes(self.widths, -1)
        q, k, v = self._mapped(q), self._mapped(k), v.unflatten(-1, (self.sizes.heads, -1))
        if rate is None:
            o, sums = linear_recurrence(q, k, v, None, before[0], *boundaries)
        else:
            write = k * widen(rate).sigmoid()[..., None]
            o, sums = delta_rule(q, write, v, k, -write, None, before[0], *boundaries)
        return Recurred(o.flatten(2).to(qkv.dtype), (sums,))

    def _mapped(self, x: Float[Tensor, "B T A"]) -> Float[Tensor, "B T H M"]:
        x = x.unflatten(-1, (self.sizes.heads, -1))
        name = self.config.feature_map
        features = deterministic_projection(x, self.config.nu) if name == "dpfp" else FEATURE_MAPS[name](x)
        return features / (features.sum(-1, keepdim=True) + EPSILON) if self.config.normalise_features else features
