"""Everything that must hold before a run begins: each rule is asked once, of a model without weights, and all problems
are told together, before anything is created."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from weft.analysis.memory import room_problems
from weft.core.declarations import QueryKeyPairs
from weft.core.errors import ConfigError
from weft.core.layer import Part, traits_of, with_boundaries
from weft.core.model import Model
from weft.core.traits import Trait
from weft.tasks.protocols import ComparesWithStart
from weft.training.config import RunConfig
from weft.training.cutting import cutting_problems
from weft.training.local_model import holding_problems
from weft.training.named_forms import require_served
from weft.training.parallel import World
from weft.training.sinks import require_sinks


def require_trainable(config: RunConfig, model: Model, world: World | None = None) -> None:
    """Check that a run can begin: that the model can be trained on the task with the run's settings, by these
    processes, in this machine's memory, with the packages that its reports need. No data are read.

    Args:
        config: of the run.
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
    if whole:
        require_served(config, model, "cpu" if world is None else world.device)


def _settings_problems(config: RunConfig, model: Model) -> Iterator[str]:
    """The settings of a run that do not go together, or not with its model."""
    task, compute = config.made_task(), config.training.compute
    if isinstance(task, ComparesWithStart) and config.start is None:
        yield (f"start: nothing, while the task {task.name!r} compares the model with the one that it starts from. "
               "Name the folder of that model.")
    if config.training.unfreeze is not None:
        yield from config.training.unfreeze.problems(model)
        if compute.compile:
            yield ("training.compute.compile: true, with training.unfreeze: the model would be compiled again for "
                   "every block that begins to train. Leave out one of them.")
    if compute.compile and task.declared.batch_tokens is not None:
        yield ("training.compute.compile: true, while the batches of this task have many shapes, each of which would "
               "be compiled. Leave it out, or leave out task.batch_tokens.")
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
