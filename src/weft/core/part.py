"""`Part`: the base of everything that a configuration builds, and the dtypes that casts leave its tensors in."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from weft.core.declarations import Declarations
from weft.core.history import Lookback
from weft.core.traits import Trait


class Part(nn.Module, Declarations, ABC):
    """Base of everything that a configuration builds: layers, position schemes, norms, models."""

    own_law: ClassVar[bool] = False
    """True for parts whose traits do not weaken the model that holds them: an encoder beside a causal decoder."""

    def own_traits(self) -> frozenset[Trait]:
        """Ways in which this part itself does less than the law."""
        return frozenset()

    def inference(self) -> nn.Module:
        """This part in the form that is fastest without gradients: equal outputs and losses, and the same state, so
        that either goes on where the other left off. Itself where there is nothing to gain, or where a child that the
        form would take apart is not `untouched`. It may share weights with this part, which stays as it is.
        `weft.linear.inference` puts whole models into it, and asks no part of which it is inherited: a subclass may
        compute something else."""
        return self

    def lookback(self) -> Lookback | None:
        """Which earlier tokens this part itself asks the positions of; None for none."""
        return None

    def dynamics(self) -> tuple[nn.Parameter, ...]:
        """Own parameters that say how a state moves, whatever their shape: modes, rates, time steps. Weight decay
        would pull them to other dynamics, not to simpler ones, so optimisers do not decay them."""
        return ()

    def exact(self) -> tuple[Tensor, ...]:
        """Own parameters and buffers that a cast to narrower floats leaves in float32 or wider, because what is made of
        them magnifies their rounding: a mode's angle is multiplied by the number of tokens."""
        return self.dynamics()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `bfloat16`, `half` and `cuda` come to."""
        kept = kept_dtypes(self)

        def moved(tensor: Tensor) -> Tensor:
            if id(tensor) in kept.exact:
                return _kept_wide(tensor, fn)
            made = fn(tensor)
            return tensor.to(made.device) if id(tensor) in kept.same and made.dtype != tensor.dtype else made

        super()._apply(moved if kept.exact or kept.same else fn, recurse)  # type: ignore[no-untyped-call]
        return self


class KeptDtypes(NamedTuple):
    """Identities of tensors that a cast treats otherwise than the rest.

    Attributes:
        exact: those that stay in float32 or wider (`Part.exact`), their gradients too.
        same: those that stay as they are (`Declarations.same_dtype`).
    """

    exact: frozenset[int]
    same: frozenset[int]

    def after(self, tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
        """What a cast of floats to ``dtype`` leaves a tensor of floats in."""
        if id(tensor) in self.same:
            return tensor.dtype
        return torch.promote_types(dtype, torch.float32) if id(tensor) in self.exact else dtype


def kept_dtypes(module: nn.Module) -> KeptDtypes:
    """What the parts in a module declare of the dtypes of their tensors, wherever else in it the tensors stand."""
    parts = [part for part in module.modules() if isinstance(part, Part)]
    exact = [tensor for part in parts for tensor in _exact_tensors(part)]
    return KeptDtypes(frozenset(id(each) for own in exact for each in (own, own.grad) if each is not None),
                      frozenset(id(own) for part in parts for own in part.same_dtype()))


def _exact_tensors(part: Part) -> list[Tensor]:
    """What a part needs exact; where one of these is made of another by a parametrisation, that other one too."""
    if not parametrize.is_parametrized(part):
        return list(part.exact())
    with parametrize.cached():
        found = list(part.exact())
        made = {id(tensor) for tensor in found}
        lists = {name: each for name, each in part.get_submodule("parametrizations").named_children()
                 if id(getattr(part, name)) in made}
    return [*found, *(tensor for each in lists.values() for tensor in (*each.parameters(), *each.buffers()))]


def _kept_wide(tensor: Tensor, fn: Callable[[Tensor], Tensor]) -> Tensor:
    """What ``fn`` makes of a tensor, or the tensor in float32 at that place where it would be narrower."""
    if tensor.is_complex():
        with torch.no_grad():
            return torch.view_as_complex(_kept_wide(torch.view_as_real(tensor.detach()), fn))
    moved = fn(tensor)
    if moved.dtype == tensor.dtype:
        return moved
    return tensor.to(moved.device, torch.promote_types(moved.dtype, torch.float32))


def computing_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype that a module computes in: that of its first parameter that a cast does not leave as it is
    (`Part.exact`), or of its first where there is no other; None without parameters."""
    exact, own = kept_dtypes(module).exact, list(module.parameters())
    return next((p.dtype for p in [*(p for p in own if id(p) not in exact), *own]), None)
