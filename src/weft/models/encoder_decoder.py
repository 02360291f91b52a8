"""The encoder-decoder: a language model whose state starts from an encoded source."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Self

import torch
from pydantic import model_validator

from weft.core.config import PartField, rule
from weft.core.model import EncodedSource, Encoder, EncoderInputs
from weft.core.part_config import Dims
from weft.core.registry import register
from weft.core.span import Memory, Span
from weft.heads.adaptive_embedding import AdaptiveEmbedding
from weft.linear.rewrite import rewritten
from weft.models.decoder import Decoder, DecoderConfig
from weft.models.encoder import TokenEncoder, TokenEncoderConfig


@register
class EncoderDecoderConfig(DecoderConfig):
    """A decoder whose blocks may contain cross-attention, with the encoder of the source that it reads.

    Attributes:
        encoder: the encoder of the source that cross-attention reads.
        tied_source: whether source and target have one table of token embeddings.
    """

    kind: ClassVar[str] = "encoder_decoder"
    about = replace(DecoderConfig.about,
        source="Vaswani et al. 2017, section 3; Press and Wolf 2017 (three-way tied embeddings)",
        equation=(r"p(y_{t+1} \mid y_{\le t}, x) = "
                  r"\operatorname{softmax}\left(\operatorname{readout}\left(\operatorname{decoder}(y_{\le t},\, "
                  r"\operatorname{encoder}(x))\right)\right)"),
        differs=(("decoder", "its blocks read the encoded source by cross-attention."),))

    encoder: Annotated[TokenEncoderConfig, PartField("encoder")]
    tied_source: bool = False

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.encoder.d_model != self.d_model:
            raise rule("encoder.d_model", f"{self.encoder.d_model} where the decoder has {self.d_model}.",
                       "Give both the same width.")
        if self.encoder.head is not None:
            raise rule("encoder.head", f"{self.encoder.head.kind!r}, but the decoder reads the encoder's vectors, not "
                       "the results of a head.", "Leave it out, or set it as the head of the whole model.")
        if self.tied_source and self.encoder.vocab_size != self.vocab_size:
            raise rule("tied_source", f"source vocabulary {self.encoder.vocab_size}, target {self.vocab_size}.",
                       "Share one vocabulary, or untie.")
        if self.encoder.rewrites:
            raise rule("encoder.rewrites", "the encoder's maps are rewritten with the model's.",
                       "Write them under the model's own rewrites, for maps such as encoder.* .")
        return self

    def source_limit(self) -> int | None:
        with torch.device("meta"):  # what limits it is said by the position schemes, which are built from the whole
            return self.encoder.build().limit()

    def in_words(self, d_model: int = 0) -> str:
        return f"{super().in_words()}; encoder of {self.encoder.in_words()}"

    def build(self, dims: Dims | None = None) -> EncoderDecoder:
        return rewritten(EncoderDecoder(self), self.rewrites)

    @classmethod
    def examples(cls) -> list[Self]:
        mlp = {"kind": "mlp", "d_ff": 12}
        attention = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
        cross = {"kind": "cross_attention", "n_heads": 2}
        decoding = {"kind": "post", "layers": [{"kind": "attention", "n_heads": 2}, cross, mlp]}
        encoder = {"kind": "encoder", "vocab_size": 11, "d_model": 8, "position": "sinusoidal",
                   "blocks": [{"kind": "post", "layers": [attention, mlp]}]}
        recurrent = {"kind": "pre", "layers": ["gru", cross, mlp]}
        return [
            cls.model_validate({"vocab_size": 11, "d_model": 8, "position": "sinusoidal", "encoder": encoder,
                                "tied_source": True, "blocks": [{"repeat": 2, "of": [decoding]}]}),
            cls.model_validate({"vocab_size": 11, "d_model": 8, "encoder": encoder, "norm": "rmsnorm",
                                "embedding": {"dropout": 0.1},
                                "blocks": [recurrent]}),
        ]


class EncoderDecoder(Decoder):
    """A language model of a target given a source: ``encode`` the source once, start a state with it (or pass it in
    ``span.memory``), then decode."""

    takes_source = True

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__(config)
        self.encoder: Encoder = TokenEncoder(config.encoder)
        self.source_vocab_size = config.encoder.vocab_size
        if config.tied_source and isinstance(self.encoder, TokenEncoder):
            self._tie(self.encoder)

    def _tie(self, encoder: TokenEncoder) -> None:
        target, source = self.embedding.tokens.embedding_dim, encoder.embedding.tokens.embedding_dim
        if any(isinstance(each.embedding.tokens, AdaptiveEmbedding) for each in (self, encoder)):
            raise Dims(target).problem("tied_source", "an adaptive embedding is not shared with the source.",
                                       "Set tied_source: false, or leave `embedding.adaptive` out.")
        if source != target:
            raise Dims(target).problem("tied_source", f"token embeddings of {source} features in the encoder, {target} "
                                       "in the decoder.", "Give both the same positions, or untie.")
        # The weight is shared and not the module, because torch.func.functional_call loses one of two shared modules.
        encoder.embedding.tokens.weight = self.embedding.tokens.weight

    def source_limit(self) -> int | None:
        return self.encoder.limit()

    def encoded(self, inputs: EncoderInputs, span: Span | None = None) -> EncodedSource:
        """The source's hidden vectors and counts."""
        out = self.encoder.vectors(inputs, span)
        return EncodedSource(Memory(out.y, None if span is None else span.count), out.losses)
