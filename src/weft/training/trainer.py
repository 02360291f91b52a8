"""One step of gradient descent, and everything that the next one depends on."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from weft.core.errors import ConfigError, TrainingError
from weft.core.model import LanguageModel, ModelState
from weft.core.state import restore, state_arrays
from weft.data import Batches, SequentialBatches, ShuffledBatches, TokenStream
from weft.training.config import DTYPES, RunConfig
from weft.training.gradient import Sums, add_gradients
from weft.training.optimizer_state import optimizer_tensors, restore_optimizer
from weft.training.precision import Precision

CARRIED = "carried."


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

    Raises:
        ConfigError: a context beyond the model's limit, or a carried state that would grow without end.
        DataError: a text shorter than one batch needs.
    """

    def __init__(self, config: RunConfig, model: LanguageModel, stream: TokenStream, *, steps: int,
                 device: torch.device | str) -> None:
        settings = config.training
        _require_possible(config, model)
        self.config, self.steps, self.device = config, steps, device
        self.precision = Precision(model.to(device), DTYPES[settings.dtype])
        self.model = self.precision.model
        self.optimizer = settings.optimizer.create(self.model)
        kind = SequentialBatches if settings.carry_state else ShuffledBatches
        self.batches: Batches = kind(stream, rows=settings.batch_size, length=config.context,
                                     seed=config.data.order_seed)
        self.step, self.seconds = 0, 0.0
        self._state: ModelState | None = None

    def advance(self) -> StepReport:
        """The next step.

        Raises:
            TrainingError: the loss or the gradient is not finite; the weights are then those before the step.
        """
        begun = time.perf_counter()
        seed_step(self.config.seed, self.step)
        settings = self.config.training
        first = self.step * settings.accumulation
        batches = [self.batches.batch(first + i) for i in range(settings.accumulation)]
        self.precision.working.train()
        self.optimizer.zero_grad(set_to_none=True)
        sums, self._state = add_gradients(self.precision.working, batches, self._state, carry=settings.carry_state,
                                          device=self.device)
        self.precision.collect_gradients()
        limit = math.inf if settings.clip is None else settings.clip
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        self._require_finite(sums, norm)
        lr = settings.optimizer.lr * settings.schedule.factor(self.step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.precision.refresh()
        self.step += 1
        self.seconds += time.perf_counter() - begun
        return StepReport(sums, lr, norm)

    def tensors(self) -> dict[str, Tensor]:
        """What the next step depends on besides the weights, the configuration and the step."""
        carried = {} if self._state is None else state_arrays(self._state)
        return {**optimizer_tensors(self.optimizer, self.model),
                **{f"{CARRIED}{name}": tensor for name, tensor in carried.items()}}

    def resume(self, tensors: Mapping[str, Tensor], *, step: int, seconds: float, where: str) -> None:
        """Go on from ``step`` with what `tensors` gave there; the weights are in the model already."""
        restore_optimizer(self.optimizer, self.model, tensors, where=where)
        carried = {name.removeprefix(CARRIED): tensor.to(self.device) for name, tensor in tensors.items()
                   if name.startswith(CARRIED)}
        working = self.precision.working
        self._state = (restore(working.init_state(self.batches.rows, device=self.device), carried) if carried
                       else None)
        self.step, self.seconds = step, seconds

    def _require_finite(self, sums: Sums, norm: float) -> None:
        if not (math.isfinite(sums.loss) and math.isfinite(norm)):
            raise TrainingError(f"the loss became {sums.loss:g} with a gradient of norm {norm:g}.",
                                where=f"step {self.step}", remedy="Lower training.optimizer.lr, lengthen "
                                "training.schedule.warmup, or set training.clip.")


def seed_step(seed: int, step: int) -> None:
    """Seed torch for one step, so that dropout does not depend on where a run was interrupted."""
    torch.manual_seed(int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint32)[0]))


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
    if problems:
        raise ConfigError(problems)
