"""Everything that must hold before a run begins: each rule is asked once, of a model without weights, and all problems
are told together, before anything is created.

Forms of operations that a run names (``kernels``), tried on a step without data before its folder is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.analysis.calls import blank_tokens, loss_of, run_whole
from weft.analysis.memory import room_problems
from weft.analysis.shapes import ValuesRead, shape_of
from weft.core.declarations import QueryKeyPairs, Trait
from weft.core.errors import ConfigError, UserError
from weft.core.layer import Part, traits_of, with_boundaries
from weft.core.model import LanguageModel, Model
from weft.core.span import WHOLE, Span
from weft.gpu.memory import TrainingWork
from weft.gpu.memory import room_problems as room_on_card
from weft.ops.forms import forced
from weft.tasks.protocols import ComparesWithStart
from weft.training.among_ranks import cutting_problems
from weft.training.compute import COMPILED
from weft.training.config import RunConfig
from weft.training.local_model import holding_problems
from weft.training.parallel import World
from weft.training.precision import narrowed
from weft.training.sinks import require_sinks


def require_trainable(config: RunConfig, model: Model, world: World | None = None) -> None:
    """Check that a run can begin: that the model can be trained on the task with the run's settings, by these
    processes, in this machine's memory, with the packages that its reports need. No data are read.

    Args:
        model: of the configuration, with or without weights, and what does not train frozen; it is not changed.
        world: the processes that train together; None: one alone, on the CPU.

    Raises:
        ConfigError: it cannot; every problem is listed.
        MissingExtra: a package is not installed.
        UnsupportedError: a form that ``config.kernels`` names cannot serve the model.
    """
    require_sinks(config.report)
    mesh = None if world is None else world.arrange(config.training.mesh)
    problems = [*config.made_task().problems(model), *config.training.optimizer.problems(model),
                *holding_problems(config, model), *cutting_problems(config, config.made_task(), model),
                *_settings_problems(config, model), *mask_problems(config, model)]
    if world is not None and mesh is not None:
        problems += rank_problems(config, model, world.size, mesh.data_size)
    whole = mesh is None or not mesh.splits
    if problems := [*problems, *(room_problems(model) if whole else ())]:
        raise ConfigError(problems)
    if (whole and world is not None and world.device.type == "cuda" and isinstance(model, LanguageModel)
            and Trait.NOT_DIFFERENTIABLE not in traits_of(model)
            and (problems := room_on_card(_work(config, model, world), world.device))):
        raise ConfigError(problems)
    if whole:
        require_served(config, model, "cpu" if world is None else world.device)


def _work(config: RunConfig, model: Model, world: World) -> TrainingWork:
    """The training of one process, as its memory is reckoned."""
    dtype = config.training.dtype_on(world.device)
    narrow = partial(narrowed, dtype=dtype) if dtype == torch.bfloat16 else None
    rows = max(1, config.training.batch_size // world.arrange(config.training.mesh).data_size)
    return TrainingWork(model, narrow, rows, config.context, config.kernels,
                        config.training.compute.checkpoint_activations,
                        moments=2 if config.training.optimizer.kind == "adamw" else 0)


def _settings_problems(config: RunConfig, model: Model) -> Iterator[str]:
    """The settings of a run that do not go together, or not with its model."""
    task, compute = config.made_task(), config.training.compute
    compiled = f"training.compute.compile: {str(compute.compile).lower()}"
    if isinstance(task, ComparesWithStart) and config.start is None:
        yield (f"start: nothing, while the task {task.name!r} compares the model with the one that it starts from. "
               "Name the folder of that model.")
    if config.training.unfreeze is not None:
        yield from config.training.unfreeze.problems(model)
        if compute.compile in COMPILED:
            yield (f"{compiled}, with training.unfreeze: the model would be compiled again for every block that begins "
                   "to train. Leave out one of them.")
    if compute.compile in COMPILED and task.declared.batch_tokens is not None:
        yield (f"{compiled}, while the batches of this task have many shapes, each of which would be compiled. Leave "
               "it out, or leave out task.batch_tokens.")
    if compute.checkpoint_activations:
        where = "training.compute.checkpoint_activations"
        if not with_boundaries(model):
            yield f"{where}: this model has no blocks whose activations could be computed again. Leave it out."
        if Trait.BATCH_STATISTICS in traits_of(model):
            yield (f"{where}: running statistics of batch normalisation would count every batch twice. Leave it out, "
                   "or use another norm.")


def rank_problems(config: RunConfig, model: Model, ranks: int, sharing: int) -> Iterator[str]:
    """The reasons why so many ranks cannot train a model together: a batch that does not divide among those that share
    its rows (batches under a budget of tokens give each about as many), and a step that needs the whole batch."""
    rows, traits = config.training.batch_size, traits_of(model) if ranks > 1 else frozenset()
    if rows % sharing and config.task.declares().batch_tokens is None:
        nearest = max(1, round(rows / sharing)) * sharing
        yield (f"training.batch_size: {rows} rows do not divide among {sharing} ranks. Choose a multiple of {sharing}, "
               f"such as {nearest}, or another --nproc-per-node.")
    if Trait.NOT_DIFFERENTIABLE in traits:
        yield (f"model: a model of kind {model.config.kind!r} is fitted by counting, which one process does, and "
               f"{ranks} were started. Start it without torchrun.")
    if Trait.BATCH_STATISTICS in traits:
        yield (f"model: batch normalisation needs the statistics of the whole batch, and each of {ranks} ranks has "
               "only a part of it. Use another norm, or start it without torchrun.")


def mask_problems(config: RunConfig, model: Model) -> list[str]:
    """The masks that the context leaves without an effect: windows that are wider, which would hide nothing, and global
    tokens behind its end, which no row would have.

    Rows are at most as long as the longest that the model is made for, but where a state is carried along a text, and
    a model that another run or folder has brought may be otherwise.
    """
    if config.training.carry_state or config.start is not None:
        return []
    context = max(config.context, config.model.context)
    problems = [f"{_named(paths)}: {window} reaches {width:,} tokens from the query, and the model's context is "
                f"{context:,}: it would hide nothing. Make it narrower, leave it out, or make the context longer."
                for (window, width), paths in _said(model, lambda pairs: pairs.widths()).items() if width > context]
    return problems + [
        f"{_named(paths)}: {rule} names the token {place:,}, which lies outside the model's context of {context:,} "
        f"tokens. Give indices from 0 to {context - 1:,}, or make the context longer."
        for (rule, place), paths in _said(model, lambda pairs: pairs.places()).items() if place >= context]


def _named(paths: list[str]) -> str:
    """The first layer, and how many others."""
    return f"{paths[0]}{f' and {len(paths) - 1} other layers' if paths[1:] else ''}"


def _said(model: Model, read: Callable[[QueryKeyPairs], Mapping[str, int]]) -> Mapping[tuple[str, int], list[str]]:
    """The rules of a model's masks, each rule with its number, and the paths of the layers that have it."""
    found: dict[tuple[str, int], list[str]] = {}
    for path, module in model.named_modules():
        pairs = module.declares().attended if isinstance(module, Part) else None
        for rule in () if pairs is None else read(pairs).items():
            found.setdefault(rule, []).append(path)
    return found


def require_served(config: RunConfig, model: Model, device: torch.device | str) -> None:
    """Check that the forms that a run names can serve its model, in training and in evaluation.

    The model is called on fake tensors, with the rows, the tokens and the dtype of the run, which takes about as long
    as a step of a small model and is done only where a form is named. A form that serves some batches and not others,
    because documents begin inside of them, is left to the run. So are devices other than the CPU, which fake tensors
    do not stand for here.

    Args:
        model: of the configuration, with or without weights; it is not changed.
        device: where the run computes.

    Raises:
        UnsupportedError: a form cannot serve; the words are those of the call itself.
    """
    if not config.kernels or torch.device(device).type != "cpu" or Trait.NOT_DIFFERENTIABLE in traits_of(model):
        return
    dtype, mode = config.training.dtype_on(device), FakeTensorMode(allow_non_fake_inputs=True)
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
    """Check that the forms can serve batches of at least one kind. Raises `UnsupportedError`: they can serve none; the
    reason is that of the first kind."""
    refusals = []
    for span in spans:
        try:
            loss_of(model, run_whole(model, rows, tokens, span=span))
            return
        except UserError as error:
            refusals.append(error)
    raise refusals[0]
