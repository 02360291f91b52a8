"""One step of gradient descent, and all state that the next step depends on.

Adapters in training: one that no gradient reaches is an error.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from weft.checkpoints.sharded import MODEL, TRAINING, Boxes, StoredTensors
from weft.checkpoints.tensors import own_tensors
from weft.core.declarations import Kept, StepHooks
from weft.core.errors import DivergedError, TrainingError
from weft.core.layer import Part, with_boundaries
from weft.core.model import Model, ModelState
from weft.core.state import restore, state_arrays
from weft.data.mixed_batches import mixture_of
from weft.linear.low_rank import Adapted, adapted_maps
from weft.ops.forms import forced
from weft.parallel.layout import Layout, boxes
from weft.tasks import Examples, Rows
from weft.tasks.base import batches_of
from weft.training.among_ranks import context_of
from weft.training.averages import Average, optimizer_tensors, parameter_of, restore_optimizer
from weft.training.compute import Compute
from weft.training.config import RunConfig
from weft.training.exchange import gather_rows
from weft.training.gradient import Around, BatchTotals, CompiledBlocks, add_gradients, compiled, compiling, forward_of
from weft.training.kept_memory import keep_freed_memory
from weft.training.local_model import hold
from weft.training.optimizers import set_lr
from weft.training.parallel import World
from weft.training.step_products import products_of
from weft.training.unfreezing import Unfreezing

STEPS = 2
"""Steps in which an adapter must have had a gradient: behind a matrix that starts at zero there is none in the first.
"""


class AdapterCheck:
    """Which adapters of a model have not had a gradient yet. Experts are counted together, since none may have been
    routed to some of them."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        experts = [path for path, part in model.named_modules()
                   if isinstance(part, Part) and part.declares().idle_parameters]
        self._idle: dict[str, list[Adapted]] = {}
        self._last = min(STEPS, steps) - 1
        for path, module in adapted_maps(model).items():
            self._idle.setdefault(_together(path, experts), []).append(module)

    def after(self, step: int) -> None:
        """Look at the gradients of a step, from 0. Raises `TrainingError`: in the first steps of a run some adapters
        have had no gradient, or only zeros."""
        if step > self._last or not self._idle:
            return
        self._idle = {path: group for path, group in self._idle.items() if not any(map(_reached, group))}
        if step == self._last and self._idle:
            raise TrainingError(_message(self._idle, step + 1), where="model.rewrites",
                                remedy="Leave them out of the rewrite's maps: what they compute does not reach the "
                                       "loss, or with weights of zero.")


def _message(idle: Mapping[str, list[Adapted]], steps: int) -> str:
    names = list(idle)
    listed = f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
    return f"after {steps} step{'s' if steps > 1 else ''} these adapters have no gradient: {listed}."


def _reached(module: Adapted) -> bool:
    return any(p.grad is not None and bool((p.grad != 0).any()) for p in module.trained())


def _together(path: str, experts: list[str]) -> str:
    """The path; inside experts with ``*`` for numbers."""
    holder = next((each for each in experts if path.startswith(f"{each}.")), None)
    return path if holder is None else holder + re.sub(r"(?<=\.)\d+(?=\.)", "*", path.removeprefix(holder))


CARRIED = "carried."
FIRST_LOSS = "first_loss"
READ = "sources.tokens_read"
DIVERGED = 100.0
"""Times the loss of a uniform guess, ln V, or that of the first step where it is larger, above which a run has
diverged. Measured on five kinds of model with a vocabulary of 512 at rates from 0.03 to 10,000: runs that rose to as
much as 90 times (rates of 3, some 300 times the best) came back to about a uniform guess, a few below it; of those that
rose above 100 (rates from 30 on) none came back under 13 times."""


class StepReport(NamedTuple):
    """The sums, learning rate and gradient norm (before clipping) of a step."""

    sums: BatchTotals
    lr: float
    grad_norm: float


class Trainer:
    """A model in training. The weights after any step are a pure function of the initial weights, the configuration and
    the text: batch, learning rate and random numbers of a step depend on the seeds and the step alone.

    Args:
        model: with the initial weights, and what does not train frozen; `weft.training.requirements.require_trainable`
            has let it through.
        examples: that the run's task trains on, such as a stream of tokens.
        device: where to compute.
        compute: how; None: what the configuration resolves to on this machine.
        world: the ranks that train it together, each on its rows of every batch; None: this process alone.

    Raises:
        DataError: too few examples for one batch.
    """

    def __init__(self, config: RunConfig, model: Model, examples: Examples, *, steps: int,
                 device: torch.device | str, compute: Compute | None = None, world: World | None = None) -> None:
        settings, dtype = config.training, config.training.dtype_on(device)
        self.world = World(torch.device(device)) if world is None else world
        mesh, self.task = self.world.arrange(settings.mesh), config.made_task()
        self.compute = Compute.choose(settings.compute, dtype=dtype, device=device,
                                      products=partial(products_of, config), alike=config.steps_alike()
                                      ) if compute is None else compute
        self.config, self.steps, self.device = config, steps, torch.device(device)
        self.held = hold(model.to(device), self.world, dtype, one_group=self.compute.compile is True)
        self.precision = self.held.precision
        self.model = self.precision.model
        self.optimizer = settings.optimizer.create(self.model)
        self._unfreezing = Unfreezing(self.precision.working, settings.unfreeze, steps)
        self._adapters = AdapterCheck(self.model, steps if settings.unfreeze is None else 0)
        self._average = Average(self.model, settings.average)
        self.batches = batches_of(self.task, examples)
        self.mixed = mixture_of(self.batches)
        self.read = np.zeros(0 if self.mixed is None else len(self.mixed.sources), dtype=np.int64)
        for part in with_boundaries(self.precision.working):
            kept: Kept = "everything" if self.compute.compile else "costly"  # a compiler chooses itself
            part.kept_activations = "inputs" if settings.compute.checkpoint_activations else kept
        self._context = context_of(mesh)
        self._prepared = with_step_hooks(self.precision.working)
        self._finished = with_step_hooks(self.model)
        forward = forward_of(self.task, self.precision.working)
        self._forward = self.held.entering(compiled(forward) if self.compute.compile is True else forward)
        self._around: Around = compiling if self.compute.compile else nullcontext
        if self.compute.compile == "blocks":
            self._around = CompiledBlocks(self.precision.working)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.step, self.seconds = 0, 0.0
        self._norm, self._ahead = 0.0, dict[int, list[Rows[Any]]]()
        self._state: ModelState | None = None
        self._first_loss: float | None = None

    def advance(self) -> StepReport:
        """The next step.

        Raises:
            DivergedError: the loss or the gradient is not finite, or the loss is far above that of a uniform guess; the
                weights are not updated then.
            TrainingError: an adapter has no gradient in the first steps.
        """
        with self.compute.apply(), forced(self.config.kernels), self.world.computing():
            return self._advance()

    def _advance(self) -> StepReport:
        begun = time.perf_counter()
        settings, world = self.config.training, self.world
        mesh = world.mesh
        # Processes with the same tokens draw the same numbers; those with other pieces of the same rows do not.
        seed_step(self.config.seed, self.step, mesh.data_rank * mesh.size("context") + mesh.place("context"),
                  device=self.device)
        batches = self._ahead.pop(self.step, None) or self._batches(self.step)
        for place, part in self._prepared:
            part.begin_step(self.step, derived_seed(self.config.seed, place, self.step))
        self.precision.working.train()
        self.optimizer.zero_grad(set_to_none=True)
        with self._unfreezing.at(self.step):
            sums, self._state = add_gradients(self.task, self.precision.working, batches, self._state,
                                              device=self.device, forward=self._forward, world=world,
                                              collect=self.precision.collect_gradients, sources=len(self.read),
                                              context=self._context, around=self._around, begun=self._clip)
        norm = self._norm
        self._adapters.after(self.step)
        self._require_converging(sums, norm)
        lr = settings.optimizer.lr * settings.schedule.factor(self.step, self.steps)
        set_lr(self.optimizer, lr)
        self.optimizer.step()
        self._average.update(self.step)
        moved = [part.after_step(world.total) for _, part in self._finished]
        self.precision.refresh(buffers=any(moved))
        if sums.sources is not None:
            self.read = self.read + sums.sources.tokens
        self.step += 1
        self.seconds += time.perf_counter() - begun
        return StepReport(sums, lr, norm)

    def _batches(self, step: int) -> list[Rows[Any]]:
        mesh, count = self.world.mesh, self.config.training.accumulation
        return [self.batches.batch(step * count + i, rank=mesh.data_rank, world=mesh.data_size) for i in range(count)]

    def _clip(self) -> None:
        """Finish the gradients of a step whose last backward pass has begun. A GPU works on it meanwhile: the next
        batches are read before the host waits for the norm."""
        if self.device.type == "cuda" and self.step + 1 < self.steps:
            self._ahead[self.step + 1] = self._batches(self.step + 1)
        self._norm = self.held.finish_gradients(self.world, self.config.training.clip_norm)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """A context in which the model has the averages of its weights, if the run averages them: what is evaluated and
        saved."""
        self.exchange()
        try:
            yield
        finally:
            self.exchange()

    def exchange(self) -> None:
        """Put the averages in the place of the weights, or the weights back, if the run averages them."""
        if self._average.exchange():
            self.precision.refresh()

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step depends on besides the weights, the configuration and the step: optimiser state,
        carried rows, first loss. All ranks must call it, because it gathers the carried rows of all."""
        carried = {} if self._state is None else gather_rows(self.world, state_arrays(self._state))
        first = {} if self._first_loss is None else {FIRST_LOSS: torch.tensor(self._first_loss, dtype=torch.float64)}
        read = {READ: torch.from_numpy(self.read)} if len(self.read) else {}
        return {**optimizer_tensors(self.optimizer, self.model), **self._average.tensors(), **first, **read,
                **{f"{CARRIED}{name}": tensor for name, tensor in carried.items()}}

    def boxes(self) -> dict[str, Boxes]:
        """This process's part of everything that a checkpoint has, by the names that `StoredTensors` gives it. All
        ranks must call it, as `tensors`."""
        found = {f"{MODEL}{name}": self._placed(name, self._average.saved(name, self.held.stored(tensor)))
                 for name, tensor in own_tensors(self.model).items()}
        return {**found, **{f"{TRAINING}{name}": self._placed(parameter_of(name), tensor)
                            for name, tensor in self.tensors().items()}}

    def restore_boxes(self, stored: StoredTensors, *, step: int, seconds: float, where: str) -> None:
        """Continue from ``step`` with a checkpoint, of which this process reads what it holds. Raises
        `CheckpointError`: it does not fit the run."""
        parameters = dict(self.model.named_parameters())
        stored.fill({f"{MODEL}{name}": self._placed(name, self.held.stored(tensor))
                     for name, tensor in own_tensors(self.model).items()})
        tensors = {}
        for name in (each.removeprefix(TRAINING) for each in stored.names() if each.startswith(TRAINING)):
            dtype, shape = stored.kind(f"{TRAINING}{name}")
            own = parameters.get(parameter_of(name))
            alike = own is not None and self.held.layout(parameter_of(name), own).shape == shape
            tensors[name] = (torch.empty_like(own, dtype=dtype, requires_grad=False) if own is not None and alike
                             else torch.empty(shape, dtype=dtype))
        stored.fill({f"{TRAINING}{name}": self._placed(parameter_of(name), tensor) for name, tensor in tensors.items()})
        self.precision.refresh(buffers=True)
        self.resume(tensors, step=step, seconds=seconds, where=where)

    def _placed(self, name: str, tensor: Tensor) -> Boxes:
        """The boxes of a tensor that belongs to a parameter: those of the parameter if it has its shape."""
        own = dict(self.model.named_parameters()).get(name)
        alike = own is not None and own.shape == tensor.shape
        return boxes(tensor, self.held.layout(name, tensor) if alike else Layout.whole(tensor.shape))

    def resume(self, tensors: Mapping[str, Tensor], *, step: int, seconds: float, where: str) -> None:
        """Continue from ``step`` with what `tensors` returned there, in a world of any size; what was saved as the
        model is in it already."""
        restore_optimizer(self.optimizer, self.model, tensors, where=where)
        self._average.resume(tensors, where=where)
        self.precision.refresh()
        self._first_loss = float(tensors[FIRST_LOSS]) if FIRST_LOSS in tensors else None
        if READ in tensors:
            self.read = tensors[READ].cpu().numpy()
        mine = self.world.rows(int(self.batches.rows))
        carried = {name.removeprefix(CARRIED): tensor[mine].to(self.device) for name, tensor in tensors.items()
                   if name.startswith(CARRIED)}
        empty = self.task.settings.first_state(self.precision.working, mine.stop - mine.start, self.device)
        self._state = restore(empty, carried) if carried and empty is not None else None
        self.step, self.seconds = step, seconds
        self._ahead.clear()

    def _require_converging(self, sums: BatchTotals, norm: float) -> None:
        if not (math.isfinite(sums.loss) and math.isfinite(norm)):
            raise DivergedError(f"the loss became {sums.loss:g} with a gradient of norm {norm:g}.", step=self.step)
        loss, uniform = sums.nats / max(1, sums.tokens), self.task.guess(self.model)
        if self._first_loss is None:
            self._first_loss = loss
        if loss > DIVERGED * max(uniform, self._first_loss):
            declared = self.task.declared
            raise DivergedError(f"the loss became {loss:.4g} {declared.measured_in} per {declared.unit}, where a "
                                f"uniform guess has {uniform:.2f}.", step=self.step)


def seed_step(seed: int, step: int, rank: int = 0, *, device: torch.device) -> None:
    """Seed torch for one step of one rank, so that dropout does not depend on where a run was interrupted, and is not
    the same on every rank. Only the CPU and ``device`` are seeded: `torch.manual_seed` goes through every kind of
    device, which takes as long as a small layer."""
    chosen = derived_seed(seed, step, rank)
    torch.default_generator.manual_seed(chosen)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(chosen)


def derived_seed(*numbers: int) -> int:
    """A seed for each sequence of numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0])


def with_step_hooks(model: Model) -> list[tuple[int, StepHooks]]:
    """The parts of a model that do something before or after a step, each with its place among all modules."""
    return [(place, part) for place, part in enumerate(model.modules()) if isinstance(part, StepHooks)]
