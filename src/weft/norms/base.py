"""`Norm`: base of normalisations between a residual stream and its layers; `NormConfig`: of their configurations;
and the norm that is none, for studies without norms and for blocks that need none at some place."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from weft.core.declarations import Declared
from weft.core.layer import Part
from weft.core.part_config import About, Dims, ModuleConfig
from weft.core.registry import register


class Norm(Part):
    """A map of vectors along the last dimension that keeps their number and size."""

    def declares(self) -> Declared:
        return Declared(role="norms")

    @abstractmethod
    def forward(self, x: Float[Tensor, "... D"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "... D"]:
        """The normalised vectors, in the dtype of ``x``.

        Args:
            x: any leading dimensions; [B,T,...,D] when ``valid`` is given.
            valid: False for padding; only norms whose statistics are over tokens read it.
        """


class NormConfig(ModuleConfig):
    """Base of norm configurations."""

    group: ClassVar[str] = "norm"

    def build(self, dims: Dims) -> Norm:
        """The norm of the residual stream."""
        return self.build_size(dims.d_model)

    def build_size(self, size: int) -> Norm:
        """The norm of vectors of ``size`` features (heads, inner streams)."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is built")


class NoNorm(Norm):
    """The identity: y = x."""

    def forward(self, x: Float[Tensor, "... D"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "... D"]:
        return x


@register
class NoNormConfig(NormConfig):
    """No normalisation."""

    kind: ClassVar[str] = "none"
    about = About(
        source="the identity", equation="y = x", differs=(("rmsnorm", "changes nothing and has no parameters."),))

    def build_size(self, size: int) -> NoNorm:
        return NoNorm()
