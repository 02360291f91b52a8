"""`Linear`: the linear map by which every part projects. It declares what may be done with it, and so do the modules
that rewrites put in its place (`Rewritten`).

Which modules a rewrite may replace: those that nothing from outside has changed.

A rewrite replaces a module by another with the same parameters: matrices joined, laid out anew, extended by a term, in
fewer bits. Whatever else has been done to a module (a subclass, a hook, a patched method) is not in its parameters and
would be lost.

`HoldsMatrix`: parts that multiply by a parameter of their own, and how rewrites reach it.

How a part divides among processes: which of its maps lead into its heads or channels, and which out of them.

A part that can be computed in equal parts, each on a process of its own, declares a `Division`; tensor parallelism
(`weft.parallel.tensor`) reads it, so that no model needs a plan of its own. With n processes, each has 1/n of the heads
or channels:

    into      y_i = W_i x      the rows of W that lead to its heads; the gradient of x is the sum over processes
    out_of    y = sum W_i h_i  the columns of W that read its heads; the output is the sum over processes
    through   as out_of, for what heads of every process read again: the gradient of the output is a sum as well

Everything outside is the same on every process. This is the scheme of Shoeybi et al. 2019 (Megatron-LM, section 3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from weft.core.compiling import Direct, compiler_traces, constant_to_compiler
from weft.core.layer import Part
from weft.ops.linear import LINEAR, LinearCall, Map

Sections: TypeAlias = tuple[int, ...]
"""Lengths of the stretches, one after another, that are divided each by itself: queries, keys, values."""


class DividedDimension(NamedTuple):
    """The dimension along which a tensor is divided, and its stretches."""

    dim: int
    sections: Sections


@dataclass(frozen=True)
class Division:
    """The division of a part among processes.

    Attributes:
        counts: the numbers that must divide, by the names of the fields that set them (``n_heads``, ``d_ff``).
        into: maps whose outputs are divided, by the name of the child, with the stretches of the outputs.
        out_of: maps whose inputs are divided, with the stretches of the inputs.
        through: as ``out_of``, where every process goes on computing its part with the output.
        along: further parameters that are divided, by their names in the part.
        summed: parameters, by name or by that of the module they are in, that every process has whole and uses for its
            own heads alone, so that their gradients are sums over processes.
    """

    counts: Mapping[str, int]
    into: Mapping[str, Sections] = field(default_factory=dict)
    out_of: Mapping[str, Sections] = field(default_factory=dict)
    through: Mapping[str, Sections] = field(default_factory=dict)
    along: Mapping[str, DividedDimension] = field(default_factory=dict)
    summed: tuple[str, ...] = ()


class Divisible(Part):
    """A part that can be computed in equal parts by several processes. A subclass may compute something else, so both
    methods count only where its own class defines them."""

    @abstractmethod
    def division(self) -> Division | str:
        """The division of a part; or why it cannot be divided, in a clause."""

    @abstractmethod
    def divide(self, parts: int, place: int) -> None:
        """Set its own numbers of heads or channels to those of one of ``parts`` equal parts, the one at ``place``. The
        caller divides maps and parameters as `division` says. What it draws at random for its heads or channels it
        then draws with `weft.ops.dropout.OwnDraws`."""


Use: TypeAlias = Literal["fuse", "widen", "quantise", "adapt"]
"""What may be done with a map: joined with its neighbours into one matrix; multiplied in wider numbers than its
input; stored in fewer bits, so that its weight is no longer a matrix of floats; extended by a
trained term beside its matrix."""

EVERYTHING: frozenset[Use] = frozenset(get_args(Use))
UNNAMED: Mapping[str, int] = MappingProxyType({})


class Linear(Direct, nn.Linear):
    """y = x W^T + b.

    x [...,in], y [...,out]; ``weight`` [out,in] and ``bias`` [out], with the initial values of `torch.nn.Linear`. A
    part that uses a map otherwise than by calling it (it reads the matrix, or a choice depends on the sign of an
    output) restricts what is allowed.

    Args:
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


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where `torch.nn.Module` stores the hooks that are called with a module."""
PLAIN = frozenset({nn.Parameter, Tensor, type(None)})
"""Classes of parameters that a rewrite knows, and of those that a module does without."""


def unadapted(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether ``module`` behaves as its class ``kind`` defines, so that a rewrite of ``kind`` may replace it.

    It does not where it is of a subclass (an adapter; a parametrisation makes one too), has hooks, has an attribute
    that shadows a method of the class, or has parameters of a special class (quantised ones).
    """
    of_class: Any = kind
    own, methods = vars(module), _methods(of_class)
    if type(module) is not kind:
        return False
    for hooks in HOOKS:
        if own[hooks]:
            return False
    own_parameters = module._parameters.values()
    if compiler_traces():  # PyTorch 2.11 compiles questions about one attribute or class, and not those about all
        return not any(name in own for name in methods) and all(type(each) in PLAIN for each in own_parameters)
    # A generator's entries would be a call of Python's each, a hundred for every map in a step of one token.
    return methods.isdisjoint(own) and PLAIN.issuperset(map(type, own_parameters))


@cache
@constant_to_compiler
def _methods(kind: Any) -> frozenset[str]:
    """The names of a class that an attribute of a module could shadow."""
    return frozenset([name for name in dir(kind) if callable(getattr(kind, name, None))])


M = TypeVar("M", bound=nn.Module)


class HoldsMatrix(Part, ABC):
    """A part that multiplies by a parameter of its own and not by a `Linear`, so that checkpoints name the matrix
    after the part. Rewrites reach the matrix through `opened`."""

    child: ClassVar[str] = "map"
    """The name of the `Linear` in the opened part."""
    held: ClassVar[Mapping[str, str]] = MappingProxyType({"weight": "weight", "bias": "bias"})
    """The parameters of the part itself that are those of the `Linear`, by their names in it. The matrix may have more
    dimensions in the part, with its columns in the same order."""
    calls: ClassVar[bool] = True
    """Whether the opened part calls the `Linear`; one that only reads its matrix (`read`) computes the products
    itself."""

    @abstractmethod
    def opened(self) -> HoldsMatrix:
        """An equal part in which the matrix is a child `Linear` called `child` with the same parameters; the part
        itself where it is of that kind."""

    def with_child(self, linear: nn.Module | None, *without: str) -> Self:
        """A copy that shares its tensors and has ``linear`` for the child and not the parameters ``without``."""
        copied = shallow(self)
        for name in without:
            del copied._parameters[name]
        setattr(copied, self.child, linear)
        return copied


def opens(module: nn.Module) -> bool:
    """Whether a module is an unadapted part with a matrix of its own that has not been opened. A subclass may compute
    something else, so it counts only where its own class defines `opened`."""
    own = isinstance(module, HoldsMatrix) and "opened" in vars(type(module)) and unadapted(module, type(module))
    return own and isinstance(module, HoldsMatrix) and module.opened() is not module


def reads(module: nn.Module) -> bool:
    """Whether a module is a part that reads a matrix and computes the products itself."""
    return isinstance(module, HoldsMatrix) and not module.calls


def child_of(path: str, module: HoldsMatrix) -> str:
    """The path of the `Linear` of a part at ``path``."""
    return f"{path}.{module.child}" if path else module.child


def read(linear: nn.Module, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The matrix of a map in ``dtype``, and its bias, for a part that computes the products itself: what was put in the
    map's place is in it. Gradients flow through both."""
    if isinstance(linear, Rewritten):
        return linear.read(dtype)
    assert isinstance(linear, nn.Linear), "a map"
    return linear.weight.to(dtype), linear.bias


def shallow(module: M) -> M:
    """A copy of a module that shares its tensors and children, with dictionaries of its own to hold them and its hooks;
    `copy.copy` refuses modules with parametrisations."""
    copied: M = object.__new__(type(module))
    vars(copied).update(vars(module))
    for registry in ("_modules", "_parameters", "_buffers", *HOOKS):
        vars(copied)[registry] = vars(module)[registry].copy()
    return copied
