"""Models on the meta device, with shapes and no storage, and the assignment of their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode

from weft.checkpoints.tensors import own_tensors
from weft.core.model import Model, ModelConfig, built_model
from weft.core.part_config import PartConfig, expand, kinds_of
from weft.positions.constants import Constant

FILLS = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.zero_, Tensor.fill_, init.normal_, init.trunc_normal_,
                   init.uniform_, init.constant_, init.kaiming_uniform_, init.xavier_uniform_})


class Unfilled(TorchFunctionMode):
    """Skips the initialisation of meta tensors, which takes most of the time of building a model on the meta device."""

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        named = kwargs or {}
        if func in FILLS:
            filled = args[0] if args else named["tensor"]
            if filled.is_meta:
                return filled
        return func(*args, **named)


def meta_model(config: ModelConfig) -> Model:
    """The model of a configuration on the meta device."""
    with torch.device("meta"), Unfilled():
        return built_model(config)


def count_parameters(config: ModelConfig) -> int:
    """The parameters of a model, shared ones counted once; none is allocated."""
    return sum(tensor.numel() for tensor in own_tensors(meta_model(config)).values())


def count_by_blocks(config: ModelConfig) -> int:
    """`count_parameters` of a model whose equal blocks have equally many, as those of every family: each kind of block
    is built once beside the first, which takes a fraction of the time."""
    if not config.stack():
        return count_parameters(config)

    def count(*blocks: PartConfig) -> int:
        return count_parameters(config.model_copy(update={"blocks": list(blocks)}))

    first, *others = (block for _, block in expand(config.stack()))
    alone = count(first)
    return alone + sum(number * (count(first, block) - alone) for block, number in kinds_of(others))


def place(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Assign tensors to a model by name; shared tensors stay shared."""
    named: dict[int, nn.Parameter | Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in own_tensors(model).items():
        new = tensors[name]
        named[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new
    for name, tensor in model.state_dict(keep_vars=True).items():
        state[name] = named[id(tensor)]
    model.load_state_dict(state, assign=True)


def settle(model: nn.Module, device: torch.device) -> None:
    """Write the constants of a model that was built on the meta device."""
    for part in model.modules():
        if isinstance(part, Constant):
            part.to_empty(device=device)
    left = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert not left, f"these tensors are left without numbers: {left}"
