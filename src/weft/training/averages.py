"""Moving averages of the weights, which a run evaluates and saves in their place.

An optimiser's state as named tensors, so that it can be saved without pickling.

The run that the name of a published model stands for: its architecture, and defaults for training it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.errors import CheckpointError, TrainingError
from weft.core.model import ModelConfig
from weft.core.part_config import Settings
from weft.families.family import families
from weft.parallel.layout import as_sharded
from weft.preset_files.published_models import Size

PREFIX = "weights."


class AverageSettings(Settings):
    """An exponential moving average of every trained weight, updated after each step k (from 0):

        a <- d a + (1-d) w,  d = min(decay, (1 + k) / (10 + k))

    Training goes on with the weights w. Evaluations measure the averages a, and checkpoints hold a as the model, so
    that everything that reads one, such as `weft eval`, `weft convert` and ``start:``, uses the averages; w is among
    the tensors for resuming. Buffers, such as running statistics, are not averaged. The smaller d of the first steps
    (as in TensorFlow's ExponentialMovingAverage) lets the random initial weights fade out soon. Polyak and Juditsky
    1992 is the plain mean.

    Attributes:
        decay: d in the long run; 1 / (1 - decay) steps are averaged.
    """

    decay: float = Field(default=0.999, ge=0, lt=1)

    def share(self, step: int) -> float:
        """1 - d: the share of the new weights after ``step``."""
        return 1 - min(self.decay, (1 + step) / (10 + step))


class Average:
    """The averages of a model's trained weights.

    Args:
        settings: how they are averaged; None: not at all, and every method does nothing.
    """

    def __init__(self, model: nn.Module, settings: AverageSettings | None) -> None:
        self._settings = settings
        self._weights = {} if settings is None else {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._averages = {name: parameter.detach().clone() for name, parameter in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after ``step``."""
        for name, weight in self._weights.items():
            assert self._settings is not None, "there are weights to average"
            self._averages[name].lerp_(weight, self._settings.share(step))

    def exchange(self) -> bool:
        """Put the averages in the place of the weights, or the weights back; return whether there are any. Nothing is
        copied, so that tensors that were read from the model before keep their values; of sharded weights the values
        are."""
        for name, weight in self._weights.items():
            average = self._averages[name]
            if as_sharded(weight) is not None:  # FSDP2 holds the memory of its parameters, which must stay in place
                values = weight.detach().clone()
                weight.detach().copy_(average)
                average.copy_(values)
            else:
                self._averages[name], weight.data = weight.data, average
        return bool(self._weights)

    def saved(self, name: str, weight: Tensor) -> Tensor:
        """The value of the parameter of that name in checkpoints: its average, if there is one."""
        return self._averages.get(name, weight)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by name, for resuming from a model that holds the averages."""
        return {f"{PREFIX}{name}": weight.detach() for name, weight in self._weights.items()}

    @torch.no_grad()
    def resume(self, tensors: Mapping[str, Tensor], *, where: str) -> None:
        """Take the averages from the model, and give it the weights that `tensors` returned. Raises `CheckpointError`:
        they lack a weight."""
        for name, weight in self._weights.items():
            if f"{PREFIX}{name}" not in tensors:
                raise CheckpointError(f"there are no weights of {name!r} beside its average.", where=where,
                                      remedy="Resume with the configuration of the run.")
            self._averages[name] = weight.detach().clone()
            weight.copy_(tensors[f"{PREFIX}{name}"])


STATE_PREFIX = "optimizer."


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The state as tensors named ``optimizer.<parameter>/<entry>``, with the model's names of parameters. Raises
    `TrainingError`: an entry that is neither a tensor nor None."""
    found: dict[str, Tensor] = {}
    for name, parameter in _named(optimizer, model):
        for entry, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[f"{STATE_PREFIX}{name}/{entry}"] = value
            elif value is not None:
                raise TrainingError(f"the optimiser keeps a {type(value).__name__} in {entry!r} of {name}, which "
                                    "cannot be saved.", remedy="Keep it in a tensor.")
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], *,
                      where: str) -> None:
    """Load the tensors that `optimizer_tensors` returned. Raises `CheckpointError`: state of a parameter that this
    optimiser does not have."""
    index = {name: place for place, (name, _) in enumerate(_named(optimizer, model))}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith(STATE_PREFIX):
            name, _, entry = key.removeprefix(STATE_PREFIX).rpartition("/")
            if name not in index:
                raise CheckpointError(f"optimiser state of {name!r}, which this run does not train.", where=where,
                                      remedy="Resume with the configuration of the run.")
            state.setdefault(index[name], {})[entry] = tensor
    groups: list[dict[str, Any]] = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def parameter_of(name: str) -> str:
    """The name of the parameter that a tensor of `Trainer.tensors` belongs to."""
    if name.startswith(STATE_PREFIX):
        return name.removeprefix(STATE_PREFIX).rpartition("/")[0]
    return name.removeprefix(PREFIX)


def _named(optimizer: torch.optim.Optimizer, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The optimiser's parameters in its own order, by the model's names."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        yield from ((names[id(parameter)], parameter) for parameter in group["params"])


VOCABULARY = 4096
"""Most ids of the tokenizer that such a run trains: a text of some megabytes has few longer pieces that repeat."""
CONTEXT = 1024
"""Most tokens of a row of training, so that a batch needs little memory."""
BATCH_TOKENS = 4096
SECONDS = 60
TASKS: dict[str, Any] = {"encoder_decoder": {"kind": "sequence_to_sequence", "cut": True},
                         "image_encoder": "classify_images"}
"""Tasks of models that do not predict the next token, by the kind of model."""


def published_run(size: Size) -> dict[str, Any]:
    """A run's configuration as plain data.

    The model has the published shapes and random weights. Its tokenizer is trained with the run, on the run's text, and
    has at most `VOCABULARY` ids, so that rows of the embeddings beyond them are not trained. Published weights, with
    their tokenizer, are loaded by their name on the Hub.
    """
    config = families()[size.family].config(size)
    context = min(config.context, CONTEXT)
    return {"model": config.dump(), **_reads(config),
            "training": {"seconds": SECONDS, "context": context, "batch_size": max(1, BATCH_TOKENS // context),
                         "optimizer": {"kind": "adamw", "lr": 0.0003}}}


def _reads(config: ModelConfig) -> dict[str, Any]:
    """The task and the tokenizer."""
    if config.kind == "encoder":
        return {"task": "masked", "tokenizer": _tokenizer("wordpiece", config)}
    task = {"task": TASKS[config.kind]} if config.kind in TASKS else {}
    return {**task, "tokenizer": _tokenizer("bpe", config)} if config.reads_tokens else task


def _tokenizer(kind: str, config: ModelConfig) -> dict[str, Any]:
    return {"kind": kind, "vocab_size": min(config.vocab_size, VOCABULARY)}
