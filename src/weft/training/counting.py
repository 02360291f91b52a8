"""Models that are fitted by counting, not by gradients."""

from __future__ import annotations

import numpy as np
import torch

from weft.core.errors import ConfigError
from weft.core.model import Counted, LanguageModel
from weft.data import TokenStream


def count(model: LanguageModel, stream: TokenStream) -> None:
    """Fit a model by counting.

    Raises:
        ConfigError: a model that declares it is not trained by gradients, and cannot count either.
    """
    if not isinstance(model, Counted):
        raise ConfigError([f"model: a {model.config.kind!r} cannot be trained by gradients and is no Counted. Derive "
                           "it from weft.core.model.Counted, or do not declare Trait.NOT_DIFFERENTIABLE."])
    if stream.flags is not None:
        raise ConfigError([f"data: some tokens are read and not scored, while a {model.config.kind!r} counts every "
                           "token. Leave out data.prompt_field, or train a model by gradients."])
    model.fit(torch.from_numpy(stream.tokens.astype(np.int64)), torch.from_numpy(stream.begins.copy()))
