"""Forms of operations that a run names (``kernels``), tried on a step without data before its folder is made."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import blank_tokens, loss_of, run_whole
from weft.analysis.shapes import ValuesRead, shape_of
from weft.core.errors import UserError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel, Model
from weft.core.span import WHOLE, Span
from weft.core.traits import Trait
from weft.ops.forms import forced
from weft.training.config import DTYPES, RunConfig
from weft.training.precision import narrowed


def require_served(config: RunConfig, model: Model, device: torch.device | str) -> None:
    """Check that the forms that a run names can serve its model, in training and in evaluation.

    The model is called on fake tensors, with the rows, the tokens and the dtype of the run, which takes about as long
    as a step of a small model and is done only where a form is named. A form that serves some batches and not others,
    because documents begin inside of them, is left to the run. So are devices other than the CPU, which fake tensors
    do not stand for here.

    Args:
        config: of the run.
        model: of the configuration, with or without weights; it is not changed.
        device: where the run computes.

    Raises:
        UnsupportedError: a form cannot serve; the words are those of the call itself.
    """
    if not config.kernels or torch.device(device).type != "cpu" or Trait.NOT_DIFFERENTIABLE in traits_of(model):
        return
    dtype, mode = DTYPES[config.training.dtype], FakeTensorMode(allow_non_fake_inputs=True)
    # As `weft.training.precision.Precision` makes the model that computes.
    working = shape_of(narrowed(model, dtype) if dtype == torch.bfloat16 else deepcopy(model).to(dtype), mode, None)
    rows, tokens = config.training.batch_size, config.context
    with forced(config.kernels), mode, ValuesRead():
        spans = _spans(working, rows, tokens)
        for training in (True, False):
            working.train(training)
            with torch.set_grad_enabled(training):
                _require_one(working, rows, tokens, spans)


def _spans(model: Model, rows: int, tokens: int) -> list[Span]:
    """The facts that a batch may hold of its rows: that each is of one document, or that others begin inside of it.
    Only rows of a language model are of several."""
    if not isinstance(model, LanguageModel) or tokens < 2:
        return [WHOLE]
    return [WHOLE, Span(begins=blank_tokens(rows, tokens) == 1)]


def _require_one(model: Model, rows: int, tokens: int, spans: list[Span]) -> None:
    """Check that the forms can serve batches of at least one kind.

    Raises:
        UnsupportedError: they can serve none; the reason is that of the first kind.
    """
    refusals = []
    for span in spans:
        try:
            loss_of(model, run_whole(model, rows, tokens, span=span))
            return
        except UserError as error:
            refusals.append(error)
    raise refusals[0]
