"""Models on the meta device, with shapes and no storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from weft.core.base_model import Model, ModelConfig, built_model

FILLS = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.zero_, Tensor.fill_, init.normal_, init.trunc_normal_,
                   init.uniform_, init.constant_, init.kaiming_uniform_, init.xavier_uniform_})


class WithoutInitialisation(TorchFunctionMode):
    """Skips the initialisation of meta tensors, which takes most of the time of building a model on the meta device."""

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        named = kwargs or {}
        if func in FILLS:
            filled = args[0] if args else named["tensor"]
            if filled.is_meta:
                return filled
        return func(*args, **named)


def built_empty(config: ModelConfig) -> Model:
    """The model of a configuration on the meta device, which suffices to count its parameters and to compare shapes.
    Only a model that reads values while it is built, such as tables of counts, takes memory: it is small before it is
    fitted.

    Raises:
        ConfigError: as `built_model`.
    """
    try:
        with torch.device("meta"), WithoutInitialisation():
            return built_model(config)
    except (RuntimeError, NotImplementedError, TypeError):
        return built_model(config)
