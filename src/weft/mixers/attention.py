"""Self-attention: multi-head, multi-query and grouped-query, with any mask and position scheme."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from weft.core.clock import Clock, Keys, Ticks
from weft.core.config import Dims, PartField, Settings
from weft.core.errors import UnsupportedError
from weft.core.layer import Layer, LayerState
from weft.core.output import Output
from weft.core.registry import register
from weft.core.span import Memory, Span
from weft.core.traits import Trait
from weft.masks import Bidirectional, Causal, Documents, Mask, MaskField, Prefix, Window
from weft.mixers.base import MixerConfig
from weft.mixers.key_value import KeyValueShape, KeyValueState, RollingState, start_growing, start_rolling, store
from weft.norms.base import Norm, NormConfig
from weft.ops.attention import AttentionInputs, Backend, attend, choose
from weft.ops.rematerialize import apart
from weft.positions.base import PositionConfig, PositionScheme
from weft.positions.none import NoPositionConfig


class ScoreSettings(Settings):
    """How scores are made from q.k: ``scale`` (None: 1/sqrt(d_head), or what the position scheme prescribes),
    ``softcap`` c in c tanh(s/c), and the probability with which a weight is dropped in training."""

    scale: float | None = None
    softcap: float | None = Field(default=None, gt=0)
    dropout: float = Field(default=0.0, ge=0, lt=1)


@register
class AttentionConfig(MixerConfig):
    """Attention over the sequence's own tokens: softmax(scale q.k + bias, masked) v, by heads.

    n_kv_heads = n_heads is multi-head, 1 is multi-query, anything between grouped-query attention. Heads times d_head
    need not equal d_model. With ``clip`` c, queries, keys and values are clamped to [-c, c] as soon as they are
    projected (MPT).
    """

    kind: ClassVar[str] = "attention"
    source: ClassVar[str] = ("Vaswani et al. 2017, section 3.2; Shazeer 2019 (multi-query); "
                             "Ainslie et al. 2023 (grouped-query)")
    state_size: ClassVar[str] = "n_kv_heads (d_head + d_value) numbers a token; a window w keeps w tokens"

    n_heads: int = Field(default=4, gt=0)
    n_kv_heads: int | None = Field(default=None, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    mask: Annotated[Mask, MaskField()] = Causal()
    position: Annotated[PositionConfig, PartField("position")] = NoPositionConfig()
    qk_norm: Annotated[NormConfig, PartField("norm", shares=False)] | None = None
    bias: Literal["none", "qkv", "output", "all"] = "none"
    clip: float | None = Field(default=None, gt=0)
    scores: ScoreSettings = ScoreSettings()
    backend: Backend = "auto"

    def build(self, dims: Dims) -> Attention:
        sizes = head_sizes(self.n_heads, self.n_kv_heads, self.d_head, self.d_value, dims)
        if self.backend == "sdpa" and self.scores.softcap is not None:
            raise dims.problem("backend", "the backend 'sdpa' cannot express a softcap.", "Use 'auto' or 'reference'.")
        if sizes.heads % self.mask.heads():
            raise dims.problem("mask", f"{self.mask!r} tells {self.mask.heads()} heads apart, which does not divide "
                               f"{sizes.heads} heads.", "Choose n_heads among its multiples.")
        scheme = self.position.build_for_heads(dims.at("position"), sizes.heads, sizes.d_head)
        if "embeddings" in scheme.acts_on:
            raise dims.problem("position", f"{self.position.kind!r} acts on embeddings, not inside attention.",
                               "Put it in the model's `position`.")
        return Attention(self, sizes, scheme, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls(n_heads=2),
            cls(n_heads=4, n_kv_heads=2, d_head=3, d_value=5, bias="all", scores=ScoreSettings(softcap=2.0)),
            cls(n_heads=3, n_kv_heads=1, d_head=4, mask=Causal() & Window(3), backend="reference"),
            cls(n_heads=2, d_head=4, mask=Causal() | Prefix(), bias="qkv",
                scores=ScoreSettings(scale=0.3, dropout=0.1)),
            cls(n_heads=2, d_head=4, mask=Bidirectional(), bias="output", clip=0.5),
            cls.model_validate({"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "position": "rope", "qk_norm": "rmsnorm",
                                "mask": "causal & window(4)", "backend": "sdpa"}),
        ]


@dataclass(frozen=True)
class HeadSizes:
    """Query heads H, key/value heads K, head size E and value size F."""

    heads: int
    kv_heads: int
    d_head: int
    d_value: int

    def split(self) -> tuple[int, int, int]:
        """Widths of the fused projection: queries, keys, values."""
        return self.heads * self.d_head, self.kv_heads * self.d_head, self.kv_heads * self.d_value


PROJECTIONS = MappingProxyType(dict.fromkeys(("qkv", "output"), "attention projections"))
"""What the linear maps of attention are listed under."""


def served_by(call: AttentionInputs, backend: Backend) -> Mapping[str, str]:
    """The backend that serves such a call on this machine, and why."""
    with torch.set_grad_enabled(call.q.shape[1] > 1):
        return {"Attention": ": ".join(choose(call, backend))}


def head_sizes(n_heads: int, n_kv_heads: int | None, d_head: int | None, d_value: int | None,
               dims: Dims) -> HeadSizes:
    """Fill in what was left out and refuse what does not divide."""
    kv_heads = n_heads if n_kv_heads is None else n_kv_heads
    if n_heads % kv_heads:
        raise dims.problem("n_kv_heads", f"{n_heads} query heads do not divide into {kv_heads} key/value heads.",
                           "Choose n_kv_heads among the divisors of n_heads.")
    if d_head is None and dims.d_model % n_heads:
        raise dims.problem("n_heads", f"d_model {dims.d_model} does not divide into {n_heads} heads.",
                           "Choose another number of heads, or give d_head.")
    size = dims.d_model // n_heads if d_head is None else d_head
    return HeadSizes(n_heads, kv_heads, size, size if d_value is None else d_value)


class Attention(Layer):
    """Self-attention. Stages: project, clip, norm, rotate, store, score, bias, cap, mask, normalise, value terms,
    output.

    Its state is the keys and values so far, or with a mask that never looks back W tokens or more a rolling buffer.
    """

    role = "attention scores"

    def __init__(self, config: AttentionConfig, sizes: HeadSizes, position: PositionScheme, dims: Dims) -> None:
        super().__init__()
        self.config, self.sizes, self.mask, self.position = config, sizes, config.mask, position
        bias = config.bias
        self.qkv = nn.Linear(dims.d_model, sum(sizes.split()), bias=bias in ("qkv", "all"))
        self.output = nn.Linear(sizes.heads * sizes.d_value, dims.d_model, bias=bias in ("output", "all"))
        norm = config.qk_norm
        self.q_norm: Norm | None = None if norm is None else norm.build_size(sizes.d_head)
        self.k_norm: Norm | None = None if norm is None else norm.build_size(sizes.d_head)
        prescribed = position.scale(sizes.d_head) if config.scores.scale is None else config.scores.scale
        self.scale = 1.0 / math.sqrt(sizes.d_head) if prescribed is None else prescribed
        self.reach = self.mask.reach() if self.mask.causal() else None
        self.state_type = KeyValueState if self.reach is None else RollingState
        self.dropout_rate = config.scores.dropout

    def own_traits(self) -> frozenset[Trait]:
        return {"none": frozenset[Trait](), "prefix": frozenset({Trait.PREFIX_FIRST}),
                "any": frozenset({Trait.BIDIRECTIONAL})}[self.mask.lookahead()]

    def borders(self) -> tuple[int, ...]:
        return self.mask.borders()

    def facts(self) -> Mapping[str, int | None]:
        return dict.fromkeys(self.mask.reads(), self.reach)

    def child_roles(self) -> Mapping[str, str]:
        return PROJECTIONS

    def attended(self) -> Mask:
        return self.mask

    def served_by(self, steps: int) -> Mapping[str, str]:
        """The backend of a call without gradients on this CPU for single tokens, with them for more."""
        points, tokens = self.position.acts_on, torch.empty(1, steps, 1, 1)
        learned = steps > 1 and any(p.requires_grad for p in self.position.parameters())
        bias = torch.empty(1, 1, steps, steps, requires_grad=learned) if "scores" in points else None
        call = AttentionInputs(q=tokens, k=tokens, v=tokens, scale=1.0, bias=bias, softcap=self.config.scores.softcap,
                               value_terms=(lambda weights: None) if "values" in points else None)
        return served_by(call, self.config.backend)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> LayerState:
        if self.mask.lookahead() == "any":
            raise UnsupportedError(f"attention under the mask {self.mask!r} sees later tokens, so it has no state.",
                                   where="init_state", remedy="Call it without a state, on the whole sequence.")
        keeps = bool(self.position.acts_on & {"scores", "values"})
        shape = KeyValueShape(self.sizes.kv_heads, self.sizes.d_head, self.sizes.d_value, keeps)
        if self.reach is None:
            return start_growing(clock, shape, capacity, dtype)
        return start_rolling(clock, shape, self.reach, dtype)

    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        ticks = span.ticks
        q, k, v = self._project(x, ticks)
        stored = store(state, k, v, span)
        own = state is None or span.fresh
        causal, allowed = self._visibility(ticks, stored.keys, span, own)
        scores, acts_on = self.config.scores, self.position.acts_on
        call = AttentionInputs(
            q=q, k=stored.k.to(q.dtype), v=stored.v.to(q.dtype), scale=self.scale,
            bias=self.position.bias(q, stored.k, ticks, stored.keys) if "scores" in acts_on else None,
            allowed=allowed, causal=causal, softcap=scores.softcap, dropout=self.dropout_rate if self.training else 0.0,
            value_terms=(partial(self.position.value_terms, ticks=ticks, keys=stored.keys) if "values" in acts_on
                         else None))
        return Output(self.output(attend(call, self.config.backend).flatten(2)), stored.state)

    def _project(self, x: Tensor, ticks: Ticks) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B,T,H,E] and keys [B,T,K,E], normalised per head where declared and rotated; values [B,T,K,F]."""
        sizes = self.sizes
        qkv = self.qkv(x) if self.config.clip is None else self.qkv(x).clamp(-self.config.clip, self.config.clip)
        if self.q_norm is None and "queries_keys" not in self.position.acts_on:
            q, k, v = qkv.split_with_sizes(sizes.split(), -1)
            return (q.unflatten(-1, (sizes.heads, sizes.d_head)), k.unflatten(-1, (sizes.kv_heads, sizes.d_head)),
                    v.unflatten(-1, (sizes.kv_heads, sizes.d_value)))
        wide, v = qkv.split_with_sizes([sum(sizes.split()[:2]), sizes.split()[2]], -1)
        both = wide.unflatten(-1, (sizes.heads + sizes.kv_heads, sizes.d_head))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = both.split_with_sizes([sizes.heads, sizes.kv_heads], 2)
            both = torch.cat([self.q_norm(q), self.k_norm(k)], dim=2)
        else:
            v = apart(v)
        q, k = self.position.rotate(both, ticks).split_with_sizes([sizes.heads, sizes.kv_heads], 2)
        return q, k, v.unflatten(-1, (sizes.kv_heads, sizes.d_value))

    def _visibility(self, ticks: Ticks, keys: Keys, span: Span, own: bool) -> tuple[bool, Tensor | None]:
        """Whether the plain causal kernel serves, else which keys each query may see; None when all."""
        steps = ticks.order.shape[1]
        window = self.mask.causal_window()
        reach = None if window is None else window.size
        if window is not None and not ticks.packed:
            if own and (reach is None or steps <= reach):
                return True, None
            if span.uniform and steps == 1 and span.bound is not None and (reach is None or span.bound >= reach):
                return False, None
        if own and span.full and not ticks.packed and self.mask == Bidirectional():
            return False, None
        return False, fenced(self.mask, ticks, keys, self.sizes.heads)


def fenced(mask: Mask, ticks: Ticks, keys: Keys, heads: int) -> Tensor:
    """[#B,#H,T,S]: what the mask allows among the keys that exist, within each query's own document."""
    def work() -> Tensor:
        allowed = mask.allowed(ticks, keys, heads if mask.heads() > 1 else None)
        if ticks.packed:
            allowed = allowed & Documents().allowed(ticks, keys)
        return allowed if keys.valid is None else allowed & keys.valid[:, None, None, :]

    return work() if keys.layout is None else ticks.once((mask, heads, keys.layout), work)
