"""`plan`: the cost of a model before it runs, without allocating its weights.

The notes of a plan: traits, costs that the figures do not show, and operators that were not counted.

The records of what a run costs on this machine; `weft.analysis.run_costs` fills them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.adapter_reach import Coverage, coverage
from weft.analysis.by_blocks import PlanSums, shallow_models
from weft.analysis.calls import TrainingStep, training_step
from weft.analysis.flops import Flops, forward_flops
from weft.analysis.kernels import FormChoice, choices, single_token
from weft.analysis.matmul import Timing, as_kept, matmul_rate, products_in, timed
from weft.analysis.memory import States, TrainingMemory, buffer_bytes, state_sizes, training_bytes, weight_bytes
from weft.analysis.parts import Parameters, count_parameters
from weft.analysis.shapes import shape_of
from weft.core.declarations import Trait
from weft.core.errors import ConfigError, InputError
from weft.core.layer import Part, traits_of
from weft.core.model import LanguageModel, Model, ModelConfig
from weft.core.strict_json import Record
from weft.ops.forms import OPERATIONS, Decision, forced
from weft.positions.regimes import regimes


@dataclass(frozen=True)
class WorkCosts(Record):
    """The memory and time that one kind of work needs here.

    Attributes:
        context: tokens of a row.
        memory: peak bytes of weights, and of what lies beside them.
        fits: whether this machine has as much memory; None: it does not say how much it has.
        seconds: least seconds of a step: of training, or of decoding one token of every row.
        tokens_per_second: the most tokens, of all rows.
        prompt_seconds: least seconds for prompts that fill the context; None for training.
    """

    rows: int
    context: int
    memory: int
    fits: bool | None
    seconds: float
    tokens_per_second: float
    prompt_seconds: float | None = None


@dataclass(frozen=True)
class RunCosts(Record):
    """A run on this machine.

    Attributes:
        machine_memory: bytes of main memory; 0 where the system does not say.
        rate: operations per second of a large square product.
        bandwidth: bytes per second of copying.
        decode: None for a model that writes no text, or without operations.
    """

    machine_memory: int
    rate: float
    bandwidth: float
    train: WorkCosts
    decode: WorkCosts | None
    assumptions: tuple[str, ...]


CONTEXTS = (256, 512, 1024, 2048, 4096, 8192)
"""The default contexts, in tokens, at which the size of states is computed."""


@dataclass(frozen=True)
class TimeHere(Record):
    """The least time that a training run takes on this machine.

    Attributes:
        tokens: tokens of the whole run.
        flops: operations of the whole run, forward and backward.
        rate: operations per second of a square matrix product, measured on this machine.
        seconds: flops / rate, a lower bound: element-wise work, memory traffic, small or oblong products and
            everything besides the training step are not included.
        products: timings of the products of a batch's linear maps, by every route, and the route that a run takes.
    """

    tokens: int
    flops: float
    rate: float
    seconds: float
    products: tuple[Timing, ...]


@dataclass(frozen=True)
class Plan(Record):
    """The cost of a model.

    Attributes:
        dtype: the dtype of weights and computation.
        batch: rows, for activations and states.
        context: tokens of a row, for operations and activations.
        parameters: the numbers of parameters.
        weights: bytes of the parameters in each dtype.
        buffers: bytes of the buffers.
        flops: operations of a forward pass; None for a counted model, which looks up tables.
        training: memory of training; None for a counted model.
        step: the cost of a training step; None for a counted model.
        time_here: the least time of a training run; None unless a number of tokens was given.
        states: the sizes of states; None for a model without states.
        forms: the form of each operation on this machine, and the reason.
        notes: remarks in whole sentences.
        adapters: what the adapters of its rewrites reach; None without any.
        here: training and decoding on this machine; None unless asked for.
        lengthwise: whether what it computes depends on the declared length of a document.
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
    adapters: Coverage | None = None
    lengthwise: bool = False
    here: RunCosts | None = None


MOST_TOKENS = 1 << 24
"""Tokens of a row that is planned: forms that go through a row in chunks do so on fake tensors too, some minutes for
more."""


def plan(source: ModelConfig | Model, *, context: int | None = None, contexts: Sequence[int] = CONTEXTS,
         batch: int = 1, dtype: torch.dtype | None = None, tokens: int | None = None,
         kernels: Mapping[str, str] = MappingProxyType({})) -> Plan:
    """Count a model's parameters, operations and bytes by running it on fake tensors.

    Args:
        source: a configuration, or a model, which is not changed.
        context: tokens of a row; None: the model's own context.
        contexts: tokens after which the size of a state is computed; those beyond the model's limit are left out.
        batch: rows.
        dtype: the dtype of weights and computation; None: the model's own, float32 for a configuration.
        tokens: tokens of a training run whose least time on this machine is to be estimated; None: no estimate.
        kernels: forms that the run names (`weft.training.RunConfig`), which are those of training; decoding chooses.

    Raises:
        InputError: a number is not positive, or the context exceeds the model's limit.
        ConfigError: an operation or a form is not known.
        UnsupportedError: a form that is named cannot serve the model here.
    """
    found, decisions = _planned(source, context, contexts, batch, dtype, tokens, kernels)
    if tokens is None or found.step is None:
        return found
    return replace(found, time_here=_time(found.step, tokens, getattr(torch, found.dtype), decisions))


def _planned(source: ModelConfig | Model, context: int | None, contexts: Sequence[int], batch: int,
             dtype: torch.dtype | None, tokens: int | None,
             kernels: Mapping[str, str]) -> tuple[Plan, list[Decision]]:
    """The plan without times, and how the operations of a training step are computed."""
    shallow = shallow_models(source)
    if shallow is None:
        return _whole(source, context, contexts, batch, dtype, tokens, kernels)
    try:
        found = [_whole(each.config, context, contexts, batch, dtype, tokens, kernels) for each in shallow]
    except ConfigError:  # a block that takes what another gives stands alone here; the whole model may be lawful
        return _whole(source, context, contexts, batch, dtype, tokens, kernels)
    plans = [each for each, _ in found]
    if any(each.flops is None or each.flops.fourier or each.lengthwise for each in plans):
        return _whole(source, context, contexts, batch, dtype, tokens, kernels)
    return _added(plans, [each.weight for each in shallow]), [each for _, own in found for each in own]


def _added(plans: Sequence[Plan], weights: Sequence[int]) -> Plan:
    """The plan of a deep model from those of shallow ones, see `weft.analysis.by_blocks`."""
    sums = PlanSums(weights)
    states = [each.states for each in plans if each.states is not None]
    return replace(
        plans[0], parameters=sums.parameters([each.parameters for each in plans]),
        weights=sums.mapping([each.weights for each in plans]), buffers=sums.number(each.buffers for each in plans),
        flops=sums.flops([each.flops for each in plans if each.flops is not None]),
        training=sums.training([each.training for each in plans if each.training is not None]),
        step=sums.step([each.step for each in plans if each.step is not None]),
        states=sums.states(states) if states else None, forms=sums.forms([each.forms for each in plans]),
        notes=tuple(dict.fromkeys(note for each in plans for note in each.notes)))


def _whole(source: ModelConfig | Model, context: int | None, contexts: Sequence[int], batch: int,
           dtype: torch.dtype | None, tokens: int | None,
           kernels: Mapping[str, str]) -> tuple[Plan, list[Decision]]:
    """`_planned` by running the whole model."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = shape_of(source, mode, dtype)
    length = model.config.context if context is None else context
    limit = model.limit()
    _require(length, batch, tokens, contexts, limit)
    own = next((parameter.dtype for parameter in model.parameters()), torch.float32)
    traits = traits_of(model)
    with OPERATIONS.observed() as prompts:
        flops = None if Trait.NOT_DIFFERENTIABLE in traits else forward_flops(model, mode, length)
    with OPERATIONS.observed() as training, forced(kernels):
        step = None if flops is None else training_step(model, mode, batch, length)
    decodes = flops is not None and Trait.BIDIRECTIONAL not in traits
    steps = single_token(model, mode, batch) if decodes and isinstance(model, LanguageModel) else []
    found = Plan(
        model=model.config.kind, dtype=str(own).removeprefix("torch."), batch=batch, context=length,
        parameters=count_parameters(model), weights=weight_bytes(model), buffers=buffer_bytes(model), flops=flops,
        training=None if flops is None else training_bytes(model, own),
        step=step, time_here=None,
        states=state_sizes(model, mode, batch, [each for each in contexts if limit is None or each <= limit]),
        forms=choices({"training": training, "prompts": prompts, "single tokens": steps}),
        notes=all_notes(model, flops),
        adapters=None if flops is None else coverage(model, length),
        lengthwise=Trait.DECLARED_LENGTH in traits)
    return found, list(training)


def _time(step: TrainingStep, tokens: int, dtype: torch.dtype, decisions: Iterable[Decision]) -> TimeHere:
    flops, rate = step.flops / (step.batch * step.context) * tokens, matmul_rate(dtype)
    return TimeHere(tokens, flops, rate, flops / rate, as_kept(timed(products_in(decisions, str(dtype)))))


def _require(context: int, batch: int, tokens: int | None, contexts: Sequence[int], limit: int | None) -> None:
    for name, value in [("context", context), ("batch", batch), ("tokens", tokens),
                        *(("contexts", each) for each in contexts)]:
        if value is not None and value < 1:
            raise InputError(f"{value} is not a positive number.", where=name, remedy="Give 1 or more.")
    if context > MOST_TOKENS:
        raise InputError(f"{context:,} tokens, and at most {MOST_TOKENS:,} are planned.", where="context",
                         remedy="Give fewer; costs of longer rows follow from those of two shorter ones.")
    if limit is not None and context > limit:
        raise InputError(f"{context} tokens, but this model's positions end at {limit}.", where="context",
                         remedy=f"Give at most {limit}, or use a position scheme without a table.")


DEFINITION = ("A multiplication and an addition are two operations. Matrix products, convolutions, Fourier transforms "
              "and recurrent scans are counted; element-wise work (activations, norms, softmax, rotations, the "
              "experts' routing) is not.")


def all_notes(model: Model, flops: Flops | None) -> tuple[str, ...]:
    """All notes on a model, in whole sentences."""
    notes = list(_trait_notes(model, flops))
    if flops is not None:
        parts = (part for part in model.modules() if isinstance(part, Part))
        remarks = dict.fromkeys(each for part in parts for each in part.declares().remarks)
        notes = [DEFINITION, *notes, *remarks, *_packing_notes(flops)]
        if flops.uncounted:
            notes.append(f"Operators without a formula are not counted: {', '.join(flops.uncounted)}.")
    return tuple(notes)


def _trait_notes(model: Model, flops: Flops | None) -> Iterator[str]:
    traits = traits_of(model)
    if Trait.DECLARED_LENGTH in traits:
        yield _regime_note(model, flops)
    for trait in sorted(traits - {Trait.DECLARED_LENGTH}, key=lambda trait: trait.name):
        yield f"{trait.name.lower().replace('_', ' ').capitalize()}: {trait.value}."


def _regime_note(model: Model, flops: Flops | None) -> str:
    """A note on the lengths at which generation must run the whole text again, and on the cost."""
    context = model.config.context if flops is None else flops.context
    places = (regimes(model, context)[1:].diff().nonzero()[:, 0] + 2).tolist()
    what = "The model's rotation depends on the length of the document"
    if not places:
        return f"{what}; it is the same for all lengths up to {context} tokens."
    first, last = places[0], places[-1]
    if len(places) == 1:
        when = f"At {first} tokens"
    elif len(places) == last - first + 1:
        when = f"At every length from {first} to {last} tokens"
    else:
        when = f"At {len(places)} of the lengths from {first} to {last} tokens"
    cost = "" if flops is None else (f", which takes about {flops.visible:.3g} operations per token at a length of "
                                     f"{context}")
    return f"{what}. {when} the rotation changes, so generation runs the whole text again{cost}."


def _packing_notes(flops: Flops) -> Iterator[str]:
    whole = {part.part: part.full for part in flops.parts}
    for part in flops.fourier:
        yield (f"Packed documents: {part} cannot reset inside a row, so each call reads on the host where documents "
               "begin and runs them as separate rows, in groups of similar length. For documents longer than 16 tokens "
               f"padding at most doubles its work: at most {2 * whole[part]:.3g} operations per token instead of "
               f"{whole[part]:.3g}.")
