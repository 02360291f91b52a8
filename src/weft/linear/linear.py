"""`Linear`: the linear map that every part projects by. It says what may be made of it, and what rewrites put in its
place (`Rewritten`) says so too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, Self, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from weft.core.calling import Direct
from weft.core.layer import Part
from weft.linear.untouched import untouched
from weft.ops.linear import LINEAR, LinearCall

Use: TypeAlias = Literal["fuse", "lay_out", "widen", "quantise", "adapt"]
"""What may be done with a map: put into one matrix with its neighbours; laid out otherwise in memory; multiplied in
wider numbers than it is given; kept in fewer bits, so that its weight is no matrix of floats any more; given a term of
its own beside its matrix."""

EVERYTHING: frozenset[Use] = frozenset(get_args(Use))


@final
class Linear(Direct, nn.Linear):
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
    def of(cls, weight: Tensor, bias: Tensor | None = None, *, allows: frozenset[Use] = EVERYTHING) -> Self:
        """The map that has these very parameters."""
        assert isinstance(weight, nn.Parameter) and isinstance(bias, nn.Parameter | None), "parameters"
        made = cls(weight.shape[1], weight.shape[0], bias is not None, "meta", allows=allows)
        made.weight = weight
        if bias is not None:
            made.bias = bias
        return made

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        own: Any = self._parameters  # by name `torch.nn.Module` looks each of them up in a function of Python's
        if "weight" in own and "bias" in own:
            return LINEAR(LinearCall(x, own["weight"], own["bias"]))
        return LINEAR(LinearCall(x, self.weight, self.bias))  # something makes one of them, such as a parametrisation


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

    @abstractmethod
    def dense(self) -> tuple[Tensor, Tensor | None] | None:
        """Its matrix and bias as they are now, with their gradients, for a computation that takes both in place of a
        map; None where what it computes now is no product with a matrix."""

    def perturb(self, generator: torch.Generator) -> None:
        """Take it away from the map that it replaced and starts as, if it can learn to be another: a law that compares
        it with its matrix sees nothing while both are the base's."""

    def draws(self) -> tuple[str, ...]:
        """Names of its parameters that are drawn at random and not made from the map that it replaces."""
        return ()

    def bound(self, x: Tensor) -> Tensor | None:
        """By how much its output for ``x`` may differ from that of the map it replaced, besides rounding; None: not at
        all."""
        return None


class HoldsMatrix(Part, ABC):
    """A part that multiplies by a matrix of its own, so that its name in files is the part's; rewrites reach it all the
    same."""

    @abstractmethod
    def opened(self) -> HoldsMatrix:
        """An equal part in which the matrix is a child `Linear` called ``map``, of the same parameters; itself where it
        is that part."""


def opens(module: nn.Module) -> bool:
    """Whether a module is a part with a matrix of its own that has not been opened, and nothing has been made of it: a
    subclass may compute something else, so it is asked only for what it says itself."""
    own = isinstance(module, HoldsMatrix) and "opened" in vars(type(module)) and untouched(module, type(module))
    return own and isinstance(module, HoldsMatrix) and module.opened() is not module


def dense(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """The matrix and the bias of a map, as `Rewritten.dense` gives them; None where it may be more than they."""
    if isinstance(module, Rewritten):
        return module.dense() if _itself(module) else None
    return (module.weight, module.bias) if isinstance(module, nn.Linear) and allowed(module) else None


def allowed(module: nn.Module) -> frozenset[Use]:
    """What may be done with a module as a linear map; nothing where it is none, or where something is made of it that
    a rewrite would lose (`untouched`). A plain `torch.nn.Linear` allows everything."""
    if untouched(module, nn.Linear):
        return EVERYTHING
    known = untouched(module, Linear) if isinstance(module, Linear) else _itself(module)
    return module.allows if isinstance(module, Linear | Rewritten) and known else frozenset()


def _itself(module: nn.Module) -> bool:
    """Whether it is a `Rewritten` of which all is known: a parametrisation makes a subclass that says no map itself."""
    return isinstance(module, Rewritten) and "forward" in vars(type(module)) and untouched(module, type(module))
