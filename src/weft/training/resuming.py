"""Resuming a run: under the same conditions, from the last undamaged checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from weft.analysis.arithmetic import arithmetic, threads_set
from weft.checkpoints.load import Loaded, load_checkpoint, read_facts, read_training
from weft.checkpoints.locate import is_own
from weft.checkpoints.sharded import StoredTensors
from weft.core.errors import CheckpointError, ConfigError, DataError, UnsupportedError
from weft.core.model import Model
from weft.core.strict_json import Record, build
from weft.core.version import VERSION
from weft.disk.manifest import MANIFEST_FILE
from weft.ops.native.library import instructions
from weft.parallel.mesh import MeshSettings
from weft.tasks import Material, Validation
from weft.training.code import changes, code_of
from weft.training.compute import RECORD, Compute
from weft.training.config import RunConfig
from weft.training.events import Notice
from weft.training.exchange import broadcast, broadcast_named
from weft.training.folder import RunFolder
from weft.training.loop import ProgressSums, Run
from weft.training.starting import StartWeights
from weft.training.step_products import products_of
from weft.training.trainer import Trainer

U = TypeVar("U")


@dataclass(frozen=True)
class RunConditions(Record):
    """The conditions under which a run computes.

    Attributes:
        compute: routes, threads, compilation; those on record for a resumed run.
        software: version of Weft, and the instruction set of torch's CPU kernels.
        arithmetic: hashes of what the CPU's arithmetic returns, see `weft.analysis.arithmetic`; none on a GPU.
        code: hashes of the files that run, see `weft.training.code.code_of`.
        inexact: why the weights will differ from those of an uninterrupted run, which the user has allowed; None: they
            will not.
        notices: what a user should know of how the run computes, in sentences.
    """

    compute: Compute
    software: Mapping[str, str]
    arithmetic: Mapping[str, str]
    code: Mapping[str, str]
    inexact: str | None = None
    notices: tuple[str, ...] = ()


def terms_of(config: RunConfig, device: torch.device, record: Mapping[str, Any] | None, *,
             allow_inexact: bool, mesh: MeshSettings | None = None) -> RunConditions:
    """The terms of a run: those on record, or for a new run those that its configuration resolves to here.

    Args:
        device: where to compute.
        record: what `RunFolder.describe` wrote; None for a run that begins.
        allow_inexact: resume even where the weights will differ from those of an uninterrupted run.
        mesh: of the processes that train together; None: this one alone.

    Raises:
        UnsupportedError: the weights would differ, and that was not allowed.
        CheckpointError: the record is damaged.
        ConfigError: see `Compute.choose`.
    """
    native = instructions()
    software = {"weft": VERSION, "cpu_capability": torch.backends.cpu.get_cpu_capability(),
                "native_code": native if isinstance(native, str) else "none"}
    dtype, code = config.training.dtype_on(device), code_of(config)
    hashes = arithmetic() if device.type == "cpu" else {}
    notices: list[str] = []
    choose = partial(Compute.choose, config.training.compute, dtype=dtype, device=device,
                     products=partial(products_of, config), tell=notices.append,
                     alike=config.steps_alike())
    if record is None:
        return RunConditions(choose(), software, hashes, code, notices=tuple(notices))
    compute = Compute.from_json(record["compute"])
    reasons = [*_changes(compute, record["software"], software, device),
               *_other_arithmetic(record, hashes),
               *_other_mesh(record, MeshSettings() if mesh is None else mesh),
               *(f"{what}; so the run cannot go on to the same weights." for what in changes(record["code"], code))]
    if not reasons:
        return RunConditions(compute, software, hashes, code)
    reason = " ".join(reasons)
    if not allow_inexact:
        raise UnsupportedError(reason, where=RECORD, remedy="Resume it where and with what it began, start a run in "
                               "another folder, or allow weights that are not those of an uninterrupted run with "
                               "--allow-inexact.")
    with threads_set(compute.threads):
        return RunConditions(choose(), software, hashes, code, reason, tuple(notices))


def description(config: RunConfig, material: Material[Any], terms: RunConditions, *, steps: int, run_id: str,
                mesh: MeshSettings, inexact: list[dict[str, Any]], taken: StartWeights | None = None) -> dict[str, Any]:
    """The content of run.json."""
    return {"id": run_id, "config": config.dump(), "steps": steps, "corpus": material.corpus,
            "corpus_sha256": material.corpus_sha256, "tokenizer_sha256": material.tokenizer.fingerprint(),
            "compute": terms.compute.to_json(), "software": dict(terms.software), "ranks": mesh.processes,
            "mesh": mesh.model_dump(), "inexact": inexact, "arithmetic": dict(terms.arithmetic),
            "code": dict(terms.code), "start": None if taken is None else taken.to_json()}


def require_same_material(material: Material[Any], record: Mapping[str, Any], where: str) -> None:
    """Refuse to resume with another text or tokenizer. Raises `DataError`: the text or the tokenizer is not the one on
    record."""
    now = {"corpus_sha256": material.corpus_sha256, "tokenizer_sha256": material.tokenizer.fingerprint()}
    if any(record[name] != value for name, value in now.items()):
        raise DataError(f"the text is not the one that the run began with: it was {record['corpus']}; now it is "
                        f"{material.corpus}.", where=where, remedy="Put the text back, or start a run in another "
                        "folder.")


def restore(run: Run, trainer: Trainer) -> tuple[Validation | None, ProgressSums]:
    """Load the last undamaged checkpoint of the run into the trainer; rank 0 reads it for all ranks. Damaged ones after
    it are renamed, with a notice. Returns the validation of the weights at that step, if there is one, and the interval
    so far. Raises `CheckpointError`: there are checkpoints, and all are damaged."""
    facts = _restored(run, trainer) if trainer.held.whole else _restored_parts(run, trainer)
    if facts is None:
        return None, ProgressSums(0.0)
    validation, interval = facts.get("validation"), facts.get("interval")
    return (Validation.from_json(validation) if validation else None,
            build(ProgressSums, interval) if interval else ProgressSums(trainer.seconds))


def _restored(run: Run, trainer: Trainer) -> dict[str, Any] | None:
    """Give every rank what rank 0 reads; the facts of the checkpoint, None where there is none."""
    training: dict[str, torch.Tensor] = {}
    facts: dict[str, Any] | None = run.world.lead(lambda: _read(run, trainer.model, training))
    if facts is None:
        return None
    broadcast(run.world, values_of(trainer.model))
    trainer.precision.refresh(buffers=True, frozen=True)
    trainer.resume(broadcast_named(run.world, training), step=int(facts["step"]), seconds=float(facts["seconds"]),
                   where=str(run.folder.path))
    return facts


def _restored_parts(run: Run, trainer: Trainer) -> dict[str, Any] | None:
    """Every rank reads what it holds."""
    found: dict[str, Any] | None = run.world.lead(lambda: _found(run))
    if found is None:
        return None
    facts: dict[str, Any] = found["facts"]
    trainer.restore_boxes(StoredTensors(Path(found["path"])), step=int(facts["step"]), seconds=float(facts["seconds"]),
                          where=str(run.folder.path))
    return facts


def _found(run: Run) -> dict[str, Any] | None:
    """Path and facts of the last undamaged checkpoint, whose tensors are not read; None: there is none."""
    found = _usable(run.folder, _described)
    if found is None:
        _none_yet(run)
        return None
    (path, facts), damaged = found
    _begin_after(run, int(facts["step"]), str(path), damaged)
    return {"path": str(path), "facts": facts}


def _described(path: Path) -> tuple[Path, dict[str, Any]]:
    """Check the files of a checkpoint; its path and facts. Raises `CheckpointError`: it is damaged."""
    facts = read_facts(path)
    StoredTensors(path)
    return path, facts


def _read_whole(path: Path) -> tuple[Loaded, dict[str, torch.Tensor]]:
    return load_checkpoint(path), read_training(path)


def _none_yet(run: Run) -> None:
    run.folder.forget_after(0)
    run.emit(Notice(0, "no checkpoint had been saved yet: starting from the first step"))


def _begin_after(run: Run, step: int, path: str, damaged: list[tuple[Any, str]]) -> None:
    """Forget what a run has logged after a step, put damaged checkpoints aside, and delete old ones, which the process
    did not come to that saved the last."""
    run.folder.forget_after(step)
    for each, problem in damaged:
        aside = run.folder.put_aside(each)
        run.emit(Notice(step, f"the checkpoint {each} is damaged, and is now {aside} ({problem}); going on from "
                        f"step {step:,}, {path}"))
    run.folder.prune(run.config.report.keep)


def _read(run: Run, model: Model, training: dict[str, torch.Tensor]) -> dict[str, Any] | None:
    """Fill ``model`` and ``training`` from the last undamaged checkpoint, and return its facts; None: there is none."""
    found = _usable(run.folder, _read_whole)
    if found is None:
        _none_yet(run)
        return None
    (loaded, tensors), damaged = found
    training.update(tensors)
    _begin_after(run, int(loaded.facts["step"]), str(loaded.path), damaged)
    with torch.no_grad():
        for mine, saved in zip(values_of(model), values_of(loaded.model), strict=True):
            mine.copy_(saved)
    return dict(loaded.facts)


def _usable(folder: RunFolder, read: Callable[[Path], U]) -> tuple[U, list[tuple[Any, str]]] | None:
    """The content of the newest undamaged checkpoint, and the paths of the damaged ones after it, each with its
    error."""
    damaged: list[tuple[Any, str]] = []
    for path in reversed(folder.steps()):
        try:
            return read(path), damaged
        except CheckpointError as error:
            if not is_own(path, folder.path):
                raise CheckpointError(f"nothing proves that a run wrote this folder: it has no {MANIFEST_FILE}, and "
                                      "does not name the run.", where=str(path), remedy="Move it away: the run then "
                                      "goes on from its own last checkpoint.") from None
            damaged.append((path, " ".join(str(error).split())))
    if damaged:
        listed = "".join(f"\n  - {problem}" for _, problem in damaged)
        raise CheckpointError(f"no checkpoint of the run is whole:{listed}\n", where=str(folder.path),
                              remedy="Put a copy of one back, or start the run again in another folder.")
    return None


def _changes(compute: Compute, before: Mapping[str, str], now: Mapping[str, str], device: torch.device) -> list[str]:
    """Why the weights would differ from those of an uninterrupted run; empty if they would not."""
    changed = [f"{name.replace('_', ' ')} {before.get(name)!r} (here {value!r})" for name, value in now.items()
               if before.get(name) != value]
    reasons = [f"the run began with {', '.join(changed)}, so it cannot go on to the same weights."] if changed else []
    try:
        compute.require_here(device=device)
    except UnsupportedError as error:
        reasons.append(error.what)
    except ConfigError as error:
        reasons += error.problems
    return reasons


def _other_arithmetic(record: Mapping[str, Any], here: Mapping[str, str]) -> list[str]:
    """Why results that differ in the last bits would change the weights; empty if none do. A record of another
    kind of device has no hashes of this CPU."""
    before = record["arithmetic"] or here
    changed = [kind for kind, found in here.items() if before.get(kind) != found]
    return [f"{' and '.join(changed)} return other last bits here than when the run began, as after a change of "
            "MKL_CBWR, MKL_ENABLE_INSTRUCTIONS, DNNL_MAX_CPU_ISA, ONEDNN_DEFAULT_FPMATH_MODE or ATEN_CPU_CAPABILITY, "
            "so it cannot go on to the same weights."] if changed else []


def _other_mesh(record: Mapping[str, Any], mesh: MeshSettings) -> list[str]:
    """Why other processes would change the weights; empty if they would not."""
    ranks, before = record["ranks"], MeshSettings.model_validate(record["mesh"])
    why = "which round sums in another order and draw other dropout, so it cannot go on to the same weights."
    if before.processes != mesh.processes:
        return [f"the run began with {ranks} ranks (here {mesh.processes}), {why}"]
    return [] if before == mesh else [f"the run began with a mesh of {before.describe()} (here {mesh.describe()}), "
                                      f"{why}"]


def values_of(model: Model) -> list[torch.Tensor]:
    """Parameters and buffers."""
    return [*model.parameters(), *model.buffers()]
