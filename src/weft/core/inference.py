"""Whole models in the form that is fastest without gradients: `Part.inference` of every part, and linear maps as the
caller wants them. What somebody has adapted keeps its form, and the model itself stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard, TypeVar

from torch import nn

from weft.core.layer import Part
from weft.core.rewrites import untouched

M = TypeVar("M", bound=nn.Module)
Lay = Callable[[nn.Linear], nn.Linear]


def as_it_is(linear: nn.Linear) -> nn.Linear:
    """The map itself."""
    return linear


def inference_form(model: M, lay: Lay = as_it_is) -> M:
    """A model with the outputs and the state of ``model``, in evaluation mode and without gradients.

    Weights whose form does not change are shared with ``model``; the others exist twice while both are held.

    Args:
        model: a language model or a layer.
        lay: given a linear map that is `untouched`, an equal one, perhaps with its weights laid out otherwise in
            memory.
    """
    fused = _rebuild(model, _fuse, {})
    laid = _rebuild(fused, lambda module: lay(module) if _linear(module) else module, {})
    frozen: dict[int, nn.Parameter] = {}
    for module in laid.modules():
        for name, own in module.named_parameters(recurse=False):
            setattr(module, name, frozen.setdefault(id(own), nn.Parameter(own.detach(), requires_grad=False)))
    return laid.eval()  # type: ignore[no-any-return]


def _linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    return untouched(module, nn.Linear)


def _fuse(module: nn.Module) -> nn.Module:
    kind = type(module)
    own = isinstance(module, Part) and "inference" in vars(kind)
    return module.inference() if isinstance(module, Part) and own and untouched(module, kind) else module


def _rebuild(module: Any, form_of: Callable[[nn.Module], nn.Module], done: dict[int, tuple[nn.Module, Any]]) -> Any:
    """``form_of`` of every module, in copies that share the tensors; a module that stands in several places is one
    module afterwards."""
    if id(module) not in done:
        form = _shallow(form_of(module))
        for registry in ("_modules", "_parameters", "_buffers"):  # a shallow copy shares them with its original
            vars(form)[registry] = dict(vars(form)[registry])
        # The module is held with its form: of one that is no more another may take the identity.
        done[id(module)] = module, form
        children = vars(form)["_modules"]  # `named_children` leaves out a module that stands there twice
        children.update({name: _rebuild(child, form_of, done) for name, child in children.items() if child is not None})
    return done[id(module)][1]


def _shallow(module: nn.Module) -> nn.Module:
    """What `copy.copy` gives, which modules with parametrisations refuse."""
    copied = object.__new__(type(module))
    vars(copied).update(vars(module))
    return copied
