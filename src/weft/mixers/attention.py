"""Self-attention: multi-head, multi-query and grouped-query, with any mask and position scheme."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Ticks
from weft.core.config import PartField
from weft.core.declarations import Declared, WidthRoles
from weft.core.layer import LayerState
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Output, Span
from weft.linear.linear import DividedDimension, Divisible, Division, Linear
from weft.masks import Bidirectional, Causal, Mask, MaskField, Prefix, Window
from weft.masks.visible import MaskFacts
from weft.mixers.base import MixerConfig
from weft.mixers.key_value import KeyValueShape, ReadableKeys
from weft.mixers.self_attention import HeadSizes, ScoreSettings, SelfAttention, attend, head_sizes, require_form
from weft.norms.base import Norm, NormConfig
from weft.ops.attention import ATTENTION, AttentionCall, ScoreTerm
from weft.ops.dropout import OwnDraws
from weft.ops.operator import apart
from weft.positions.base import NoPositionConfig, PositionConfig, PositionScheme, PositionTerm


@register
class AttentionConfig(MixerConfig):
    """Attention over the sequence's own tokens: softmax(scale q.k + bias, masked) v, by heads.

    n_kv_heads = n_heads is multi-head, 1 is multi-query, anything between grouped-query attention. Heads times d_head
    need not equal d_model. With ``clip_qkv`` c, queries, keys and values are clamped to [-c, c] as soon as they are
    projected (MPT). ``qk_norm`` normalises every head of queries and keys by itself, or with ``qk_norm_over: heads``
    all heads of a token's queries together, and all of its keys (OLMo 2). ``bias``: which projections have one;
    ``all_but_keys``: queries, values and the output (DeBERTa). With ``sinks`` every head has a learned number s that
    joins the scores of each softmax, and whose weight goes nowhere, so that a head may attend to nothing:
    exp(s_ij) / (exp(s) + sum_j exp(s_ij)) (gpt-oss). It is neither scaled, capped nor masked, and it starts at 0.

    Attributes:
        n_heads: query heads H.
        n_kv_heads: heads of keys and values K, of which H / K query heads share each; None: H.
        d_head: features of a head's queries and keys; None: d_model / n_heads.
        d_value: features of a head's values; None: d_head.
        mask: which keys a query may attend to, as an expression such as ``causal & window(128)``.
        position: a scheme that acts on queries and keys, on scores or on values.
        qk_norm: norm of queries and keys; None: none.
        qk_norm_over: whether each ``head`` is normalised by itself, or all ``heads`` of a token together.
        bias: which projections have a bias; ``all_but_keys``: queries, values and the output.
        clip_qkv: largest absolute value of queries, keys and values as they are projected; None: no limit.
        sinks: whether every head has a learned score whose weight goes nowhere.
        scores: scale, cap and dropout of the scores.
        backend: the form of attention; ``auto``: chosen by what it can serve and what pays.
    """

    kind: ClassVar[str] = "attention"
    about = About(
        source=("Vaswani et al. 2017, section 3.2; Shazeer 2019 (multi-query); Ainslie et al. 2023 (grouped-query); "
                "Agarwal et al. 2025, section 2.1 (learned sinks)"),
        equation=(r"y_i = W_o \operatorname{concat}_h \sum_{j \in A(i)} \operatorname{softmax}_j\left( \frac{q_i "
                  r"\cdot k_j}{\sqrt{E}} + b_{ij} \right) v_j"),
        differs=(("linear_attention", "its state grows with the text, and no key is ever summarised."),
                 ("latent_attention", "keeps keys and values themselves, in place of a latent vector that they are "
                                      "made from."),
                 ("gated_attention", "what its heads return is not gated.")),
        state_size=("n_kv_heads (d_head + d_value) numbers a token; a window w keeps w tokens, with global(0, ..., n "
                    "- 1) beside it n more"))

    n_heads: int = Field(default=4, gt=0)
    n_kv_heads: int | None = Field(default=None, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    mask: Annotated[Mask, MaskField()] = Causal()
    position: Annotated[PositionConfig, PartField("position")] = NoPositionConfig()
    qk_norm: Annotated[NormConfig, PartField("norm", shares=False)] | None = None
    qk_norm_over: Literal["head", "heads"] = "head"
    bias: Literal["none", "qkv", "output", "all", "all_but_keys"] = "none"
    clip_qkv: float | None = Field(default=None, gt=0)
    sinks: bool = False
    scores: ScoreSettings = ScoreSettings()
    backend: str = "auto"

    def width_fields(self) -> tuple[str, ...]:
        # Heads grow, and their number stays, unless their size is given.
        return ("d_value",) if self.d_head is None else ("n_heads", "n_kv_heads", "d_value")

    def in_words(self, d_model: int = 0) -> str:
        grouped = "" if self.n_kv_heads in (None, self.n_heads) else f" / {self.n_kv_heads} kv"
        name = "" if self.kind == AttentionConfig.kind else f"{self.about.title or self.kind.replace('_', ' ')}, "
        mask = "" if self.mask == Causal() else repr(self.mask)
        words = [f"{name}{self.n_heads} heads{grouped}", mask, self.position.in_words(d_model)]
        return ", ".join(each for each in words if each)

    def build(self, dims: Dims) -> Attention:
        sizes = self.sizes(dims)
        return Attention(self, sizes, self.scheme(sizes.heads, sizes.d_head, dims), dims)

    def sizes(self, dims: Dims) -> HeadSizes:
        """Return the sizes of the heads, checked against the other fields."""
        sizes = head_sizes(self.n_heads, self.n_kv_heads, self.d_head, self.d_value, dims)
        require_form(self.backend, self.scores.softcap, dims)
        if self.sinks and self.backend in ("sdpa", "grouped_rows", "one_query"):
            raise dims.problem("backend", f"the form {self.backend!r} has no sinks.", "Use 'auto', 'native', "
                               "'banded' or 'reference'.")
        if sizes.heads % self.mask.heads():
            raise dims.problem("mask", f"{self.mask!r} distinguishes {self.mask.heads()} heads, which does not divide "
                               f"{sizes.heads} heads.", "Choose n_heads among its multiples.")
        return sizes

    def attended(self) -> Mask:
        """Return who attends to whom, where fields besides ``mask`` say it too."""
        return self.mask

    def scheme(self, heads: int, size: int, dims: Dims) -> PositionScheme:
        """Build the position scheme for heads with ``size`` features that carry positions."""
        scheme = self.position.build_for_heads(dims.at("position"), heads, size)
        if "embeddings" in scheme.acts_on:
            raise dims.problem("position", f"{self.position.kind!r} acts on embeddings, not inside attention.",
                               "Put it in the model's `position`.")
        if "values" in scheme.acts_on:
            self._require_value_terms(size, dims)
        return scheme

    def _require_value_terms(self, size: int, dims: Dims) -> None:
        """Refuse fields under which a position scheme cannot add to values."""
        kind = self.position.kind
        if self.d_value not in (None, size):
            raise dims.problem("d_value", f"{kind!r} adds vectors of the keys' size {size} to values of size "
                               f"{self.d_value}.", "Leave d_value out.")
        if self.backend in ("sdpa", "grouped_rows", "one_query", "native", "banded"):
            raise dims.problem("backend", f"the form {self.backend!r} does not compute attention weights, which "
                               f"{kind!r} needs for its terms on values.", "Use 'auto' or 'reference'.")

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(n_heads=2),
            cls(n_heads=4, n_kv_heads=2, d_head=3, d_value=5, bias="all", scores=ScoreSettings(softcap=2.0)),
            cls(n_heads=3, n_kv_heads=1, d_head=4, mask=Causal() & Window(3), backend="reference"),
            cls(n_heads=2, d_head=4, mask=Causal() | Prefix(), bias="qkv",
                scores=ScoreSettings(scale=0.3, dropout=0.1)),
            cls(n_heads=2, d_head=4, mask=Bidirectional(), bias="output", clip_qkv=0.5),
            cls.model_validate({"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "position": "rope", "qk_norm": "rmsnorm",
                                "mask": "causal & window(4)", "backend": "sdpa"}),
            cls.model_validate({"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "position": "rope", "qk_norm": "rmsnorm",
                                "qk_norm_over": "heads"}),
            cls.model_validate({"n_heads": 2, "n_kv_heads": 1, "d_head": 4, "d_value": 3, "bias": "all_but_keys"}),
            cls.model_validate({"n_heads": 2, "d_head": 3, "position": "alibi",
                                "mask": "causal & (window(3) | global(0, 1))"}),
            cls.model_validate({"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "position": "rope", "sinks": True,
                                "mask": "causal & window(4)"}),
        ]


PROJECTIONS = MappingProxyType(dict.fromkeys(("qkv", "output"), "attention projections"))
"""The role of each linear map of attention, by child module."""


class Attention(SelfAttention, Divisible):
    """Self-attention. Stages: `project` (projection, clip, norm, rotation), `store`, `call` (which describes scale,
    visible keys, score terms, softcap and value terms), the operation itself, and `mix`. What the state keeps is said
    in `SelfAttention`."""

    def __init__(self, config: AttentionConfig, sizes: HeadSizes, position: PositionScheme, dims: Dims) -> None:
        super().__init__(config.attended(), sizes.heads, position, config.scores.dropout, config.backend)
        self.config, self.sizes = config, sizes
        bias, self.widths = config.bias, sizes.split()
        self.qkv = Linear(dims.d_model, sum(self.widths), bias=bias in ("qkv", "all"),
                          outputs=dict(zip("qkv", self.widths, strict=True)))
        self.output = Linear(sizes.heads * sizes.d_value, dims.d_model, bias=bias in ("output", "all", "all_but_keys"))
        self.qv_bias = (nn.Parameter(torch.zeros(self.widths[0] + self.widths[2])) if bias == "all_but_keys" else None)
        norm = config.qk_norm
        together = config.qk_norm_over == "heads"
        normed = [sizes.d_head * (heads if together else 1) for heads in (sizes.heads, sizes.kv_heads)]
        self.q_norm: Norm | None = None if norm is None else norm.build_size(normed[0])
        self.k_norm: Norm | None = None if norm is None else norm.build_size(normed[1])
        prescribed = position.scale(sizes.d_head) if config.scores.scale is None else config.scores.scale
        self.scale = 1.0 / math.sqrt(sizes.d_head) if prescribed is None else prescribed
        self.sinks = nn.Parameter(torch.zeros(sizes.heads)) if config.sinks else None
        self.own: OwnDraws | None = None  # where other processes have other heads

    def declares(self) -> Declared:
        roles = WidthRoles(Attention, products={"scale": self.sizes.d_head})
        return replace(super().declares(), child_roles=PROJECTIONS, width_roles=roles)

    def division(self) -> Division | str:
        sizes, q, v = self.sizes, self.widths[0], self.widths[2]
        if self.position.acts_on - {"queries_keys"} or any(True for _ in self.position.parameters()):
            return "its position scheme has values of its own for every head"
        if self.mask.heads() > 1:
            return "its mask distinguishes heads"
        if self.q_norm is not None and self.config.qk_norm_over == "heads":
            return "it normalises all heads of a token together (qk_norm_over: heads)"
        along = {"qv_bias": DividedDimension(0, (q, v)), "sinks": DividedDimension(0, (sizes.heads,))}
        return Division({"n_heads": sizes.heads, "n_kv_heads": sizes.kv_heads}, into={"qkv": self.widths},
                        out_of={"output": (sizes.heads * sizes.d_value,)},
                        along={name: place for name, place in along.items() if getattr(self, name) is not None},
                        summed=("q_norm", "k_norm"))

    def divide(self, parts: int, place: int) -> None:
        sizes = self.sizes
        self.sizes = HeadSizes(sizes.heads // parts, sizes.kv_heads // parts, sizes.d_head, sizes.d_value)
        self.widths, self.rule = self.sizes.split(), MaskFacts.of(self.mask, self.sizes.heads)
        self.own = OwnDraws(place)

    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        q, k, v = self.project(x, span.ticks)
        stored = self.store(state, k, v, span)
        call = self.call(q, stored, span)
        y = self.attention(call) if self.own is None or not call.dropout else self.own(self.attention, x.device, call)
        return Output(self.mix(y), stored.state)

    # The stages, which subclasses override one by one.

    def stored_sizes(self) -> KeyValueShape:
        """Return the sizes of the keys and values that the state stores."""
        return KeyValueShape(self.sizes.kv_heads, self.sizes.d_head, self.sizes.d_value)

    def attention(self, call: AttentionCall) -> Float[Tensor, "B T H F"]:
        """The operation."""
        return ATTENTION(call, self.form) if self.asked is None else attend(self, call, self.form)

    def project(self, x: Float[Tensor, "B T D"], ticks: Ticks) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B,T,H,E] and keys [B,T,K,E], normalised per head if configured and rotated, and values
        [B,T,K,F]."""
        return self.projected(self._modules["qkv"], x, ticks)  # an attribute would go through Module.__getattr__

    def projected(self, projection: Any, x: Float[Tensor, "B T D"], ticks: Ticks) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values by this projection to all three."""
        sizes = self.sizes
        position: Any = self._modules["position"]
        qkv = projection(x)
        if self.qv_bias is not None:
            qkv = qkv + self._without_keys(self.qv_bias)
        if self.config.clip_qkv is not None:
            qkv = qkv.clamp(-self.config.clip_qkv, self.config.clip_qkv)
        if self.q_norm is None and "queries_keys" not in position.acts_on:
            q, k, v = qkv.split_with_sizes(self.widths, -1)
            batch, steps = x.shape[0], x.shape[1]
            return (q.view(batch, steps, sizes.heads, sizes.d_head), k.view(batch, steps, sizes.kv_heads, sizes.d_head),
                    v.view(batch, steps, sizes.kv_heads, sizes.d_value))
        wide, v = qkv.split_with_sizes([sum(self.widths[:2]), self.widths[2]], -1)
        both = wide.unflatten(-1, (sizes.heads + sizes.kv_heads, sizes.d_head))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = both.split_with_sizes([sizes.heads, sizes.kv_heads], 2)
            both = torch.cat([self._normed(self.q_norm, q), self._normed(self.k_norm, k)], dim=2)
        else:
            v = apart(v)
        q, k = position.rotate(both, ticks).split_with_sizes([sizes.heads, sizes.kv_heads], 2)
        return q, k, v.unflatten(-1, (sizes.kv_heads, sizes.d_value))

    def content(self, x: Float[Tensor, "N D"]) -> tuple[Tensor, Tensor]:
        """Return queries [N,H,E] and keys [N,K,E] of vectors that are not tokens, such as a position scheme's: they are
        projected as tokens are, and not rotated."""
        sizes, clip = self.sizes, self.config.clip_qkv
        qkv = self.qkv(x) if self.qv_bias is None else self.qkv(x) + self._without_keys(self.qv_bias)
        qkv = qkv if clip is None else qkv.clamp(-clip, clip)
        q, k = (part.unflatten(-1, (-1, sizes.d_head)) for part in qkv.split_with_sizes(sizes.split(), -1)[:2])
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self._normed(self.q_norm, q), self._normed(self.k_norm, k)

    def _without_keys(self, bias: Float[Tensor, " N"]) -> Float[Tensor, " M"]:
        """Biases of queries and values with zeros between them, for the keys."""
        q, v = bias.split_with_sizes([self.widths[0], self.widths[2]])
        return torch.cat([q, q.new_zeros(self.widths[1]), v])

    def _normed(self, norm: Norm, x: Float[Tensor, "... H E"]) -> Float[Tensor, "... H E"]:
        """Queries or keys, normalised by head or over all heads."""
        if self.config.qk_norm_over == "head":
            y: Tensor = norm(x)
            return y
        whole: Tensor = norm(x.flatten(-2))
        return whole.view(x.shape)

    def call(self, q: Float[Tensor, "B T H E"], stored: ReadableKeys, span: Span) -> AttentionCall:
        """Return the symbolic description of the attention operation, from which a form is chosen."""
        scores, keys = self.config.scores, stored.keys
        position: Any = self._modules["position"]
        return AttentionCall(
            q=q, k=stored.k.to(q.dtype), v=stored.v.to(q.dtype), scale=self.scale, visible=self.visible(keys, span),
            terms=self.terms(q, stored, span) if "scores" in position.acts_on else (),
            softcap=scores.softcap, sinks=self.sinks, dropout=self.dropout_rate if self.training else 0.0,
            value_terms=(partial(position.value_terms, ticks=span.ticks, keys=keys)
                         if "values" in position.acts_on else None))

    def terms(self, q: Tensor, stored: ReadableKeys, span: Span) -> tuple[ScoreTerm, ...]:
        """Return the terms that are added to the scaled scores, by a position scheme that acts on scores."""
        position: Any = self._modules["position"]
        return (PositionTerm(position, q, stored.k, span.ticks, stored.keys, position.prepared(self.content)),)

    def mix(self, y: Float[Tensor, "B T H F"]) -> Float[Tensor, "B T D"]:
        """Return the output projection of the heads' results."""
        output: Any = self._modules["output"]
        mixed: Tensor = output(y.flatten(2))
        return mixed
