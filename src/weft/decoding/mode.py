"""Evaluation mode for the duration of a block, and what decoding requires of a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

from weft.core.declarations import Trait
from weft.core.errors import InputError, UnsupportedError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode (no dropout) inside the block, and restore its mode afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's parameters, or of its buffers if it has no parameters (an n-gram model)."""
    tensor = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


def require_causal(model: LanguageModel, purpose: str) -> None:
    """Refuse a model whose tokens attend to later ones: its outputs are not probabilities of the next token. Raises
    `UnsupportedError`: the model is bidirectional."""
    if Trait.BIDIRECTIONAL in traits_of(model):
        raise UnsupportedError(f"{purpose} needs probabilities of the next token, and this model's tokens attend to "
                               "later ones.", where=type(model).__name__, remedy="Give it causal masks.")


def declares_length(model: LanguageModel) -> bool:
    """Return whether a state of this model must be started with the document's length (LongRoPE, dynamic NTK). The
    lengths that share a state are given by `weft.positions.regimes`."""
    return Trait.DECLARED_LENGTH in traits_of(model)


def require_room(model: LanguageModel, length: int, where: str, what: str, remedy: str) -> None:
    """Refuse documents longer than the model's table of positions, before anything is computed. Raises `InputError`:
    ``length`` tokens exceed the model's limit."""
    limit = model.limit()
    if limit is not None and length > limit:
        raise InputError(f"{what}, and this model has positions for {limit} tokens.", where=where, remedy=remedy)
