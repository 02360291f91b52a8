"""The encoder: embeddings, positions, a list of bidirectional blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.compiling import require
from weft.core.errors import InputError
from weft.core.layer import facts_of
from weft.core.model import Encoder, EncoderInputs, ModelState
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.core.span import WHOLE, Output, Span
from weft.linear.linear import Linear
from weft.linear.rewrite import rewritten
from weft.masks.basic import GLOBALS, TYPES
from weft.models.decoder import StackedConfig, build_embedding, looked_up
from weft.models.stack import build_stack
from weft.positions.base import least_limit


@register
class TokenEncoderConfig(StackedConfig):
    """embeddings (+ segment embeddings) -> blocks -> norm -> head, if it has one. Its attention layers have
    ``mask: bidirectional``.

    Attributes:
        n_types: rows of the table of segment embeddings; 0: no table. Tokens whose types are left out have type 0.
        d_input: features of embeddings, of their positions and segments, and of their norm, which a linear map with a
            bias then brings to d_model (RoFormer, ELECTRA); None: d_model, and no map.
        padding_id: an id whose tokens are not counted for positions: their own is -1, the row of a learned table before
            that of position 0 (RoBERTa); None: every token is counted. Padding at the end of a row is known by the
            row's count in any case.
    """

    group: ClassVar[str] = "encoder"
    kind: ClassVar[str] = "encoder"
    about = About(
        source=("Vaswani et al. 2017, section 3.1; Devlin et al. 2019, section 3 (segments); Su et al. 2021 "
                "(RoFormer), its released code (d_input)"),
        equation=(r"h_0 = E_{x} + P + S_{\text{type}}, \qquad h_l = \operatorname{block}_l(h_{l-1}), \qquad h = "
                  r"\operatorname{norm}(h_L)"),
        differs=(("decoder", "attends in both directions, so it has no state and writes no text."),
                 ("image_encoder", "reads tokens in place of patches.")))

    n_types: int = Field(default=0, ge=0)
    d_input: int | None = Field(default=None, gt=0)
    padding_id: int | None = Field(default=None, ge=0)

    def build(self, dims: Dims | None = None) -> TokenEncoder:
        return rewritten(TokenEncoder(self), self.rewrites)

    @classmethod
    def examples(cls) -> list[Self]:
        attention = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
        mlp = {"kind": "mlp", "d_ff": 12}
        return [
            cls.model_validate({"vocab_size": 11, "d_model": 8, "norm": "layernorm", "position": "sinusoidal",
                                "blocks": [{"repeat": 2, "of": [{"kind": "pre", "layers": [attention, mlp]}]}]}),
            cls.model_validate({"vocab_size": 11, "d_model": 8, "position": "learned", "context": 32, "n_types": 2,
                                "embedding": {"dropout": 0.1},
                                "blocks": [{"kind": "post", "layers": [attention, mlp]}], "head": "masked_token"}),
            cls.model_validate({"vocab_size": 11, "d_model": 8, "position": {"kind": "learned", "offset": 2},
                                "context": 32, "padding_id": 1, "n_types": 1,
                                "blocks": [{"kind": "post", "layers": [attention, mlp]}]}),
            cls.model_validate({"vocab_size": 11, "d_model": 8, "d_input": 6, "position": "sinusoidal", "n_types": 2,
                                "embedding": {"norm": "layernorm"},
                                "blocks": [{"kind": "post", "layers": [attention, mlp]}], "head": "masked_token"}),
        ]


class TokenEncoder(Encoder):
    """A bidirectional model of tokens, with a head for a task if one is configured."""

    def __init__(self, config: TokenEncoderConfig) -> None:
        super().__init__(config)
        width = config.d_model if config.d_input is None else config.d_input
        dims = Dims(width, config.vocab_size, config.context)
        self.embedding, self.shared, dims = build_embedding(config, dims)
        self.types = nn.Embedding(config.n_types, width) if config.n_types else None
        if self.types is not None:
            nn.init.normal_(self.types.weight, std=config.embedding.deviation(width))
        self.input = None if config.d_input is None else Linear(width, config.d_model)
        dims = replace(dims, d_model=config.d_model)
        self.stack = build_stack(config.blocks, dims)
        self.norm = config.norm.build(dims.at("norm"))
        self.head = None if config.head is None else config.head.build(dims.at("head"))
        self.shared.require_used()
        self.padding_id = config.padding_id
        self._facts = frozenset(facts_of(self))

    def vectors(self, inputs: EncoderInputs, span: Span | None = None) -> Output[ModelState]:
        """Hidden vectors [B,S,D], zero beyond each row's count. Raises `InputError`: there are no tokens, inputs that
        this encoder does not read, or types of another shape or outside its table."""
        tokens = self._tokens(inputs)
        span = WHOLE if span is None else span
        facts = {name: value for name, value in ((TYPES, inputs.types), (GLOBALS, inputs.globals_))
                 if value is not None and name in self._facts}  # the inputs that masks read
        span = span.replace(facts={**(span.facts or {}), **facts}) if facts else span
        span = self._positioned(span.resolve(None, tokens), tokens)
        x = self.embedding(tokens, span, self._segments(tokens, inputs.types, span))
        x = x if self.input is None else span.clean(self.input(x))
        out = self.stack(x, None, span)
        return Output(span.clean(self.norm(out.y, span.ticks.valid)), None, out.losses)

    def limit(self) -> int | None:
        return least_limit(self)

    def reads(self) -> dict[str, int]:
        sizes = {"tokens": self.embedding.tokens.num_embeddings}
        if self.types is not None or TYPES in self._facts:
            sizes["types"] = 2 if self.types is None else self.types.num_embeddings
        return {**sizes, "globals_": 2} if GLOBALS in self._facts else sizes

    def _positioned(self, span: Span, tokens: Tensor) -> Span:
        """The span with positions that leave out tokens with the padding's id, if there is one."""
        if self.padding_id is None or span.coordinates is not None:
            return span
        counted = tokens != self.padding_id
        before = counted.cumsum(1) - counted.long()
        begin = before.gather(1, span.ticks.begin.expand_as(tokens)) if tokens.shape[1] else before
        return span.replace(coordinates=torch.where(counted, before - begin, -1)).resolve(None, tokens)

    def _segments(self, tokens: Tensor, types: Tensor | None, span: Span) -> Tensor | None:
        """The embeddings [B,S,D] of segment ids, of 0 where none are given; None without a table."""
        if self.types is None:
            return None
        if types is None:
            return looked_up(self.types, torch.zeros_like(tokens))
        types, count = span.clean(types), self.types.num_embeddings  # padding may hold values that are no ids
        require((types >= 0) & (types < count), InputError, f"a segment id outside 0 to {count - 1}.",
                where="inputs.types", remedy="Give ids below n_types, or declare more types.")
        return looked_up(self.types, types)

    def _tokens(self, inputs: EncoderInputs) -> Tensor:
        known = self.reads()
        for name in inputs.given():
            if name not in known:
                raise InputError(f"this encoder does not read {name}.", where=f"inputs.{name}",
                                 remedy="Leave it out, or declare an encoder that does (n_types for types).")
        if inputs.tokens is None:
            raise InputError("missing: this encoder reads tokens.", where="inputs.tokens", remedy="Give ids [B,S].")
        if inputs.types is not None and inputs.types.shape != inputs.tokens.shape:
            raise InputError(f"shape {tuple(inputs.types.shape)} for tokens of shape {tuple(inputs.tokens.shape)}.",
                             where="inputs.types", remedy="Give one segment id for each token.")
        return inputs.tokens
