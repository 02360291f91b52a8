"""Attention with global tokens that have projections of their own, as in Longformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self

import torch
from jaxtyping import Bool, Float
from pydantic import field_validator
from torch import Tensor

from weft.core.clock import Keys, Ticks
from weft.core.config import rule
from weft.core.declarations import Declared
from weft.core.errors import ConfigError
from weft.core.layer import LayerState
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Output, Span
from weft.linear.linear import Linear
from weft.masks import Bidirectional, Causal, Globals, GlobalTokens, Mask, MaskField, Prefix, SymmetricWindow
from weft.masks.basic import GLOBALS
from weft.masks.terms import Band, Key, Query
from weft.masks.visible import MaskedKeys, MaskFacts, ticks_at, visible
from weft.mixers.attention import PROJECTIONS, Attention, AttentionConfig
from weft.mixers.key_value import KeyValueShape, ReadableKeys
from weft.mixers.self_attention import HeadSizes
from weft.ops.attention import ATTENTION, AttentionCall
from weft.positions.base import PositionScheme

ALLOWED: Mapping[str, Mask] = MappingProxyType({"none": Causal(), "prefix": Causal() | Prefix(),
                                                "any": Bidirectional()})
"""What global tokens may attend to, by the later keys that the mask of the others allows."""


@dataclass(frozen=True, repr=False)
class _KeysAt(Mask):
    """All queries attend to the tokens at ``indices`` of their document: half of `GlobalTokens`, with a bound on
    the others, so that under a window few scores are computed."""

    indices: tuple[int, ...]

    def rule(self, query: Query, key: Key, head: Tensor) -> Tensor:
        return reduce(torch.logical_or, (key.order - query.begin == index for index in self.indices))

    def band(self) -> Band:
        return Band(1, 0, self.indices[-1] + 1)


@register
class GlobalAttentionConfig(AttentionConfig):
    """Attention under ``mask``, in which some tokens are global: they attend to all keys and all attend to them, and
    for their own queries they have projections of their own.

        y_i = sum_j softmax_j(s q_i.k_j) v_j        j in mask(i) or global, where i is not;    q, k, v = W_q x, ...
        y_i = sum_j softmax_j(s q'_i.k'_j) v'_j     every j, where i is global;                q', k', v' = W'_q x, ...

    ``global_tokens`` are their indices in every document; left out, a call marks them (an encoder's input
    ``globals_``, the fact ``globals`` of a span), as a task chooses them: the first token to classify, those of a
    question to answer. ``mask`` is what the other tokens see besides; it may be dilated, by head too
    (``per_head(window(8), dilated(8, 2))``). Under a causal mask global tokens too attend to no later key.

    A global key inside the window is counted once, as in the paper's released code, whose ``attention_window`` w is
    ``symmetric_window(w/2, w/2)``; here no row is padded to a multiple of the window. W' start as copies of W. Norms,
    positions, scale and sinks are those of the other tokens.

    Attributes:
        mask: which keys the other tokens see besides the global ones.
        bias: which projections have a bias.
        global_tokens: indices of the global tokens in every document; None: a call marks them.
    """

    kind: ClassVar[str] = "global_attention"
    about = replace(AttentionConfig.about,
        also_called=("longformer", "longformer_attention"),
        source="Beltagy et al. 2020 (Longformer), section 3.1 (global attention, linear projections)",
        equation=(r"y_i = \sum_{j \in A(i) \cup G} \operatorname{softmax}_j(s\, q_i \cdot k_j)\, v_j \;\; (i \notin "
                  r"G), \qquad y_i = \sum_{j} \operatorname{softmax}_j(s\, q'_i \cdot k'_j)\, v'_j \;\; (i \in G)"),
        differs=(("attention", "some tokens attend to all and have projections of their own for it."),),
        state_size=("2 n_kv_heads (d_head + d_value) numbers a token; with ``global_tokens`` up to n - 1, a causal "
                    "window w keeps n + w tokens"))

    mask: Annotated[Mask, MaskField()] = SymmetricWindow(256, 256)
    global_tokens: tuple[int, ...] | None = None
    bias: Literal["none", "qkv", "output", "all"] = "none"

    @field_validator("global_tokens")
    @classmethod
    def _some_tokens(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        try:
            return None if value is None else GlobalTokens(*value).indices
        except ConfigError as error:
            raise rule("", error.problems[0], "Leave global_tokens out where calls mark them.") from None

    def marked(self) -> Mask:
        """The pairs of which one token is global."""
        return Globals() if self.global_tokens is None else GlobalTokens(*self.global_tokens)

    def attended(self) -> Mask:
        return ALLOWED[self.mask.lookahead()] & (self.mask | self.marked())

    def build(self, dims: Dims) -> GlobalAttention:
        sizes = self.sizes(dims)
        if self.global_tokens is not None and 0 < dims.context <= self.global_tokens[-1]:
            raise dims.problem("global_tokens", f"the token {self.global_tokens[-1]} lies outside the context of "
                               f"{dims.context} tokens.", f"Give indices from 0 to {dims.context - 1}.")
        return GlobalAttention(self, sizes, self.scheme(sizes.heads, sizes.d_head, dims), dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [
            cls.model_validate({"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "mask": "causal & window(3)",
                                "global_tokens": [0, 2], "position": "rope", "bias": "all",
                                "scores": {"dropout": 0.1}}),
            cls.model_validate({"n_heads": 2, "d_head": 3, "mask": "per_head(window(3), dilated(3, 2))"}),
            cls.model_validate({"n_heads": 2, "d_head": 4, "mask": "symmetric_window(2, 2, 2)", "bias": "qkv"}),
            cls.model_validate({"n_heads": 2, "d_head": 4, "mask": "symmetric_window(1, 2)", "global_tokens": [0],
                                "position": "alibi", "qk_norm": "rmsnorm"}),
        ]


class GlobalAttention(Attention):
    """Attention with global tokens. Both kinds of keys and values are stored as heads, those of the other tokens'
    queries before those of global queries."""

    def __init__(self, config: GlobalAttentionConfig, sizes: HeadSizes, position: PositionScheme, dims: Dims) -> None:
        super().__init__(config, sizes, position, dims)
        self.tokens, marked, every = config.global_tokens, config.marked(), ALLOWED[config.mask.lookahead()]
        self.global_qkv = Linear(dims.d_model, sum(self.widths), bias=self.qkv.bias is not None,
                                 outputs=dict(zip("qkv", self.widths, strict=True)))
        self.global_qkv.load_state_dict(self.qkv.state_dict())
        self.global_rule = MaskFacts.of(every & marked, sizes.heads)
        if self.tokens is not None:
            self.rule = MaskFacts.of(every & (config.mask | _KeysAt(self.tokens)), sizes.heads)

    def declares(self) -> Declared:
        return replace(super().declares(), child_roles={**PROJECTIONS, "global_qkv": PROJECTIONS["qkv"]})

    def run(self, x: Float[Tensor, "B T D"], state: LayerState | None, span: Span) -> Output[LayerState]:
        q, k, v = (torch.cat(pair, 2) for pair in zip(self.project(x, span.ticks), self.projected(
            self.global_qkv, x, span.ticks), strict=True))
        stored = self.store(state, k, v, span)
        own, others = (self._of(q, stored, half, span) for half in (1, 0))
        own = self._of_few(own, stored.keys, span) if state is None else replace(
            own, visible=visible(self.global_rule, stored.keys, span))
        return Output(self.mix(self._attended(own, others, self.chosen(span.ticks))), stored.state)

    def chosen(self, ticks: Ticks) -> Bool[Tensor, "#B T"]:
        """Return which tokens of the chunk are global."""
        if self.tokens is None:
            return ticks.fact(GLOBALS, ticks.order) != 0
        index = ticks.order - ticks.begin
        return reduce(torch.logical_or, (index == token for token in self.tokens))

    def stored_sizes(self) -> KeyValueShape:
        one = super().stored_sizes()
        return one._replace(heads=2 * one.heads)

    def _of(self, q: Tensor, stored: ReadableKeys, half: int, span: Span) -> AttentionCall:
        """Return the call of one half of the heads, as if no token were of the other kind."""
        q, k, v = (x.chunk(2, 2)[half] for x in (q, stored.k, stored.v))
        return self.call(q, stored._replace(k=k, v=v), span)

    def _of_few(self, call: AttentionCall, keys: Keys, span: Span) -> AttentionCall:
        """Return the call of global tokens of whole rows, with no other queries than the first ones, where those are
        all that can be global."""
        few = span.ticks.order.shape[1] if self.tokens is None else self.tokens[-1] + 1
        if span.ticks.packed or call.terms or call.value_terms is not None or self.asked is not None:
            return replace(call, visible=visible(self.global_rule, keys, span))
        first = ticks_at(span.ticks, slice(0, few))
        return replace(call, q=call.q[:, :few], visible=MaskedKeys(self.global_rule, first, keys, begins=False))

    def _attended(self, own: AttentionCall, others: AttentionCall, chosen: Tensor) -> Float[Tensor, "B T H F"]:
        """Return the attention of every token: of global ones by their own call, which may have the first queries
        alone."""
        if self.asked is None or "weights" not in self.asked:
            ours, theirs = ATTENTION(own, self.form), ATTENTION(others, self.form)
            few = ours.shape[1]
            both = torch.where(chosen[:, :few, None, None], ours, theirs[:, :few])
            return both if few == theirs.shape[1] else torch.cat([both, theirs[:, few:]], 1)
        weights: list[Tensor] = []
        ours, theirs = (ATTENTION(replace(call, record=weights.append)) for call in (own, others))
        self.asked.give("weights", torch.where(chosen[:, None, :, None], weights[0], weights[1]))
        return torch.where(chosen[..., None, None], ours, theirs)
