"""Bengio's feed-forward language model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import torch
from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor, nn

from weft.core.config import PartField
from weft.core.model import ModelConfig
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.heads.readout import LinearReadoutConfig, ReadoutConfig
from weft.linear.linear import Linear
from weft.linear.rewrite import rewritten
from weft.models.decoder import looked_up
from weft.models.fixed_context import FixedContextModel
from weft.ops.dropout import Dropout


@register
class FeedForwardLMConfig(ModelConfig):
    """y = b + W x + U tanh(d + H x), with x the concatenated embeddings of the last n-1 tokens.

    Attributes:
        order: n.
        d_embedding: m, features of a token.
        d_hidden: h, hidden units.
        direct: whether x is connected with the output (W); otherwise W = 0.
        readout: from [tanh(d + H x); x] (without x unless ``direct``) to logits. Its matrix is [U W]. It can be tied
            to the embeddings if d_hidden = d_embedding and ``direct`` is false.
        dropout: probability with which an embedding's or hidden unit's number is dropped in training; the paper has
            none.
        std: standard deviation of initial embeddings. None: 1, so that sums of hidden units begin at 0.6 whatever the
            widths (with 0.1 a short run leaves them where they began), or where the readout is tied to the embeddings
            one over the root of d_embedding, so that logits begin at 1.
    """

    kind: ClassVar[str] = "feedforward"
    about = About(
        source="Bengio, Ducharme, Vincent and Jauvin 2003, section 2, equation 1",
        equation=(r"x = [C_{w_{t-1}}; \ldots; C_{w_{t-n+1}}], \qquad p(w_t \mid w_{t-n+1}, \ldots, w_{t-1}) = "
                  r"\operatorname{softmax}\left(b + W x + U \tanh(d + H x)\right)"),
        differs=(("ngram", "similar words share statistics through their embeddings."),
                 ("decoder", "sees n - 1 tokens and no more.")),
        state_size="(order - 1) ids")

    order: int = Field(default=5, gt=1)
    d_embedding: int = Field(default=64, gt=0)
    d_hidden: int = Field(default=128, gt=0)
    direct: bool = False
    readout: Annotated[ReadoutConfig, PartField("readout")] = LinearReadoutConfig(tied=False, bias=True)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    std: float | None = Field(default=None, gt=0)

    def in_words(self, d_model: int = 0) -> str:
        return f"window of {self.order - 1} tokens, embedding {self.d_embedding:,}, hidden layer {self.d_hidden:,}"

    def build(self, dims: Dims | None = None) -> FeedForwardLM:
        return rewritten(FeedForwardLM(self), self.rewrites)

    @classmethod
    def examples(cls) -> list[Self]:
        size = {"vocab_size": 11, "context": 32}
        return [cls.model_validate(size | options) for options in (
            {"order": 4, "d_embedding": 6, "d_hidden": 10, "std": 1.0},
            {"order": 3, "d_embedding": 6, "d_hidden": 10, "direct": True, "dropout": 0.1},
            {"order": 2, "d_embedding": 8, "d_hidden": 8, "readout": {"kind": "linear", "tied": True, "bias": True}})]


class FeedForwardLM(FixedContextModel):
    """A distribution over the next token from the embeddings of the last n-1 and one hidden layer.

    Bengio et al. 2003, section 2, equation 1. Contexts that reach before a document's first token are filled with a
    learned start embedding, which the paper does not mention; common implementations begin at the n-th token instead.
    """

    def __init__(self, config: FeedForwardLMConfig) -> None:
        super().__init__(config, config.order - 1)
        width = self.reach * config.d_embedding
        self.tokens = nn.Embedding(config.vocab_size, config.d_embedding)
        self.start_embedding = nn.Parameter(torch.empty(config.d_embedding))
        tied = isinstance(config.readout, LinearReadoutConfig) and config.readout.tied
        std = config.std or (config.d_embedding ** -0.5 if tied else 1.0)
        nn.init.normal_(self.tokens.weight, std=std)
        nn.init.normal_(self.start_embedding, std=std)
        self.hidden_layer = Linear(width, config.d_hidden)
        self.direct = config.direct
        self.dropout = Dropout(config.dropout)
        dims = Dims(config.d_hidden + (width if config.direct else 0), config.vocab_size, config.context,
                    tokens=self.tokens)
        self.readout = config.readout.build(dims.at("readout"))

    def represent(self, contexts: Int64[Tensor, "B T P"]) -> Float[Tensor, "B T D"]:
        embeddings = looked_up(self.tokens, contexts.clamp(max=self.vocab_size - 1))
        x = torch.where((contexts == self.start_id)[..., None], self.start_embedding, embeddings).flatten(2)
        x = self.dropout(x)
        a = self.dropout(torch.tanh(self.hidden_layer(x)))
        return torch.cat([a, x], dim=-1) if self.direct else a
