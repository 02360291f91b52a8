"""Multi-head latent attention: the state keeps one short vector a token, from which all heads make keys and values."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.config import PartField
from weft.core.declarations import Declared
from weft.core.layer import LayerState
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Output, Span
from weft.linear.linear import Linear, dense
from weft.masks import Causal, Mask, MaskField
from weft.mixers.base import MixerConfig
from weft.mixers.key_value import KeyValueShape, ReadableKeys
from weft.mixers.self_attention import ScoreSettings, SelfAttention, attend, require_form
from weft.norms.base import Norm, NormConfig
from weft.norms.rmsnorm import RMSNormConfig
from weft.ops.attention import AttentionCall
from weft.ops.latent_attention import LATENT_ATTENTION, LatentCall
from weft.positions.base import PositionConfig, PositionScheme, PositionTerm
from weft.positions.rope import RopeConfig


@dataclass(frozen=True)
class LatentSizes:
    """Query heads H; features of a head's content N, of its position R and of its value F; the latent L; the latent of
    queries, or None where they are not compressed."""

    heads: int
    content: int
    turned: int
    value: int
    latent: int
    query_latent: int | None


@register
class LatentAttentionConfig(MixerConfig):
    """Multi-head latent attention: keys and values of all heads are made from one latent vector of each token, and the
    state keeps that vector alone, with one rotary key that all heads share.

    Attributes:
        n_heads: heads H.
        d_latent: L, features of the latent of keys and values; None: 4 d_nope, as in DeepSeek-V2.
        d_query_latent: features of the latent from which queries are made; None: queries are projected directly, as in
            DeepSeek-V2-Lite.
        d_nope: N, features of a head's queries and keys without positions; None: d_model / n_heads.
        d_rope: R, further features of a head's queries, and of the one key that all heads share, which positions turn:
            an even number; None: half of d_nope, rounded up to one.
        d_value: F, features of a head's values; None: d_nope.
        norm: of both latents.
        mask: which keys a query may attend to.
        position: turns the R features alone. Schemes on scores are possible where they depend on the distance alone.
        bias: whether the maps to the latents, and the output, have a bias; the maps from the latents have none.
        scores: of all N + R features, whose default scale is 1/sqrt(N + R). DeepSeek's models with YaRN multiply that
            by (0.1 mscale_all_dim ln(factor) + 1)^2: give the product as ``scale``.
        backend: the form of attention.
    """

    kind: ClassVar[str] = "latent_attention"
    about = About(
        also_called=("mla", "multi_head_latent_attention"),
        source="DeepSeek-AI 2024 (arXiv:2405.04434), section 2.1, equations 9 to 19",
        equation=(r"c_t = \operatorname{norm}(W_{DKV} x_t), \quad k_{h,t} = [W_{UK,h} c_t,\, r_t], \quad v_{h,t} = "
                  r"W_{UV,h} c_t, \quad y_t = W_o \operatorname{concat}_h \sum_s \operatorname{softmax}_s(s\, q_{h,t} "
                  r"\cdot k_{h,s})\, v_{h,s}"),
        differs=(("attention", "keeps one latent vector of a token, from which keys and values of all heads are "
                               "made."),),
        state_size="d_latent + d_rope numbers a token, whatever the number of heads; a window w keeps w tokens")

    n_heads: int = Field(default=4, gt=0)
    d_latent: int | None = Field(default=None, gt=0)
    d_query_latent: int | None = Field(default=None, gt=0)
    d_nope: int | None = Field(default=None, gt=0)
    d_rope: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    norm: Annotated[NormConfig, PartField("norm", shares=False)] = RMSNormConfig()
    mask: Annotated[Mask, MaskField()] = Causal()
    position: Annotated[PositionConfig, PartField("position")] = RopeConfig()
    bias: bool = False
    scores: ScoreSettings = ScoreSettings()
    backend: str = "auto"

    def build(self, dims: Dims) -> LatentAttention:
        sizes = self.sizes(dims)
        require_form(self.backend, self.scores.softcap, dims)
        if sizes.heads % self.mask.heads():
            raise dims.problem("mask", f"{self.mask!r} distinguishes {self.mask.heads()} heads, which does not divide "
                               f"{sizes.heads} heads.", "Choose n_heads among its multiples.")
        return LatentAttention(self, sizes, self._scheme(sizes, dims), dims)

    def sizes(self, dims: Dims) -> LatentSizes:
        """The sizes, defaults filled in. Raises `ConfigError`: d_model does not divide into heads, or d_rope is odd."""
        if self.d_nope is None and dims.d_model % self.n_heads:
            raise dims.problem("n_heads", f"d_model {dims.d_model} does not divide into {self.n_heads} heads.",
                               "Choose another number of heads, or give d_nope.")
        content = dims.d_model // self.n_heads if self.d_nope is None else self.d_nope
        turned = 2 * -(-content // 4) if self.d_rope is None else self.d_rope
        if turned % 2:
            raise dims.problem("d_rope", f"{turned} features do not make pairs that can be turned.",
                               "Give an even number.")
        return LatentSizes(self.n_heads, content, turned, self.d_value or content, self.d_latent or 4 * content,
                           self.d_query_latent)

    def _scheme(self, sizes: LatentSizes, dims: Dims) -> PositionScheme:
        """The position scheme of the turned features; one that would need whole keys is refused, since none exist."""
        scheme = self.position.build_for_heads(dims.at("position"), sizes.heads, sizes.turned)
        kind = self.position.kind
        if "embeddings" in scheme.acts_on:
            raise dims.problem("position", f"{kind!r} acts on embeddings, not inside attention.",
                               "Put it in the model's `position`.")
        if "values" in scheme.acts_on or ("scores" in scheme.acts_on and not scheme.relative):
            raise dims.problem("position", f"{kind!r} reads the keys or values of every head, which latent attention "
                               "does not keep.", "Use rope, which turns d_rope features of queries and of the shared "
                               "key; or alibi or t5, which depend on the distance alone; or the mixer 'attention'.")
        return scheme

    @classmethod
    def examples(cls) -> list[Self]:
        small = {"n_heads": 2, "d_nope": 4, "d_rope": 4, "d_latent": 6}
        return [cls(n_heads=2), cls.model_validate({**small, "d_query_latent": 5, "d_value": 3, "bias": True}),
                cls.model_validate({**small, "mask": "causal & window(3)", "d_latent": 3, "norm": "layernorm",
                                    "position": {"kind": "rope", "layout": "half_split", "scaling": {
                                        "kind": "yarn", "factor": 4.0, "original_length": 16, "mscale": 0.7,
                                        "mscale_all_dim": 1.0}}, "scores": {"scale": 0.5, "dropout": 0.1}}),
                cls.model_validate({**small, "mask": "causal | prefix", "position": "t5", "backend": "reference"}),
                cls.model_validate({**small, "mask": "bidirectional", "position": "none",
                                    "scores": {"softcap": 2.0}}),
                cls.model_validate({**small, "mask": "causal & (window(3) | global(0, 1))", "position": "alibi"})]


MAPS = MappingProxyType(dict.fromkeys(("query", "query_down", "query_up", "latent_down", "latent_up", "output"),
                                      "attention projections"))
"""The role of each linear map, by child module."""


class LatentAttention(SelfAttention):
    """Multi-head latent attention (DeepSeek-AI 2024, equations 9 to 19), x, y [B,T,D].

        c_t = norm(W_DKV x_t)             r_t = turn(W_KR x_t)                      kept: L + R numbers a token
        q_t = W_UQ norm(W_DQ x_t), or W_Q x_t without compression; of each head [n_t, p_t], and p_t is turned
        k_h,t = [W_UK,h c_t, r_t]         v_h,t = W_UV,h c_t
        y_t = W_O concat_h sum_s softmax_s(scale q_h,t . k_h,s) v_h,s

    ``query`` or ``query_down`` and ``query_up``: rows of each head together, N content features before R turned ones.
    ``latent_down`` [L+R, D]: the latent before the shared key. ``latent_up`` [H (N+F), L]: of each head, W_UK before
    W_UV. Keys and values are never kept; how a call makes them is the choice of `weft.ops.latent_attention`. There are
    no dropped or clipped features; both latents are normalised, as in the released models.
    """

    def __init__(self, config: LatentAttentionConfig, sizes: LatentSizes, position: PositionScheme, dims: Dims) -> None:
        super().__init__(config.mask, sizes.heads, position, config.scores.dropout, config.backend)
        self.config, self.sizes = config, sizes
        queries = sizes.heads * (sizes.content + sizes.turned)
        if sizes.query_latent is None:
            self.query = Linear(dims.d_model, queries, bias=False)
        else:
            self.query_down = Linear(dims.d_model, sizes.query_latent, bias=config.bias)
            self.query_norm: Norm = config.norm.build_size(sizes.query_latent)
            self.query_up = Linear(sizes.query_latent, queries, bias=False)
        self.latent_down = Linear(dims.d_model, sizes.latent + sizes.turned, bias=config.bias)
        self.latent_norm: Norm = config.norm.build_size(sizes.latent)
        # Read as a matrix where the queries are brought to the latents: another layout of it would not be used.
        self.latent_up = Linear(sizes.latent, sizes.heads * (sizes.content + sizes.value), bias=False,
                                allows=frozenset({"quantise", "adapt"}))
        self.output = Linear(sizes.heads * sizes.value, dims.d_model, bias=config.bias)
        size = sizes.content + sizes.turned
        prescribed = position.scale(size) if config.scores.scale is None else config.scores.scale
        self.scale = 1.0 / math.sqrt(size) if prescribed is None else prescribed

    def declares(self) -> Declared:
        return replace(super().declares(), child_roles=MAPS)

    def stored_sizes(self) -> KeyValueShape:
        return KeyValueShape(1, self.sizes.latent + self.sizes.turned, 0)

    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        content, turned, kept = self.project(x, span.ticks)
        stored = self.store(state, kept, kept[..., :0], span)
        matrix = dense(self.latent_up)
        call = LatentCall(content, turned, stored.k.to(content.dtype), self.latent_up,
                          None if matrix is None else matrix[0], partial(self._attend, stored=stored, span=span))
        mixed: Tensor = self.output(LATENT_ATTENTION(call).flatten(2))
        return Output(mixed, stored.state)

    def project(self, x: Float[Tensor, "B T D"], ticks: Ticks) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries' content [B,T,H,N] and turned features [B,T,H,R], and what is kept of the tokens
        [B,T,1,L+R]: the normalised latent and the turned key."""
        sizes = self.sizes
        q = self._queries(x, ticks).unflatten(-1, (sizes.heads, sizes.content + sizes.turned))
        content, own = q.split_with_sizes([sizes.content, sizes.turned], -1)
        latent, shared = self.latent_down(x).split_with_sizes([sizes.latent, sizes.turned], -1)
        turned = self.position.rotate(torch.cat([own, shared[:, :, None]], 2), ticks)
        own, shared = turned.split_with_sizes([sizes.heads, 1], 2)
        return content, own, torch.cat([self.latent_norm(latent, ticks.valid)[:, :, None], shared], -1)

    def _queries(self, x: Float[Tensor, "B T D"], ticks: Ticks) -> Tensor:
        """The queries of all heads, in one row for each token."""
        if self.sizes.query_latent is None:
            direct: Tensor = self.query(x)
            return direct
        made: Tensor = self.query_up(self.query_norm(self.query_down(x), ticks.valid))
        return made

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, *, stored: ReadableKeys, span: Span) -> Tensor:
        """Attention over keys [B,S,K,E] and values [B,S,K,F], made in whichever way."""
        position: Any = self.position
        terms = (() if "scores" not in position.acts_on else (PositionTerm(position, q, k, span.ticks, stored.keys),))
        call = AttentionCall(q=q, k=k, v=v, scale=self.scale, visible=self.visible(stored.keys, span), terms=terms,
                             softcap=self.config.scores.softcap, dropout=self.dropout_rate if self.training else 0.0)
        return attend(self, call, self.form)
