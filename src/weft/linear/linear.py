"""`Linear`: the linear map by which every part projects. It declares what may be done with it, and so do the modules
that rewrites put in its place (`Rewritten`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, Self, TypeAlias, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from weft.core.calling import Direct
from weft.core.layer import Part
from weft.linear.unadapted import unadapted
from weft.ops.linear import LINEAR, LinearCall, Map

Use: TypeAlias = Literal["fuse", "widen", "quantise", "adapt"]
"""What may be done with a map: joined with its neighbours into one matrix; multiplied in wider numbers than its
input; stored in fewer bits, so that its weight is no longer a matrix of floats; extended by a
trained term beside its matrix."""

EVERYTHING: frozenset[Use] = frozenset(get_args(Use))
UNNAMED: Mapping[str, int] = MappingProxyType({})


@final
class Linear(Direct, nn.Linear):
    """y = x W^T + b.

    x [...,in], y [...,out]; ``weight`` [out,in] and ``bias`` [out], with the initial values of `torch.nn.Linear`. A
    part that uses a map otherwise than by calling it (it reads the matrix, or a choice depends on the sign of an
    output) restricts what is allowed.

    Args:
        in_features: of x.
        out_features: of y.
        bias: whether there is a bias.
        device: of the parameters; ``meta`` where they are assigned afterwards.
        allows: what may be done with it.
        outputs: how many consecutive outputs have each of some names, where the map is several in one, such as
            queries, keys and values; adapters can be put beside some of them.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: str | None = None, *,
                 allows: frozenset[Use] = EVERYTHING, outputs: Mapping[str, int] = UNNAMED) -> None:
        super().__init__(in_features, out_features, bias, device)
        assert not outputs or sum(outputs.values()) == out_features, "names are of all outputs"
        self.allows, self.outputs = allows, dict(outputs)

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None, *, allows: frozenset[Use] = EVERYTHING) -> Self:
        """The map with these parameters themselves, not copies."""
        assert isinstance(weight, nn.Parameter) and isinstance(bias, nn.Parameter | None), "parameters"
        linear = cls(weight.shape[1], weight.shape[0], bias is not None, "meta", allows=allows)
        linear.weight = weight
        if bias is not None:
            linear.bias = bias
        return linear

    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        own: Any = self._parameters  # by name `torch.nn.Module` looks each of them up in a function of Python's
        if "weight" in own and "bias" in own:
            return LINEAR(LinearCall(x, own["weight"], own["bias"]))
        return LINEAR(LinearCall(x, self.weight, self.bias))  # something makes one of them, such as a parametrisation


class Rewritten(Part, ABC):
    """The module that a rewrite puts in the place of a map.

    Attributes:
        in_features: of its input.
        out_features: of its output.
        allows: what may be done with it in turn.
        outputs: as those of a `Linear`.
    """

    in_features: int
    out_features: int
    allows: frozenset[Use] = frozenset()
    outputs: Mapping[str, int] = UNNAMED

    @abstractmethod
    def forward(self, x: Float[Tensor, "... in"]) -> Float[Tensor, "... out"]:
        """The map."""

    @abstractmethod
    def merged(self) -> Linear:
        """A plain map that computes what this one does in evaluation mode; it shares the parameters that are equal."""

    @abstractmethod
    def dense(self) -> tuple[Tensor, Tensor | None] | None:
        """The matrix and bias by which it multiplies now, through which gradients flow, for computations that take
        both in place of a map; None where its output is not the product with one matrix, as under dropout."""

    def read(self, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Its matrix in ``dtype``, not rounded to less on the way, and its bias, for a part that never calls it."""
        found = self.dense()
        assert found is not None, "a map whose product is with one matrix"
        return found[0].to(dtype), found[1]

    def stored(self) -> Map | None:
        """Its matrix, in floats or in few bits, and its bias, if its output is the product with the one plus the other,
        for operations that take several maps at once; None where it does more."""
        return None

    def between(self, h: Float[Tensor, "... rank"]) -> Float[Tensor, "... rank"]:
        """The values that a term of low rank beside this map passes from its first matrix to its second: all of them,
        unless processes have parts of the map, and with it of the term."""
        return h

    def perturb(self, generator: torch.Generator) -> None:
        """Change its trained term at random, if it has one: the term starts at zero, so that a law that compares the
        map with its merged matrix would compare the base with itself."""

    def draws(self) -> tuple[str, ...]:
        """Names of its parameters that are initialised at random and not derived from the map that it replaces."""
        return ()

    def bound(self, x: Tensor) -> Tensor | None:
        """By how much its output for ``x`` may differ from that of the map that it replaced, besides rounding; None:
        not at all."""
        return None


def dense(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """The matrix and the bias of a map, as `Rewritten.dense` returns them; None where its output may depend on more."""
    if isinstance(module, Rewritten):
        return module.dense() if _itself(module) else None
    return (module.weight, module.bias) if isinstance(module, nn.Linear) and allowed(module) else None


def stored(module: nn.Module) -> Map | None:
    """The matrix and the bias of a map as `Rewritten.stored` returns them; None where calling it may do more than
    multiply and add, as with hooks."""
    if isinstance(module, Linear) and unadapted(module, Linear):
        return Map(module.weight, None, module.bias)
    return module.stored() if isinstance(module, Rewritten) and _itself(module) else None


def allowed(module: nn.Module) -> frozenset[Use]:
    """The operations that are allowed on a module as a linear map: nothing where it is none, or where it has been
    adapted in a way that a rewrite would lose (`unadapted`). A plain `torch.nn.Linear` allows everything."""
    if unadapted(module, nn.Linear):
        return EVERYTHING
    known = unadapted(module, Linear) if isinstance(module, Linear) else _itself(module)
    return module.allows if isinstance(module, Linear | Rewritten) and known else frozenset()


def _itself(module: nn.Module) -> bool:
    """Whether a module is an unadapted `Rewritten`. A parametrisation makes a subclass, which has no `forward` in its
    own class."""
    return isinstance(module, Rewritten) and "forward" in vars(type(module)) and unadapted(module, type(module))
