"""`Linear`: the linear map that every part projects by. It says what may be made of it, and what rewrites put in its
place (`Rewritten`) says so too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, Self, TypeAlias, final, get_args

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from weft.core.layer import Part
from weft.linear.untouched import untouched

Use: TypeAlias = Literal["fuse", "lay_out", "widen", "quantise", "adapt"]
"""What may be done with a map: put into one matrix with its neighbours; laid out otherwise in memory; multiplied in
wider numbers than it is given; kept in fewer bits, so that its weight is no matrix of floats any more; given a term of
its own beside its matrix."""

EVERYTHING: frozenset[Use] = frozenset(get_args(Use))


@final
class Linear(nn.Linear):
    """y = x W^T + b.

    x [...,in], y [...,out]; ``weight`` [out,in] and ``bias`` [out], as in `torch.nn.Linear`, whose initial values it
    has. A part whose map is more than what the module computes when it is called (one that reads its matrix elsewhere,
    or that decides by its sign) says what is still allowed.

    Args:
        in_features: of x.
        out_features: of y.
        bias: whether there is one.
        device: of the parameters; ``meta`` where they are put in afterwards.
        allows: what may be done with it.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: str | None = None, *,
                 allows: frozenset[Use] = EVERYTHING) -> None:
        super().__init__(in_features, out_features, bias, device)
        self.allows = allows

    @classmethod
    def of(cls, weight: nn.Parameter, bias: nn.Parameter | None = None, *,
           allows: frozenset[Use] = EVERYTHING) -> Self:
        """The map that has these very parameters."""
        made = cls(weight.shape[1], weight.shape[0], bias is not None, "meta", allows=allows)
        made.weight = weight
        if bias is not None:
            made.bias = bias
        return made

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        return F.linear(x, self.weight, self.bias)


class Rewritten(Part, ABC):
    """What a rewrite puts in the place of a map.

    Attributes:
        in_features: of its input.
        out_features: of its output.
        allows: what may be done with it in turn.
    """

    in_features: int
    out_features: int
    allows: frozenset[Use] = frozenset()

    @abstractmethod
    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """The map."""

    @abstractmethod
    def merged(self) -> Linear:
        """A map of one matrix, equal to this one in evaluation mode, with parameters of its own where they differ."""


class HoldsMatrix(Part, ABC):
    """A part that multiplies by a matrix of its own, so that its name in files is the part's; rewrites reach it all the
    same."""

    @abstractmethod
    def opened(self) -> HoldsMatrix:
        """An equal part in which the matrix is a child `Linear` called ``map``, of the same parameters; itself where it
        is that part."""


def allowed(module: nn.Module) -> frozenset[Use]:
    """What may be done with a module as a linear map; nothing where it is none, or where something is made of it that
    a rewrite would lose (`untouched`). A plain `torch.nn.Linear` allows everything."""
    if untouched(module, nn.Linear):
        return EVERYTHING
    if isinstance(module, Linear | Rewritten) and untouched(module, type(module)):
        return module.allows
    return frozenset()
