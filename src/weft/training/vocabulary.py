"""A vocabulary of another size for a model that starts from weights: new tokens, padding, and the rows of new ids."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from weft.checkpoints.tensors import own_tensors
from weft.core.base_model import built_empty
from weft.core.config import rule
from weft.core.errors import ConfigError
from weft.core.model import ModelConfig, parse_model
from weft.core.part_config import Settings

SIZE = "vocab_size"


class VocabularySettings(Settings):
    """How the vocabulary of the model that a run starts from is resized.

    Let u be the number of ids of its tokenizer. The rows of ids below u, in embeddings and readouts, are kept; all
    further ones, of new tokens and of padding, are new in every such tensor. Tied weights stay tied.

    Attributes:
        added_tokens: spellings of new special tokens, which get the ids from u on.
        new_rows: what new rows are: ``mean``: the mean of the kept ones (Hewitt 2021: then a new token is about as
            probable as the average one, and the distribution over the others hardly changes); ``normal``: drawn by the
            run's seed from a normal distribution with the mean and the deviation of each column of the kept ones.
        multiple: the model's number of ids is rounded up to a multiple of this; what is beyond the tokenizer's is
            padding.
    """

    added_tokens: list[str] = Field(default_factory=list)
    new_rows: Literal["mean", "normal"] = "mean"
    multiple: int = Field(default=1, gt=0)

    @model_validator(mode="after")
    def _different(self) -> Self:
        if twice := sorted({token for token in self.added_tokens if self.added_tokens.count(token) > 1}):
            raise rule("added_tokens", f"{twice[0]!r} is listed twice.", "Give every token once.")
        return self

    def rounded(self, size: int) -> int:
        """The model's number of ids for a tokenizer and a task with ``size``."""
        return -(-size // self.multiple) * self.multiple


def resized(tensors: dict[str, Tensor], config: ModelConfig, kept: int, settings: VocabularySettings,
            seed: int) -> tuple[dict[str, Tensor], dict[str, int]]:
    """A checkpoint's tensors for a model with another vocabulary, and how many rows of each tensor with an entry for
    each id are new.

    Args:
        tensors: of the checkpoint, by name.
        config: of the model, with its vocabulary.
        kept: u, the ids whose rows are kept.
        settings: what new rows are.
        seed: by which they are drawn.

    Raises:
        ConfigError: the rows of a tensor are stored in whole numbers, such as those of a quantised readout.
    """
    generator = torch.Generator().manual_seed(seed)
    made, new = dict(tensors), dict[str, int]()
    for name, (dim, size) in vocabulary_dims(config).items():
        if name not in tensors:
            continue
        if not tensors[name].is_floating_point():
            raise ConfigError([f"vocabulary: {name} is stored as {tensors[name].dtype}, for which no rows can be made. "
                               "Leave the readout and the embeddings out of model.rewrites of the checkpoint."])
        # A tensor may lack the first ids, as the tables of an adaptive readout's rare ones do.
        rows = tensors[name].movedim(dim, 0)[:max(1, kept - (config.vocab_size - size))]
        fresh = _new_rows(rows, size - len(rows), settings.new_rows, generator)
        made[name] = torch.cat([rows, fresh])[:size].movedim(0, dim).contiguous()
        new[name] = max(0, size - len(rows))
    return made, new


def vocabulary_dims(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """The tensors of a model that have an entry for each id, or for each of some: by name the dimension that grows with
    the vocabulary, and its size."""
    here, larger = (own_tensors(built_empty(each)) for each in (config, parse_model(_larger(config.dump()))))
    return {name: (dim, size) for name, tensor in here.items()
            for dim, (size, more) in enumerate(zip(tensor.shape, larger[name].shape, strict=True)) if more > size}


def _larger(plain: dict[str, Any]) -> dict[str, Any]:
    """A model's configuration with one id more, in its encoder too."""
    encoder = plain.get("encoder")
    sides = {"encoder": _larger(encoder)} if isinstance(encoder, dict) and SIZE in encoder else {}
    return {**plain, **sides, SIZE: plain[SIZE] + 1}


def _new_rows(rows: Tensor, count: int, how: str, generator: torch.Generator) -> Tensor:
    """``count`` new rows beside ``rows``."""
    if count <= 0:
        return rows[:0]
    wide = rows.to(torch.promote_types(rows.dtype, torch.float64))
    mean = wide.mean(0, keepdim=True).expand(count, *wide.shape[1:])
    if how == "normal":
        noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64).to(wide.device)
        mean = mean + noise * wide.std(0, keepdim=True, correction=0)
    return mean.to(rows.dtype)
