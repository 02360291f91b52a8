"""Multi-head attention turned into grouped-query attention by averaging key and value heads in groups.

Models on the meta device, with shapes and no storage, and the assignment of their tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoints.tensors import own_tensors
from weft.core.base_model import built_empty
from weft.core.config import parse_part
from weft.core.errors import InputError
from weft.core.model import LanguageModel, ModelConfig, language_model
from weft.mixers.attention import Attention
from weft.mixers.self_attention import HeadSizes
from weft.positions.frequencies import Constant


def pool_heads(model: LanguageModel, n_kv_heads: int) -> LanguageModel:
    """A model whose attentions have ``n_kv_heads`` key/value heads, each the mean of those it replaces.

    Ainslie et al. 2023, section 2.1: a start for further training; the outputs change.

    Raises:
        InputError: the model has no attention, or ``n_kv_heads`` does not divide the heads of one.
    """
    found = {name: part for name, part in model.named_modules() if isinstance(part, Attention)}
    _require_groups(found, n_kv_heads)
    kinds = {part.config.kind for part in found.values()}
    config = parse_part(("model",), _with_heads(model.config.dump(), kinds, n_kv_heads))
    assert isinstance(config, ModelConfig), "the group model holds model configurations"
    pooled = language_model(built_empty(config), "pooling heads")
    tensors: dict[str, Tensor] = {}
    for name, tensor in own_tensors(model).items():
        owner, _, kind = name.rpartition(".qkv.")
        tensors[name] = pool(tensor.detach(), found[owner].sizes, n_kv_heads) if kind and owner in found else tensor
    place(pooled, tensors)
    settle(pooled, next(iter(tensors.values())).device)
    return pooled.eval()


def pool(fused: Tensor, sizes: HeadSizes, n_kv_heads: int) -> Tensor:
    """The rows of queries, keys and values with key and value heads averaged in groups, in float32 or wider."""
    q, k, v = fused.split(list(sizes.split()))
    wide = torch.promote_types(fused.dtype, torch.float32)
    pooled = (part.unflatten(0, (n_kv_heads, sizes.kv_heads // n_kv_heads, -1)).to(wide).mean(1).flatten(0, 1)
              for part in (k, v))
    return torch.cat([q, *(part.to(fused.dtype) for part in pooled)])


def _require_groups(found: Mapping[str, nn.Module], n_kv_heads: int) -> None:
    if not found:
        raise InputError("the model has no attention whose heads could be pooled.", where="n_kv_heads",
                         remedy="Leave n_kv_heads out.")
    for name, part in found.items():
        assert isinstance(part, Attention)
        if n_kv_heads < 1 or part.sizes.kv_heads % n_kv_heads:
            raise InputError(f"{part.sizes.kv_heads} key/value heads (in {name}) do not divide into {n_kv_heads} "
                             "groups.", where="n_kv_heads",
                             remedy=f"Choose a divisor of {part.sizes.kv_heads}.")
        if part.k_norm is not None and part.config.qk_norm_over == "heads":
            raise InputError(f"the keys of all heads (in {name}) are normalised together, so a mean of heads has no "
                             "norm.", where="n_kv_heads", remedy="Leave n_kv_heads out.")


def _with_heads(data: Any, kinds: set[str], n_kv_heads: int) -> Any:
    """Plain data of a configuration in which every part of these kinds has so many key/value heads."""
    if isinstance(data, Mapping):
        own = {"n_kv_heads": n_kv_heads} if data.get("kind") in kinds else {}
        return {key: _with_heads(value, kinds, n_kv_heads) for key, value in data.items()} | own
    return [_with_heads(item, kinds, n_kv_heads) for item in data] if isinstance(data, list) else data


def count_parameters(config: ModelConfig) -> int:
    """The parameters of a model, shared ones counted once; none is allocated."""
    return sum(tensor.numel() for tensor in own_tensors(built_empty(config)).values())


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
