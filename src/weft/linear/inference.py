"""Whole models in the form that is fastest without gradients: `Part.inference` of every part, and linear maps as the
caller wants them. What somebody has adapted keeps its form, and the model itself stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from torch import nn

from weft.core.layer import Part
from weft.linear.law import require_same, runs
from weft.linear.linear import allowed
from weft.linear.replacing import Replaced, replaced_copy
from weft.linear.untouched import untouched

M = TypeVar("M", bound=nn.Module)
Lay: TypeAlias = Callable[[nn.Linear], nn.Module]


def inference_form(model: M, lay: Lay | None = None) -> M:
    """A model with the outputs and the state of ``model``, in evaluation mode and without gradients.

    Weights whose form does not change are shared with ``model``; the others exist twice while both are held.

    Args:
        model: a language model or a layer.
        lay: given a linear map that may be laid out, an equal one, perhaps with its weights laid out otherwise in
            memory; None: all stay as they are.
    """
    return _form(model, lay).model


def checked_inference_form(model: M, lay: Lay | None = None, *, where: str) -> M:
    """`inference_form`, once what was put in computes what it replaced, on a row of a few tokens.

    Raises:
        LawError: naming the layer that does not.
    """
    found = _form(model, lay)
    require_same(found.model, found.replacements, where=where, runs=lambda: runs(model))
    return found.model


def _form(model: M, lay: Lay | None) -> Replaced[M]:
    """The model in that form, with what was put in the place of what."""
    def form_of(path: str, module: nn.Module) -> nn.Module:
        form = _fused(module)
        return lay(form) if lay is not None and isinstance(form, nn.Linear) and "lay_out" in allowed(form) else form

    found = replaced_copy(model, form_of)
    frozen: dict[int, nn.Parameter] = {}
    for module in found.model.modules():
        for name, own in module.named_parameters(recurse=False):
            setattr(module, name, frozen.setdefault(id(own), nn.Parameter(own.detach(), requires_grad=False)))
    found.model.eval()
    return found


def _fused(module: nn.Module) -> nn.Module:
    kind = type(module)
    own = isinstance(module, Part) and "inference" in vars(kind)
    return module.inference() if isinstance(module, Part) and own and untouched(module, kind) else module
