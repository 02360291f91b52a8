"""Checks of what several ranks must have in common before they train together: rows that divide, a model whose step can
be shared, and the same text."""

from __future__ import annotations

import json
from typing import Any

from weft.core.errors import ConfigError, DataError
from weft.core.layer import traits_of
from weft.core.model import Model
from weft.core.strict_json import dumps
from weft.core.traits import Trait
from weft.training.config import RunConfig
from weft.training.folder import differences
from weft.training.parallel import World

PATHS = ("path", "validation_path", "test_path", "start")
"""Keys of paths, which may lie elsewhere on every machine; what is read there is compared by itself."""


def require_divisible(config: RunConfig, size: int) -> None:
    """Check that a batch gives every rank that takes rows of its own as many; batches under a budget of tokens give
    each about as many.

    Raises:
        ConfigError: it does not.
    """
    rows = config.training.batch_size
    if rows % size and config.task.declares().batch_tokens is None:
        nearest = max(1, round(rows / size)) * size
        raise ConfigError([f"training.batch_size: {rows} rows do not divide among {size} ranks. Choose a multiple of "
                           f"{size}, such as {nearest}, or another --nproc-per-node."])


def require_parallel(model: Model, size: int) -> None:
    """Check that several ranks can train the model.

    Raises:
        ConfigError: it is fitted by counting, or normalises over the whole batch.
    """
    traits = traits_of(model) if size > 1 else frozenset()
    if Trait.NOT_DIFFERENTIABLE in traits:
        raise ConfigError([f"model: a model of kind {model.config.kind!r} is fitted by counting, which one process "
                           f"does, and {size} were started. Start it without torchrun."])
    if Trait.BATCH_STATISTICS in traits:
        raise ConfigError([f"model: batch normalisation needs the statistics of the whole batch, and each of {size} "
                           "ranks has only a part of it. Use another norm, or start it without torchrun."])


def require_same_config(world: World, config: RunConfig) -> None:
    """Check that all ranks have the configuration of rank 0; paths may differ from machine to machine.

    Raises:
        ConfigError: this rank has another; every difference is listed.
    """
    own: dict[str, Any] = json.loads(dumps(config.dump()))
    leading = world.lead(lambda: own)
    problems = [f"{path}: {mine!r} on rank {world.rank}, and {theirs!r} on rank 0." for path, theirs, mine in
                differences(leading, own) if path.rpartition(".")[2] not in PATHS]
    if problems:
        raise ConfigError([*problems, "Start all ranks with the same configuration."])


def require_same_text(world: World, digest: str) -> None:
    """Check that all ranks have the text and tokenizer of rank 0.

    Raises:
        DataError: this rank has others.
    """
    if world.lead(lambda: digest) != digest:
        raise DataError("the text or the tokenizer is not that of rank 0.", where=f"rank {world.rank}",
                        remedy="Give every machine the same files, and the same version of Python for the embedded "
                        "text.")
