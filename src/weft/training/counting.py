"""Models that are fitted by counting, not by gradients."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from weft.core.errors import ConfigError
from weft.core.model import LanguageModel
from weft.data import TokenStream


@runtime_checkable
class Countable(Protocol):
    """A language model with the trait NOT_DIFFERENTIABLE: one pass over the text fits it."""

    def fit(self, tokens: Int64[Tensor, " N"], begins: Bool[Tensor, " N"]) -> None:
        """Count ``tokens``, in which a document begins wherever ``begins`` is true. What was counted before is
        replaced."""


def count(model: LanguageModel, stream: TokenStream) -> None:
    """Fit a model by counting.

    Raises:
        ConfigError: a model that declares it is not trained by gradients, and has no ``fit``.
    """
    if not isinstance(model, Countable):
        raise ConfigError([f"model: a {model.config.kind!r} cannot be trained by gradients and has no method "
                           "fit(tokens, begins). Give it one, or do not declare Trait.NOT_DIFFERENTIABLE."])
    model.fit(torch.from_numpy(stream.tokens.astype(np.int64)), torch.from_numpy(stream.begins.copy()))
