"""The linear readout, which predicts the next token."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int64
from pydantic import Field
from torch import Tensor, nn

from weft.core.declarations import Declared, HasInferenceForm, WidthRoles
from weft.core.model import Readout
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.registry import register
from weft.linear.linear import HoldsMatrix, Linear, dense, unadapted
from weft.ops.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from weft.ops.linear_log_prob import linear_log_prob, linear_logits


class ReadoutConfig(ModuleConfig):
    """Base of readout configurations."""

    group: ClassVar[str] = "readout"

    def build(self, dims: Dims) -> Readout:
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")


def mapped(h: Tensor, projection: nn.Module | None, scale: float = 1.0) -> Tensor:
    """Hidden vectors after a projection, if there is one, times ``scale``."""
    h = h if projection is None else projection(h)
    return h if scale == 1.0 else h * scale


@register
class LinearReadoutConfig(ReadoutConfig):
    """logits = softcap(W s h + b); ``tied``: W is the token embedding. With ``d_embedding``, a linear map without bias
    first brings h to that many features (None: no map). ``scale``: s, a factor of the logits without the bias (Command
    R, Granite).

    Attributes:
        tied: whether W is the matrix of the token embedding.
        bias: whether every token has a learned offset b.
        d_embedding: features to which a linear map without bias first brings h; None: no map.
        softcap: c in c tanh(logits / c); None: logits are not bounded.
        scale: s, a factor of the logits without the bias.
    """

    kind: ClassVar[str] = "linear"
    about = About(
        source="Press and Wolf 2017 (tied); Gemma Team 2024 (soft-cap), section 2",
        equation=r"\text{logits} = W s h + b",
        differs=(("adaptive", "one matrix scores all tokens."),
                 ("masked_token", "nothing but a matrix stands between vectors and logits.")))

    tied: bool = True
    bias: bool = False
    d_embedding: int | None = Field(default=None, gt=0)
    softcap: float | None = Field(default=None, gt=0)
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)

    def build(self, dims: Dims) -> LinearReadout:
        tokens = dims.tokens
        if not self.tied:
            return LinearReadout(self, None, dims)
        if dims.clusters is not None:
            raise dims.problem("tied", "the token embedding is adaptive, so it has several matrices.",
                               "Give the model an adaptive readout, or set tied: false.")
        width = dims.d_model if self.d_embedding is None else self.d_embedding
        if tokens is None or tokens.embedding_dim != width:
            raise dims.problem("tied", f"there is no token embedding of width {width} to share.",
                               "Set tied: false (a position scheme that is concatenated narrows the embedding), or the "
                               "same d_embedding in both.")
        return LinearReadout(self, tokens.weight, dims)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(tied=False), cls(tied=False, bias=True, softcap=5.0, scale=0.5), cls(tied=False, d_embedding=3)]


class MatrixReadout(Readout, HoldsMatrix):
    """Base of readouts of one matrix: logits = softcap(W s p(h) + b), with a map p if one is declared."""

    softcap: float | None
    scale: float
    projection: nn.Module | None

    @abstractmethod
    def dense(self) -> tuple[Tensor, Tensor | None] | None:
        """The current W and b; None if the logits do not depend on these alone."""

    def log_prob(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        matrix = self.dense()
        if matrix is None:
            return self.logits(h).log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        return linear_log_prob(mapped(h, self.projection, self.scale), *matrix, targets, self.softcap)

    def cross_entropy(self, h: Float[Tensor, "B T D"], targets: Int64[Tensor, "B T"], scored: Bool[Tensor, "B T"], *,
                      smoothing: float = 0.0, z_loss: float = 0.0) -> CrossEntropy | None:
        """See `linear_cross_entropy`; None if `dense` is None, or if this readout is not `unadapted`
        (hooks, methods replaced on the instance), which the operation would ignore."""
        matrix = self.dense() if unadapted(self, type(self)) else None
        return None if matrix is None else linear_cross_entropy(
            mapped(h, self.projection, self.scale), *matrix, targets, scored, softcap=self.softcap,
            smoothing=smoothing, z_loss=z_loss)


class LinearReadout(MatrixReadout, HasInferenceForm):
    """One matrix [V,D], the token embedding's if tied, after a map if one is declared."""

    def __init__(self, config: LinearReadoutConfig, tied: Tensor | None, dims: Dims) -> None:
        super().__init__()
        self.softcap, self.scale = config.softcap, config.scale
        narrow = config.d_embedding
        width = dims.d_model if narrow is None else narrow
        self.projection = None if narrow is None else Linear(dims.d_model, narrow, bias=False)
        if tied is None:
            tied = nn.Parameter(torch.empty(dims.vocab_size, width))
            nn.init.normal_(tied, std=width ** -0.5)
        self.weight = tied
        self.bias = nn.Parameter(torch.zeros(dims.vocab_size)) if config.bias else None

    def declares(self) -> Declared:
        return replace(super().declares(), width_roles=WidthRoles(LinearReadout, outputs={"weight": "scale"}))

    def inference(self) -> Readout:
        return self.opened()

    def opened(self) -> MappedReadout:
        return MappedReadout(self)

    def dense(self) -> tuple[Tensor, Tensor | None] | None:
        # A subclass with other logits need not compute them from these tensors.
        return (self.weight, self.bias) if type(self).logits is LinearReadout.logits else None

    def logits(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        own: Any = self._parameters  # by name `torch.nn.Module` looks each of them up in a function of Python's
        weight = self.weight if own.get("weight") is None else own["weight"]
        plain = self.projection is None and self.scale == 1.0
        return linear_logits(h if plain else mapped(h, self.projection, self.scale), weight, self.bias, self.softcap)


class MappedReadout(MatrixReadout):
    """A `LinearReadout` whose matrix is in a `Linear`, as rewrites and the form without gradients need it."""

    def __init__(self, readout: LinearReadout) -> None:
        super().__init__()
        self.softcap, self.scale, self.projection = readout.softcap, readout.scale, readout.projection
        assert isinstance(readout.weight, nn.Parameter), "LinearReadout registers a parameter"
        self.map: nn.Module = Linear.of(readout.weight, readout.bias)

    def opened(self) -> MappedReadout:
        return self

    def dense(self) -> tuple[Tensor, Tensor | None] | None:
        return dense(self.map)

    def logits(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        z: Tensor = self.map(mapped(h, self.projection, self.scale))
        return z if self.softcap is None else self.softcap * torch.tanh(z / self.softcap)
