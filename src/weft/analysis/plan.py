"""`plan`: what a model costs before it runs. Nothing of its size is allocated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.flops import Flops, forward_flops
from weft.analysis.kernels import FormChoice, choices, single_token
from weft.analysis.matmul import Timing, matmul_rate, products_in, timed
from weft.analysis.memory import (
    States,
    TrainingMemory,
    buffer_bytes,
    state_sizes,
    training_bytes,
    weight_bytes,
)
from weft.analysis.notes import all_notes
from weft.analysis.parts import Parameters, count_parameters
from weft.analysis.shapes import shape_of
from weft.analysis.step import TrainingStep, training_step
from weft.core.errors import InputError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel, Model, ModelConfig
from weft.core.strict_json import Record
from weft.core.traits import Trait
from weft.ops.forms import OPERATIONS, Decision

CONTEXTS = (256, 512, 1024, 2048, 4096, 8192)
"""Where decoding's memory is measured, as far as the model reaches."""


@dataclass(frozen=True)
class TimeHere(Record):
    """The least time that a training run takes on this machine.

    Attributes:
        tokens: of the whole run.
        flops: of the whole run, forward and backward.
        rate: operations a second that a square matrix product reaches here, measured now.
        seconds: flops / rate. A lower bound: element-wise work, memory traffic, small or oblong products, and
            everything besides the training step come on top.
        products: of the linear maps of a batch, by every route, and the route that a run takes.
    """

    tokens: int
    flops: float
    rate: float
    seconds: float
    products: tuple[Timing, ...]


@dataclass(frozen=True)
class Plan(Record):
    """What a model costs.

    Attributes:
        model: its kind.
        dtype: of weights and computation.
        batch: rows, of activations and states.
        context: tokens of a row, of operations and activations.
        weights: bytes of the parameters in each dtype.
        buffers: bytes of fixed tensors.
        flops: of a forward pass; None for a model that is looked up, not computed.
        training: None for a model that gradients do not train, as is ``step``.
        time_here: when a number of tokens was given.
        states: None for a model without states.
        forms: by which form each operation of it is computed here, and why.
    """

    model: str
    dtype: str
    batch: int
    context: int
    parameters: Parameters
    weights: dict[str, int]
    buffers: int
    flops: Flops | None
    training: TrainingMemory | None
    step: TrainingStep | None
    time_here: TimeHere | None
    states: States | None
    forms: tuple[FormChoice, ...]
    notes: tuple[str, ...]


def plan(source: ModelConfig | Model, *, context: int | None = None, contexts: Sequence[int] = CONTEXTS,
         batch: int = 1, dtype: torch.dtype | None = None, tokens: int | None = None) -> Plan:
    """Count a model's parameters, operations and bytes by running it on shapes.

    Args:
        source: a configuration, or a model (from a checkpoint, say), which is left as it is.
        context: tokens of a row; None: the model's own.
        contexts: tokens after which decoding's memory is measured; those beyond the model's reach are left out.
        batch: rows.
        dtype: of weights and computation; None: the model's own, float32 for a configuration.
        tokens: of a training run whose least time here is wanted; None: do not measure this machine.

    Raises:
        InputError: a number that is not positive, or a context beyond the model's reach.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = shape_of(source, mode, dtype)
    length = model.config.context if context is None else context
    reach = model.limit()
    _require(length, batch, tokens, contexts, reach)
    own = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    with OPERATIONS.observed() as prompts:
        flops = None if Trait.NOT_DIFFERENTIABLE in traits_of(model) else forward_flops(model, mode, length)
    with OPERATIONS.observed() as training:
        step = None if flops is None else training_step(model, mode, batch, length)
    decodes = flops is not None and Trait.BIDIRECTIONAL not in traits_of(model)
    steps = single_token(model, mode, batch) if decodes and isinstance(model, LanguageModel) else []
    return Plan(
        model=model.config.kind, dtype=str(own).removeprefix("torch."), batch=batch, context=length,
        parameters=count_parameters(model), weights=weight_bytes(model), buffers=buffer_bytes(model), flops=flops,
        training=None if flops is None else training_bytes(model, own),
        step=step, time_here=None if step is None or tokens is None else _time(step, tokens, own, training),
        states=state_sizes(model, mode, batch, [each for each in contexts if reach is None or each <= reach]),
        forms=choices({"training": training, "prompts": prompts, "single tokens": steps}),
        notes=all_notes(model, flops))


def _time(step: TrainingStep, tokens: int, dtype: torch.dtype, decisions: Iterable[Decision]) -> TimeHere:
    flops, rate = step.flops / (step.batch * step.context) * tokens, matmul_rate(dtype)
    return TimeHere(tokens, flops, rate, flops / rate, timed(products_in(decisions, str(dtype))))


def _require(context: int, batch: int, tokens: int | None, contexts: Sequence[int], reach: int | None) -> None:
    for name, value in [("context", context), ("batch", batch), ("tokens", tokens),
                        *(("contexts", each) for each in contexts)]:
        if value is not None and value < 1:
            raise InputError(f"{value} is not a positive number.", where=name, remedy="Give 1 or more.")
    if reach is not None and context > reach:
        raise InputError(f"{context} tokens, but this model's positions end at {reach}.", where="context",
                         remedy=f"Give at most {reach}, or a position scheme without a table.")
