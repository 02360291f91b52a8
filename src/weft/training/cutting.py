"""Rows that are cut among the processes of the mesh's axis ``context``: which runs can do it, and with whom."""

from __future__ import annotations

from weft.core.model import Model
from weft.parallel.context import Context, problems_of
from weft.parallel.mesh import Mesh
from weft.tasks import AnyTask
from weft.training.config import RunConfig

WHERE = "training.mesh.context"


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
