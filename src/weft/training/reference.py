"""The results of the model that a run starts from for its examples: computed once, before the first step, and kept.

``reference.json`` in the run's folder holds it with a digest of the weights, the examples and the tokenizer, so that a
resumed run compares its model with the same numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.core.errors import CheckpointError
from weft.core.model import Model
from weft.core.strict_json import dumps
from weft.disk.atomic import write_file
from weft.disk.documents import read_json
from weft.tasks import AnyTask, Material
from weft.tasks.protocols import ComparesWithStart
from weft.training.folder import REFERENCE_FILE, RunFolder
from weft.training.parallel import World
from weft.training.starting import StartWeights

PARTS = ("train", "validation")


def with_reference(task: AnyTask, model: Model, material: Material[Any], folder: RunFolder, world: World,
                   taken: StartWeights | None) -> Material[Any]:
    """The material of a run whose task compares its model with the one that it starts from, completed by what that one
    says; any other material unchanged. All ranks call it; rank 0 computes or reads.

    Args:
        model: has the weights that the run starts from, unless the run has a checkpoint.
        taken: the weights that the run starts from.

    Raises:
        CheckpointError: the run has a checkpoint, and the file is missing, damaged, or of other weights or examples.
    """
    if not isinstance(task, ComparesWithStart):
        return material
    assert taken is not None, "a task that compares is refused for a run that starts from nothing"
    digest = _digest(material, taken)

    def values() -> dict[str, list[float]]:
        if folder.last() is None:
            return {name: task.reference_of(task.compared(getattr(material, name), model)).tolist() for name in PARTS}
        return _read(folder.path / REFERENCE_FILE, digest)

    found = world.lead(values)
    arrays = {name: np.array(found[name], dtype=np.float64) for name in PARTS}
    return replace(material, train=task.with_reference(material.train, arrays["train"]),
                   validation=task.with_reference(material.validation, arrays["validation"]))


def keep_reference(task: AnyTask, material: Material[Any], folder: Path, taken: StartWeights | None) -> None:
    """Write what the run compares with into its folder, which must hold the run, unless it is there."""
    if isinstance(task, ComparesWithStart) and taken is not None and not (folder / REFERENCE_FILE).exists():
        values = {name: task.reference_of(getattr(material, name)).tolist() for name in PARTS}
        write_file(folder / REFERENCE_FILE, dumps({"digest": _digest(material, taken), **values}) + "\n")


def _digest(material: Material[Any], taken: StartWeights) -> str:
    parts = [material.corpus_sha256, material.tokenizer.fingerprint(), taken.sha256,
             *(str(len(getattr(material, name))) for name in PARTS)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: Path, digest: str) -> dict[str, list[float]]:
    try:
        found: dict[str, Any] = read_json(path)
        held, values = found["digest"], {name: [float(each) for each in found[name]] for name in PARTS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the reference log-probabilities cannot be read ({error!r}).", where=str(path),
                              remedy="Put the file back, or begin the run in another folder.") from None
    if held != digest:
        raise CheckpointError("the reference log-probabilities are of other weights, conversations or another "
                              "tokenizer than the run's.", where=str(path),
                              remedy="Put back what the run began with, or begin another run.")
    return values
