"""An optimiser's state as named tensors, so that it can be saved without pickling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.errors import CheckpointError, TrainingError
from weft.training.averages import PREFIX as AVERAGED

PREFIX = "optimizer."


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The state as tensors named ``optimizer.<parameter>/<entry>``, with the model's names of parameters.

    Raises:
        TrainingError: an entry that is neither a tensor nor None.
    """
    found: dict[str, Tensor] = {}
    for name, parameter in _named(optimizer, model):
        for entry, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[f"{PREFIX}{name}/{entry}"] = value
            elif value is not None:
                raise TrainingError(f"the optimiser keeps a {type(value).__name__} in {entry!r} of {name}, which "
                                    "cannot be saved.", remedy="Keep it in a tensor.")
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], *,
                      where: str) -> None:
    """Load the tensors that `optimizer_tensors` returned.

    Raises:
        CheckpointError: state of a parameter that this optimiser does not have.
    """
    index = {name: place for place, (name, _) in enumerate(_named(optimizer, model))}
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith(PREFIX):
            name, _, entry = key.removeprefix(PREFIX).rpartition("/")
            if name not in index:
                raise CheckpointError(f"optimiser state of {name!r}, which this run does not train.", where=where,
                                      remedy="Resume with the configuration of the run.")
            state.setdefault(index[name], {})[entry] = tensor
    groups: list[dict[str, Any]] = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def parameter_of(name: str) -> str:
    """The name of the parameter that a tensor of `Trainer.tensors` belongs to."""
    if name.startswith(PREFIX):
        return name.removeprefix(PREFIX).rpartition("/")[0]
    return name.removeprefix(AVERAGED)


def _named(optimizer: torch.optim.Optimizer, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The optimiser's parameters in its own order, by the model's names."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        yield from ((names[id(parameter)], parameter) for parameter in group["params"])
