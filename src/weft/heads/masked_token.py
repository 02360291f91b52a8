"""The head that predicts masked tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from jaxtyping import Float, Int64
from pydantic import Field
from torch import Tensor, nn

from weft.core.config import PartField
from weft.core.model import Readout
from weft.core.part_config import About, Dims
from weft.core.registry import register
from weft.heads.base import HeadConfig
from weft.heads.readout import LinearReadoutConfig
from weft.linear.linear import Linear
from weft.norms.base import NormConfig
from weft.norms.layernorm import LayerNormConfig
from weft.ops.activations import ACTIVATIONS, Activation


@register
class MaskedTokenConfig(HeadConfig):
    """logits = E norm(f(W h + w)) + b, with E the token embedding where it is ``tied``.

    Attributes:
        activation: f.
        norm: of what the embedding is multiplied by.
        tied: whether E is the token embedding's matrix, so that W maps to its width; otherwise E is [V,D].
        bias: whether there is a b.
        transform_bias: whether there is a w.
        std: standard deviation of the initial W and of an E that is not tied.
    """

    about = About(
        also_called=("mlm", "masked_lm", "masked_language_modeling", "fill_mask", "lm"),
        source="Devlin et al. 2019, section 3.1, task 1; their code's get_masked_lm_output (the map W)",
        equation=r"\text{logits} = E \operatorname{norm}(f(W h + w)) + b",
        differs=(("linear", "a further map, a non-linearity and a norm stand before the embedding matrix."),
                 ("per_token", "predicts tokens of the vocabulary in place of classes.")))

    kind: ClassVar[str] = "masked_token"

    activation: Activation = "gelu"
    norm: Annotated[NormConfig, PartField("norm")] = LayerNormConfig(eps=1e-12)
    tied: bool = True
    bias: bool = True
    std: float = Field(default=0.02, gt=0)
    transform_bias: bool = True

    def build(self, dims: Dims) -> MaskedTokenHead:
        return MaskedTokenHead(self, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(activation="relu", tied=False, bias=False, std=0.5, transform_bias=False)]


class MaskedTokenHead(Readout):
    """Probabilities of the token at each place, from the vectors of a bidirectional model.

    The initial ``transform`` [E,D] is normal with ``std``, its bias zero; E is D, or the embedding's width if tied.
    """

    def __init__(self, config: MaskedTokenConfig, dims: Dims) -> None:
        super().__init__()
        width = dims.tokens.embedding_dim if config.tied and dims.tokens is not None else dims.d_model
        self.transform = Linear(dims.d_model, width, config.transform_bias)
        nn.init.normal_(self.transform.weight, std=config.std)
        if self.transform.bias is not None:
            nn.init.zeros_(self.transform.bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = config.norm.build_size(width)
        # The transform already maps to the width of the decoder's matrix, so the decoder gets no projection.
        inner = Dims(width, dims.vocab_size, tokens=dims.tokens, path=dims.path)
        self.decoder = LinearReadoutConfig(tied=config.tied, bias=config.bias).build(inner)

    def inner(self, h: Float[Tensor, "B T D"]) -> tuple[Readout, Tensor]:
        return self.decoder, self.norm(self.activation(self.transform(h)))

    def logits(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        readout, features = self.inner(h)
        return readout.logits(features)

    def log_prob(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        readout, features = self.inner(h)
        return readout.log_prob(features, targets)
