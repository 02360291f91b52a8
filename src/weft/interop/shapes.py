"""Models as shapes: built on the meta device, where parameters have sizes and no numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from weft.checkpoints.tensors import own_tensors
from weft.core.model import LanguageModel, ModelConfig

FILLS = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.zero_, Tensor.fill_, init.normal_, init.trunc_normal_,
                   init.uniform_, init.constant_, init.kaiming_uniform_, init.xavier_uniform_})


class Unfilled(TorchFunctionMode):
    """Does not fill tensors that hold nothing: working out how takes most of the time of building a model there."""

    def __torch_function__(self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        named = kwargs or {}
        if func in FILLS:
            filled = args[0] if args else named["tensor"]
            if filled.is_meta:
                return filled
        return func(*args, **named)


def meta_model(config: ModelConfig) -> LanguageModel:
    """The model of a configuration, all shapes and no numbers."""
    with torch.device("meta"), Unfilled():
        model = config.build()
    assert isinstance(model, LanguageModel), "families are of language models"
    return model


def count_parameters(config: ModelConfig) -> int:
    """The parameters of a model, those that are shared counted once; none of them is made."""
    return sum(tensor.numel() for tensor in own_tensors(meta_model(config)).values())
