"""Checks of what the ranks of a run must have in common before they train together, and of which runs can cut rows
among the processes of the mesh's axis ``context``."""

from __future__ import annotations

import json
from typing import Any

from weft.core.errors import ConfigError, DataError
from weft.core.model import Model
from weft.core.strict_json import dumps
from weft.parallel.context import Context, problems_of
from weft.parallel.mesh import Mesh
from weft.tasks import AnyTask
from weft.training.config import RunConfig
from weft.training.folder import differences
from weft.training.parallel import World

PATHS = ("path", "validation_path", "test_path", "start")
"""Keys of paths, which may lie elsewhere on every machine; what is read there is compared by itself."""
WHERE = "training.mesh.context"


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


def context_of(mesh: Mesh) -> Context | None:
    """The processes that compute pieces of this one's rows; None where it computes whole rows."""
    if mesh.size("context") == 1:
        return None
    return Context(mesh.group("context"))


def cutting_problems(config: RunConfig, task: AnyTask, model: Model) -> list[str]:
    """The settings of the run that do not go together with rows that are cut; each names the field concerned."""
    training, mesh = config.training, config.training.mesh
    if mesh is None or mesh.context == 1:
        return []
    size, found = f"{WHERE} {mesh.context}", problems_of(model)
    if not task.declared.cuts:
        found.append(f"task: the loss of {task.name!r} is not a sum over the tokens of one row, so rows cannot be "
                     f"cut among processes ({size}). Set context to 1.")
    if training.carry_state:
        found.append(f"training.carry_state: with {size}, whose last process would have the state that the first one "
                     "goes on from. Leave out one of them.")
    if config.context < mesh.context:
        found.append(f"training.context: rows of {config.context} tokens for {mesh.context} processes, each of which "
                     f"computes a piece ({size}). Choose at least {mesh.context}.")
    return found
