"""Models on the meta device, with shapes and no storage, and the assignment of their tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from weft.checkpoints.tensors import own_tensors
from weft.core.empty_model import built_empty
from weft.core.model import ModelConfig
from weft.core.part_config import PartConfig, expand, kinds_of
from weft.positions.constants import Constant


def count_parameters(config: ModelConfig) -> int:
    """The parameters of a model, shared ones counted once; none is allocated."""
    return sum(tensor.numel() for tensor in own_tensors(built_empty(config)).values())


def count_by_blocks(config: ModelConfig) -> int:
    """`count_parameters` of a model whose equal blocks have equally many, as those of every family: each kind of block
    is built once beside the first, which takes a fraction of the time."""
    if not config.stack():
        return count_parameters(config)

    def count(*blocks: PartConfig) -> int:
        return count_parameters(config.with_(blocks=list(blocks)))

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
