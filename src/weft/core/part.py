"""`Part`: the base of everything that a configuration builds, and the dtypes that casts leave its tensors in."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from weft.core.calling import Direct
from weft.core.declarations import Declarations
from weft.core.history import Lookback
from weft.core.traits import Trait


class Part(Direct, Declarations, ABC):
    """Base of everything that a configuration builds: layers, position schemes, norms, models."""

    own_law: ClassVar[bool] = False
    """True for parts whose traits do not weaken the model that contains them: an encoder beside a causal decoder."""

    def own_traits(self) -> frozenset[Trait]:
        """The ways in which this part itself does less than the law."""
        return frozenset()

    def inference(self) -> nn.Module:
        """This part in the form that is fastest without gradients, with equal outputs and losses and the same state, so
        that either continues the state of the other.

        It is this part itself if there is nothing to gain, or if a child that the form would replace is not
        `untouched`. It may share weights with this part, which does not change. `weft.linear.inference` converts whole
        models. It ignores an inherited method, because a subclass may compute something else."""
        return self

    def lookback(self) -> Lookback | None:
        """The earlier tokens whose positions this part itself reads; None if it reads none."""
        return None

    def dynamics(self) -> tuple[nn.Parameter, ...]:
        """Its parameters that determine how a state evolves, whatever their shape: modes, rates, time steps. Weight
        decay would pull them to other dynamics, not to simpler ones, so optimisers do not apply it to them."""
        return ()

    def after_step(self, total: Callable[..., list[float]]) -> bool:
        """Change what training changes otherwise than by gradients, once after every step of the optimiser; return
        whether anything was. ``total(*values)`` sums each value over all processes, which must all call it alike."""
        return False

    def exact(self) -> tuple[Tensor, ...]:
        """Its parameters and buffers that a cast to narrower floats leaves in float32 or wider, because the computation
        magnifies their rounding error: the angle of a mode is multiplied by the number of tokens."""
        return self.dynamics()

    def wide_in_training(self) -> tuple[nn.Parameter, ...]:
        """Its parameters that training in narrow floats keeps in float32 or wider for computing: those near 1, where a
        step of an optimiser is smaller than the spacing of bfloat16. They must not widen what the part returns."""
        return ()

    def begin_step(self, step: int, seed: int) -> None:
        """Prepare for a step of training, before its first batch: training calls it, evaluation and decoding never do.
        It may change buffers that checkpoints hold, such as random features, as a pure function of its arguments, so
        that a resumed run goes on exactly.

        Args:
            step: of the run, from 0.
            seed: for random numbers, another one for every run's seed, step and part of the model.
        """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Override the method that `to`, `bfloat16`, `half` and `cuda` call."""
        kept = kept_dtypes(self)

        def moved(tensor: Tensor) -> Tensor:
            if id(tensor) in kept.exact:
                return _kept_wide(tensor, fn)
            result = fn(tensor)
            return tensor.to(result.device) if id(tensor) in kept.same and result.dtype != tensor.dtype else result

        super()._apply(moved if kept.exact or kept.same else fn, recurse)  # type: ignore[no-untyped-call]
        return self


class KeptDtypes(NamedTuple):
    """Identities of the tensors that a cast treats differently from the rest.

    Attributes:
        exact: those that stay in float32 or wider (`Part.exact`), and their gradients.
        same: those that keep their dtype (`Declarations.same_dtype`).
    """

    exact: frozenset[int]
    same: frozenset[int]

    def after(self, tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
        """The dtype of a floating-point tensor after a cast to ``dtype``."""
        if id(tensor) in self.same:
            return tensor.dtype
        return torch.promote_types(dtype, torch.float32) if id(tensor) in self.exact else dtype


def kept_dtypes(module: nn.Module) -> KeptDtypes:
    """The declarations of all parts in a module about the dtypes of their tensors, which other modules may share."""
    parts = [part for part in module.modules() if isinstance(part, Part)]
    exact = [tensor for part in parts for tensor in _exact_tensors(part)]
    gradients = [tensor.grad for tensor in exact if tensor.is_leaf]  # only leaves have one that is kept
    return KeptDtypes(frozenset(id(each) for each in (*exact, *gradients) if each is not None),
                      frozenset(id(tensor) for part in parts for tensor in part.same_dtype()))


def _exact_tensors(part: Part) -> list[Tensor]:
    """The tensors that a part declares exact, and those from which a parametrisation computes one of them."""
    if not parametrize.is_parametrized(part):
        return list(part.exact())
    with parametrize.cached():  # the same tensor object each time a parametrised one is read, so identities compare
        exact = list(part.exact())
        identities = {id(tensor) for tensor in exact}
        sources = {name: each for name, each in part.get_submodule("parametrizations").named_children()
                   if id(getattr(part, name)) in identities}
    return [*exact, *(tensor for each in sources.values() for tensor in (*each.parameters(), *each.buffers()))]


def _kept_wide(tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """``fn(tensor)``, or the tensor on that device in float32 if the result would be narrower."""
    if tensor.is_complex():
        with torch.no_grad():
            return torch.view_as_complex(_kept_wide(torch.view_as_real(tensor.detach()), fn))
    moved = fn(tensor)
    if moved.dtype == tensor.dtype:
        return moved
    return tensor.to(moved.device, torch.promote_types(moved.dtype, torch.float32))


def wide_in_training(module: nn.Module) -> frozenset[int]:
    """Identities of the parameters that the parts in a module declare as `Part.wide_in_training`."""
    return frozenset(id(own) for part in module.modules() if isinstance(part, Part) for own in part.wide_in_training())


def computing_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype that a module computes in: that of its first parameter that a cast does not leave as it is
    (`Part.exact`, `Part.wide_in_training`), or of its first parameter if there is no other; None without parameters."""
    exact, parameters = kept_dtypes(module).exact | wide_in_training(module), list(module.parameters())
    return next((p.dtype for p in [*(p for p in parameters if id(p) not in exact), *parameters]), None)
