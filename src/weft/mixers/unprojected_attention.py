"""Attention with fewer projections, for study: scores of one matrix a head, values that are the inputs themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal, Self

from jaxtyping import Float
from torch import Tensor

from weft.core.clock import Ticks
from weft.core.layer import LayerState
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Span
from weft.linear.linear import Linear
from weft.mixers.attention import Attention, AttentionConfig
from weft.mixers.key_value import KeyValueShape, ReadableKeys
from weft.mixers.self_attention import HeadSizes
from weft.positions.base import PositionScheme


@register
class UnprojectedAttentionConfig(AttentionConfig):
    """Attention with fewer projections than three.

        s_ij = scale x_i^T W_h x_j            ``queries_keys: merged``; equal to separate projections where
                                              W_h = W_q^T W_k of the head, which has rank d_head at most; W_h has none
        y_i = W_o concat_h sum_j p_ij x_j     ``values: inputs``

    x are the vectors [B,T,D] that the layer is given. Merged scores have d_model^2 parameters a head in place of
    2 d_model d_head, and the same scale, 1/sqrt(d_head), unless ``scores.scale`` says otherwise (1: unscaled). The bias
    of a merged projection is added to W_h^T x_i. What is not projected is the same for all heads and is kept once:

        numbers a token that the state keeps      ``values: projected``          ``values: inputs``
        ``queries_keys: separate``                (that is ``attention``)        n_kv_heads d_head + d_model
        ``queries_keys: merged``                  d_model + n_kv_heads d_value   d_model

    Attributes:
        bias: which projections have a bias.
        queries_keys: ``merged``: one bilinear map of a head between inputs; ``separate``: projections of queries and of
            keys.
        values: ``inputs``: the vectors themselves are averaged; ``projected``: projections of them.
    """

    kind: ClassVar[str] = "unprojected_attention"
    about = replace(AttentionConfig.about,
        source=("Luong et al. 2015, section 3.1 (general: bilinear scores); Vaswani et al. 2017, section 3.2.1 (its "
                "separate projections, and the scale)"),
        equation=r"s_{ij} = s\, x_i^{\top} W_h x_j, \qquad y_i = W_o \operatorname{concat}_h \sum_j p_{ij} x_j",
        differs=(("attention", "scores compare the inputs by one matrix of a head, and the inputs themselves are "
                               "averaged."),),
        state_size=("d_model numbers a token; with projected values d_model + n_kv_heads d_value; with separate "
                    "queries and keys n_kv_heads d_head + d_model"))

    queries_keys: Literal["merged", "separate"] = "merged"
    values: Literal["inputs", "projected"] = "inputs"
    bias: Literal["none", "qkv", "output", "all"] = "none"

    def build(self, dims: Dims) -> UnprojectedAttention:
        sizes = self.sizes(dims)
        merged, inputs = self.queries_keys == "merged", self.values == "inputs"
        scheme = self.scheme(sizes.heads, dims.d_model if merged else sizes.d_head, dims)
        self._require_used(merged, inputs, dims)
        if inputs and "values" in scheme.acts_on:
            raise dims.problem("position", f"{self.position.kind!r} adds to projected values, and here they are the "
                               "inputs.", "Set its values to false, or values to 'projected'.")
        if merged and scheme.acts_on and not scheme.relative:
            raise dims.problem("position", f"{self.position.kind!r} needs projected queries and keys, and here they "
                               "are merged.", "Use 'none', 'alibi' or 't5', or queries_keys: separate.")
        return UnprojectedAttention(self, sizes, scheme, dims)

    def _require_used(self, merged: bool, inputs: bool, dims: Dims) -> None:
        """Refuse fields that would have no effect."""
        if not merged and not inputs:
            raise dims.problem("queries_keys", "with projected values too nothing differs from 'attention'.",
                               "Use that kind, or set values to 'inputs'.")
        if merged and self.qk_norm is not None:
            raise dims.problem("qk_norm", "merged queries and keys have no heads to normalise.",
                               "Leave it out, or set queries_keys to 'separate'.")
        if inputs and self.d_value is not None:
            raise dims.problem("d_value", f"{self.d_value}, but values are the inputs, of {dims.d_model} features.",
                               "Leave it out, or set values to 'projected'.")
        if merged and inputs and self.n_kv_heads is not None:
            raise dims.problem("n_kv_heads", f"{self.n_kv_heads}, but neither keys nor values are projected.",
                               "Leave it out.")

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls.model_validate({"n_heads": 2, "scores": {"dropout": 0.1}}),
            cls.model_validate({"n_heads": 4, "n_kv_heads": 2, "d_head": 3, "values": "projected", "bias": "all",
                                "position": "alibi", "mask": "causal & window(4)"}),
            cls.model_validate({"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "queries_keys": "separate",
                                "position": "rope", "scores": {"scale": 1.0}}),
            cls.model_validate({"n_heads": 2, "values": "projected", "d_value": 3, "clip_qkv": 0.5, "sinks": True}),
        ]


class UnprojectedAttention(Attention):
    """Attention whose keys, values or both are the inputs. The state has one head: all keys of a token, and all its
    values, each beside the other; inputs that are both are kept once."""

    def __init__(self, config: UnprojectedAttentionConfig, sizes: HeadSizes, position: PositionScheme,
                 dims: Dims) -> None:
        merged, inputs = config.queries_keys == "merged", config.values == "inputs"
        width = dims.d_model if inputs else sizes.d_value
        super().__init__(config, sizes, position, dims)
        # What is not projected has no width in the fused projection.
        self.merged, self.inputs, self.sizes = merged, inputs, replace(sizes, d_value=0) if inputs else sizes
        kept = self.sizes.split()
        self.widths = (sizes.heads * dims.d_model, 0, kept[2]) if merged else kept
        self.qkv = Linear(dims.d_model, sum(self.widths), bias=config.bias in ("qkv", "all"))
        self.output = Linear(sizes.heads * width, dims.d_model, bias=config.bias in ("output", "all"))
        self.d_model = dims.d_model

    def stored_sizes(self) -> KeyValueShape:
        sizes = self.sizes
        keys = self.d_model if self.merged else sizes.kv_heads * sizes.d_head
        alone = self.d_model if self.inputs and not self.merged else 0
        return KeyValueShape(1, keys, sizes.kv_heads * sizes.d_value + alone)

    def project(self, x: Float[Tensor, "B T D"], ticks: Ticks) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B,T,H,E], or [B,T,H,D] where they hold the matrix of the scores, and the keys and values that
        the state keeps, [B,T,1,*]."""
        if not self.merged:
            q, k, v = super().project(x, ticks)
            return q, k.flatten(2)[:, :, None], (x if self.inputs else v.flatten(2))[:, :, None]
        projected: Tensor = self.qkv(x)
        if self.config.clip_qkv is not None:
            projected = projected.clamp(-self.config.clip_qkv, self.config.clip_qkv)
        q, v = projected.split_with_sizes([self.widths[0], self.widths[2]], -1)
        return q.unflatten(-1, (self.sizes.heads, self.d_model)), x[:, :, None], v[:, :, None]

    def store(self, state: LayerState | None, k: Tensor, v: Tensor, span: Span) -> ReadableKeys:
        stored = super().store(state, k, v, span)
        sizes = self.sizes
        if self.merged and self.inputs:
            return stored._replace(v=stored.k)
        k = stored.k.expand(-1, -1, sizes.kv_heads, -1) if self.merged else self._by_head(stored.k, sizes.d_head)
        v = stored.v.expand(-1, -1, sizes.kv_heads, -1) if self.inputs else self._by_head(stored.v, sizes.d_value)
        return stored._replace(k=k, v=v)

    def _by_head(self, x: Float[Tensor, "B S 1 _"], size: int) -> Tensor:
        apart: Tensor = x[:, :, 0].unflatten(-1, (self.sizes.kv_heads, size))
        return apart
