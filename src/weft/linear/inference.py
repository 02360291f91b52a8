"""Whole models in the form that is fastest without gradients: `HasInferenceForm.inference` of every part. Modules that
have been adapted keep their form, and the model itself is not changed."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from weft.core.declarations import HasInferenceForm
from weft.linear.law import require_same, runs
from weft.linear.linear import unadapted
from weft.linear.replacing import Replaced, replaced_copy

M = TypeVar("M", bound=nn.Module)


def inference_form(model: M) -> M:
    """A model with the outputs and the state of ``model``, a language model or a layer, in evaluation mode and without
    gradients.

    Weights whose form does not change are shared with ``model``; the others exist twice while both are held.
    """
    return _form(model).model


def checked_inference_form(model: M, *, where: str) -> M:
    """`inference_form`, checked on a row of a few tokens: every module that was put in computes what it replaced.
    Raises `LawError`: a layer does not; the message names it."""
    form = _form(model)
    require_same(form.model, form.replacements, where=where, runs=lambda: runs(model))
    return form.model


def _form(model: M) -> Replaced[M]:
    """The model in that form, with the list of replacements."""
    result = replaced_copy(model, lambda path, module: _fused(module))
    frozen: dict[int, nn.Parameter] = {}
    for module in result.model.modules():
        for name, own in module.named_parameters(recurse=False):
            setattr(module, name, frozen.setdefault(id(own), nn.Parameter(own.detach(), requires_grad=False)))
    result.model.eval()
    return result


def _fused(module: nn.Module) -> nn.Module:
    kind = type(module)
    own = isinstance(module, HasInferenceForm) and "inference" in vars(kind)
    return module.inference() if isinstance(module, HasInferenceForm) and own and unadapted(module, kind) else module
