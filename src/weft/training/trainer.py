"""One step of gradient descent, and everything that the next one depends on."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from weft.core.errors import ConfigError, DivergedError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel, ModelState
from weft.core.state import restore, state_arrays
from weft.core.traits import Trait
from weft.data import TokenStream
from weft.models.stack import Stack
from weft.ops.forms import forced
from weft.training.batches import batches_of
from weft.training.compiling import compiled
from weft.training.compute import Compute
from weft.training.config import DTYPES, RunConfig
from weft.training.gradient import Sums, add_gradients, forward_of
from weft.training.optimizer_state import optimizer_tensors, restore_optimizer
from weft.training.optimizers import set_lr
from weft.training.parallel import World, require_divisible, require_parallel
from weft.training.precision import Precision

CARRIED = "carried."
FIRST_LOSS = "first_loss"
DIVERGED = 100.0
"""Times the loss of a uniform guess, ln V, or that of the first step where it is larger, above which a run has
diverged. Measured on five kinds of model with a vocabulary of 512 at rates from 0.03 to 10,000: runs that rose to as
much as 90 times (rates of 3, some 300 times the best) came back to about a uniform guess, a few below it; of those that
rose above 100 (rates from 30 on) none came back under 13 times."""


class StepReport(NamedTuple):
    """What a step did. ``grad_norm``: before clipping."""

    sums: Sums
    lr: float
    grad_norm: float


@final
class Trainer:
    """A model in training. Its course is a pure function of the weights it starts from, the configuration and the
    text: batch, learning rate and random numbers of a step depend on the seeds and the step alone.

    Args:
        config: of the run.
        model: the weights it starts from.
        stream: the training text.
        steps: of the whole run.
        device: where to compute.
        compute: how; None: what the configuration comes to here.
        world: the ranks that train it together, each on its rows of every batch; None: this process alone.

    Raises:
        ConfigError: a context beyond the model's limit, a carried state that would grow without end, activations
            that cannot be computed again, or a batch or model that several ranks cannot share.
        DataError: a text shorter than one batch needs.
    """

    def __init__(self, config: RunConfig, model: LanguageModel, stream: TokenStream, *, steps: int,
                 device: torch.device | str, compute: Compute | None = None, world: World | None = None) -> None:
        settings, dtype = config.training, DTYPES[config.training.dtype]
        self.world = World(torch.device(device)) if world is None else world
        require_divisible(config, self.world.size)
        require_parallel(model, self.world.size)
        _require_possible(config, model)
        self.compute = Compute.choose(settings.compute, dtype=dtype, device=device, products=partial(products_of, config)) if compute is None else compute
        self.config, self.steps, self.device = config, steps, torch.device(device)
        self.precision = Precision(model.to(device), dtype)
        self.model = self.precision.model
        self.optimizer = settings.optimizer.create(self.model)
        self.batches = batches_of(config, stream)
        for stack in _stacks(self.precision.working):
            stack.keep = "inputs" if settings.compute.checkpoint_activations else "costly"
        forward = forward_of(self.precision.working, settings.objective)
        self._forward = compiled(forward) if self.compute.compile else forward
        self.step, self.seconds = 0, 0.0
        self._state: ModelState | None = None
        self._first_loss: float | None = None

    def advance(self) -> StepReport:
        """The next step.

        Raises:
            DivergedError: the loss or the gradient is not finite, or the loss is far above that of a uniform guess; the
                weights are then those before the step.
        """
        with self.compute.apply(), forced(self.config.kernels):
            return self._advance()

    def _advance(self) -> StepReport:
        begun = time.perf_counter()
        seed_step(self.config.seed, self.step, self.world.rank, device=self.device)
        settings, world = self.config.training, self.world
        first = self.step * settings.accumulation
        batches = [self.batches.batch(first + i, rank=world.rank, world=world.size)
                   for i in range(settings.accumulation)]
        self.precision.working.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums, self._state = add_gradients(self.precision.working, batches, self._state, carry=settings.carry_state,
                                          device=self.device, forward=self._forward, world=world)
        self.precision.collect_gradients()
        world.add_gradients(self.model)
        limit = math.inf if settings.clip is None else settings.clip
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        self._require_converging(sums, norm)
        lr = settings.optimizer.lr * settings.schedule.factor(self.step, self.steps)
        set_lr(self.optimizer, lr)
        self.optimizer.step()
        self.precision.refresh()
        self.step += 1
        self.seconds += time.perf_counter() - begun
        return StepReport(sums, lr, norm)

    def tensors(self) -> dict[str, Tensor]:
        """What the next step depends on besides the weights, the configuration and the step; for all ranks to call,
        because it holds the carried rows of all."""
        carried = {} if self._state is None else self.world.gather_rows(state_arrays(self._state))
        first = {} if self._first_loss is None else {FIRST_LOSS: torch.tensor(self._first_loss, dtype=torch.float64)}
        return {**optimizer_tensors(self.optimizer, self.model), **first,
                **{f"{CARRIED}{name}": tensor for name, tensor in carried.items()}}

    def resume(self, tensors: Mapping[str, Tensor], *, step: int, seconds: float, where: str) -> None:
        """Go on from ``step`` with what `tensors` gave there, in a world of any size; the weights are in the model
        already."""
        restore_optimizer(self.optimizer, self.model, tensors, where=where)
        self._first_loss = float(tensors[FIRST_LOSS]) if FIRST_LOSS in tensors else None
        mine = self.world.rows(self.batches.rows)
        carried = {name.removeprefix(CARRIED): tensor[mine].to(self.device) for name, tensor in tensors.items()
                   if name.startswith(CARRIED)}
        empty = self.precision.working.init_state(mine.stop - mine.start, device=self.device)
        self._state = restore(empty, carried) if carried else None
        self.step, self.seconds = step, seconds

    def _require_converging(self, sums: Sums, norm: float) -> None:
        if not (math.isfinite(sums.loss) and math.isfinite(norm)):
            raise DivergedError(f"the loss became {sums.loss:g} with a gradient of norm {norm:g}.", step=self.step)
        loss, uniform = sums.nats / max(1, sums.tokens), math.log(max(2, self.config.model.vocab_size))
        if self._first_loss is None:
            self._first_loss = loss
        if loss > DIVERGED * max(uniform, self._first_loss):
            raise DivergedError(f"the loss became {loss:.4g} nats per token, where a uniform guess has {uniform:.2f}.",
                                step=self.step)


def _stacks(model: LanguageModel) -> list[Stack]:
    return [module for module in model.modules() if isinstance(module, Stack)]


def seed_step(seed: int, step: int, rank: int = 0, *, device: torch.device) -> None:
    """Seed torch for one step of one rank, so that dropout does not depend on where a run was interrupted, and does
    not repeat from rank to rank. Only the processor and ``device`` are seeded: asking every kind of device takes as
    long as a small layer."""
    chosen = int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint32)[0])
    torch.default_generator.manual_seed(chosen)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(chosen)


def _require_possible(config: RunConfig, model: LanguageModel) -> None:
    limit, problems = model.limit(), []
    if limit is not None and config.context > limit:
        problems.append(f"training.context: {config.context} tokens, and the model's positions end at {limit}. "
                        f"Choose at most {limit}.")
    if config.training.carry_state:
        state = model.init_state(1)
        growing = [name for name, (_, spec) in state.tensors().items() if spec.grows is not None]
        if growing:
            problems.append(f"training.carry_state: the state of this model grows with every token ({growing[0]}). "
                            "Leave carry_state out, or give its attention a window.")
        elif limit is not None:
            problems.append(f"training.carry_state: the model's positions end at {limit} tokens, and a carried row "
                            "goes on. Leave carry_state out, or use positions without a limit.")
    if config.training.compute.checkpoint_activations:
        where = "training.compute.checkpoint_activations"
        if not _stacks(model):
            problems.append(f"{where}: this model has no blocks whose activations could be computed again. Leave it "
                            "out.")
        if Trait.BATCH_STATISTICS in traits_of(model):
            problems.append(f"{where}: running statistics of batch normalisation would count every batch twice. Leave "
                            "it out, or use another norm.")
    if problems:
        raise ConfigError(problems)
