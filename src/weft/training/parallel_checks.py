"""Checks of what several ranks must have in common before they train together: one configuration, and the same text."""

from __future__ import annotations

import json
from typing import Any

from weft.core.errors import ConfigError, DataError
from weft.core.strict_json import dumps
from weft.training.config import RunConfig
from weft.training.folder import differences
from weft.training.parallel import World

PATHS = ("path", "validation_path", "test_path", "start")
"""Keys of paths, which may lie elsewhere on every machine; what is read there is compared by itself."""


def require_same_config(world: World, config: RunConfig) -> None:
    """Check that all ranks have the configuration of rank 0; paths may differ from machine to machine. Raises
    `ConfigError`: this rank has another; every difference is listed."""
    own: dict[str, Any] = json.loads(dumps(config.dump()))
    leading = world.lead(lambda: own)
    problems = [f"{path}: {mine!r} on rank {world.rank}, and {theirs!r} on rank 0." for path, theirs, mine in
                differences(leading, own) if path.rpartition(".")[2] not in PATHS]
    if problems:
        raise ConfigError([*problems, "Start all ranks with the same configuration."])


def require_same_text(world: World, digest: str) -> None:
    """Check that all ranks have the text and tokenizer of rank 0. Raises `DataError`: this rank has others."""
    if world.lead(lambda: digest) != digest:
        raise DataError("the text or the tokenizer is not that of rank 0.", where=f"rank {world.rank}",
                        remedy="Give every machine the same files, and the same version of Python for the embedded "
                        "text.")
