"""Cross-attention: a decoder's queries attend to an encoder's memory, which is projected once and stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from weft.core.clock import Clock
from weft.core.config import PartField
from weft.core.declarations import Adjustable, Declared
from weft.core.errors import InputError
from weft.core.layer import Layer, LayerState, advance
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import Memory, Output, Span
from weft.core.state import tensor_field
from weft.linear.linear import Linear
from weft.masks.visible import AllKeys, ExistingKeys
from weft.mixers.base import MixerConfig
from weft.mixers.self_attention import HeadSizes, ScoreSettings, attend, head_sizes, named_form, require_form
from weft.norms.base import Norm, NormConfig
from weft.ops.attention import AttentionCall


@dataclass(frozen=True)
class MemoryState(LayerState):
    """The memory's keys and values, which are the same for every token of the row.

    Attributes:
        keys: keys of the source's tokens.
        values: values of the source's tokens.
        valid: False for the source's padding.
    """

    keys: Float[Tensor, "B S K E"] = tensor_field(grows=1, along="source")
    values: Float[Tensor, "B S K F"] = tensor_field(grows=1, along="source")
    valid: Bool[Tensor, "B S"] = tensor_field(grows=1, fill=False, keeps_dtype=True, along="source")


class CrossMemory(NamedTuple):
    """The memory's keys [B,S,K,E] and values [B,S,K,F], and which are valid [B,S]; None if all are."""

    k: Tensor
    v: Tensor
    valid: Tensor | None


@register
class CrossAttentionConfig(MixerConfig):
    """softmax(scale q.k) v with queries from the decoder and keys and values from the encoder's output.

    Attributes:
        n_heads: query heads H.
        n_kv_heads: heads of keys and values K, of which H / K query heads share each; None: H.
        d_head: features of a head's queries and keys; None: d_model / n_heads.
        d_value: features of a head's values; None: d_head.
        qk_norm: norm of every head of queries and keys by itself; None: none.
        bias: which projections have a bias.
        scores: scale, cap and dropout of the scores.
        backend: the form of attention; ``auto``: chosen by what it can serve and what pays.
    """

    kind: ClassVar[str] = "cross_attention"
    about = About(
        source="Vaswani et al. 2017, section 3.2.3",
        equation=(r"y_i = W_o \operatorname{concat}_h \sum_{j} \operatorname{softmax}_j\left( \frac{q_i \cdot "
                  r"k_j}{\sqrt{E}} \right) v_j, \qquad q = W_q x, \quad k, v = W_k m, W_v m"),
        differs=(("attention", "keys and values are those of a source, fixed from the start."),),
        state_size="n_kv_heads (d_head + d_value) numbers a source token, fixed from the start")

    n_heads: int = Field(default=4, gt=0)
    n_kv_heads: int | None = Field(default=None, gt=0)
    d_head: int | None = Field(default=None, gt=0)
    d_value: int | None = Field(default=None, gt=0)
    qk_norm: Annotated[NormConfig, PartField("norm", shares=False)] | None = None
    bias: Literal["none", "qkv", "output", "all"] = "none"
    scores: ScoreSettings = ScoreSettings()
    backend: str = "auto"

    def build(self, dims: Dims) -> CrossAttention:
        require_form(self.backend, self.scores.softcap, dims)
        return CrossAttention(self, head_sizes(self.n_heads, self.n_kv_heads, self.d_head, self.d_value, dims), dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(n_heads=2), cls(n_heads=4, n_kv_heads=2, d_head=3, d_value=5, bias="all", backend="reference",
                                    scores=ScoreSettings(softcap=2.0, dropout=0.1)),
                cls.model_validate({"n_heads": 2, "d_head": 4, "qk_norm": "rmsnorm", "bias": "qkv"})]


CROSS_PROJECTIONS = MappingProxyType(dict.fromkeys(("q", "kv", "output"), "cross-attention projections"))


class CrossAttention(Layer, Adjustable):
    """Attention over a memory given when the state starts, or with ``span.memory`` in a call without a state."""

    state_type = MemoryState
    points = ("weights",)

    def __init__(self, config: CrossAttentionConfig, sizes: HeadSizes, dims: Dims) -> None:
        super().__init__()
        self.config, self.sizes, self.d_model = config, sizes, dims.d_model
        widths = sizes.split()
        biased = config.bias in ("qkv", "all")
        self.q = Linear(dims.d_model, widths[0], bias=biased)
        self.kv = Linear(dims.d_model, widths[1] + widths[2], bias=biased)
        self.output = Linear(sizes.heads * sizes.d_value, dims.d_model, bias=config.bias in ("output", "all"))
        norm = config.qk_norm
        self.q_norm: Norm | None = None if norm is None else norm.build_size(sizes.d_head)
        self.k_norm: Norm | None = None if norm is None else norm.build_size(sizes.d_head)
        self.scale = 1.0 / math.sqrt(sizes.d_head) if config.scores.scale is None else config.scores.scale
        self.form = named_form(config.backend)
        self.dropout_rate = config.scores.dropout

    def declares(self) -> Declared:
        # It joins pieces, since the source is that of the whole rows, and no call changes it.
        return Declared(role="cross-attention scores", child_roles=CROSS_PROJECTIONS, source_width=self.d_model,
                        joins_pieces=True)

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> MemoryState:
        source = _require(memory, clock.seen.shape[0])
        k, v = self._project(source.h)
        valid = source.valid()
        shape = source.h.shape[:2]
        known = torch.ones(shape, dtype=torch.bool, device=k.device) if valid is None else valid
        # Contiguous, as in a state read from a file: matrix products of another memory layout round differently.
        return MemoryState(clock, k.to(dtype).contiguous(), v.to(dtype).contiguous(), known)

    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        known = self._known(state, span, x.shape[0])
        q = self.q(x).unflatten(-1, (self.sizes.heads, self.sizes.d_head))
        q = q if self.q_norm is None else self.q_norm(q)
        scores = self.config.scores
        seen = AllKeys() if known.valid is None else ExistingKeys(known.valid, x.shape[1])
        call = AttentionCall(q=q, k=known.k.to(q.dtype), v=known.v.to(q.dtype), scale=self.scale, visible=seen,
                             softcap=scores.softcap, dropout=self.dropout_rate if self.training else 0.0)
        return Output(self.output(attend(self, call, self.form).flatten(2)), advance(state, span))

    def _known(self, state: LayerState | None, span: Span, rows: int) -> CrossMemory:
        if isinstance(state, MemoryState):
            return CrossMemory(state.keys, state.values, state.valid)
        source = _require(span.memory, rows)
        return CrossMemory(*self._project(source.h), source.valid())

    def _project(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys [B,S,K,E] and values [B,S,K,F] of the memory."""
        sizes = self.sizes
        k, v = self.kv(h).split(sizes.split()[1:], dim=-1)
        k = k.unflatten(-1, (sizes.kv_heads, sizes.d_head))
        return (k if self.k_norm is None else self.k_norm(k)), v.unflatten(-1, (sizes.kv_heads, sizes.d_value))


def _require(memory: Memory | None, rows: int) -> Memory:
    if memory is None:
        raise InputError("cross-attention has no memory to read.", where="memory",
                         remedy="Give memory= to init_state, or span.memory in a call without a state.")
    if memory.h.shape[0] != rows:
        raise InputError(f"the memory has {memory.h.shape[0]} rows for {rows} rows of tokens.", where="memory",
                         remedy="Give one source for each row.")
    return memory
