"""Whole models in the form that is fastest without gradients: `Part.inference` of every part, no dropout, and linear
maps as the caller wants them. The model itself stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from weft.core.layer import Part

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
        lay: given a linear map, an equal one, perhaps with its weights laid out otherwise in memory.
    """
    fused = _rebuild(model, _fuse, {})
    laid = _rebuild(fused, lambda module: lay(module) if isinstance(module, nn.Linear) else module, {})
    frozen: dict[int, nn.Parameter] = {}
    for module in laid.modules():
        for name, own in module.named_parameters(recurse=False):
            setattr(module, name, frozen.setdefault(id(own), nn.Parameter(own.detach(), requires_grad=False)))
    return laid.eval()  # type: ignore[no-any-return]


def _fuse(module: nn.Module) -> nn.Module:
    if isinstance(module, nn.Dropout):
        return nn.Identity()
    return module.inference() if isinstance(module, Part) else module


def _rebuild(module: Any, form_of: Callable[[nn.Module], nn.Module], done: dict[int, tuple[nn.Module, Any]]) -> Any:
    """``form_of`` of every module, in copies that share the tensors; a module that stands in several places is one
    module afterwards."""
    if id(module) not in done:
        form = copy.copy(form_of(module))
        for registry in ("_modules", "_parameters", "_buffers"):  # a shallow copy shares them with its original
            vars(form)[registry] = dict(vars(form)[registry])
        # The module is held with its form: of one that is no more another may take the identity.
        done[id(module)] = module, form
        children = vars(form)["_modules"]  # `named_children` leaves out a module that stands there twice
        children.update({name: _rebuild(child, form_of, done) for name, child in children.items() if child is not None})
    return done[id(module)][1]
