"""What each of the processes of `test_meshes` does: train the runs below with the others in a folder, and write what
came of it to RANK.pt there."""

from __future__ import annotations

import os
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from integration.data_parallel_worker import interrupted
from weft.core.errors import WeftError
from weft.parallel.layout import local
from weft.parallel.mesh import MeshSettings
from weft.training import Event, Progress, RunConfig, parse_run, train
from weft.training.material import prepare
from weft.training.parallel import World
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

STEPS, HALFWAY, FEW = 4, 2, 2
"""Of runs that are resumed halfway, and of the others."""
ATTENTION = {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope", "qk_norm": "rmsnorm",
             "bias": "all", "sinks": True}
EXPERTS = {"kind": "moe", "n_experts": 12, "top_k": 1, "renormalise": False, "balance_loss": 0.0, "z_loss": 0.0}
READOUT = {"kind": "linear", "tied": False, "bias": True, "softcap": 5.0}
SHARD, TENSOR = {"shard": 2}, {"tensor": 2}


def run(folder: Path, mesh: dict[str, int] | None, layers: list[list[Any]], *, model: dict[str, Any] | None = None,
        report: dict[str, Any] | None = None, packing: str = "stream", **training: Any) -> RunConfig:
    """A run on a text of short documents, of which a row holds several."""
    decoder = {"kind": "decoder", "d_model": 16, "context": 24, "norm": "rmsnorm",
               "blocks": [{"kind": "pre", "layers": each} for each in layers], **(model or {})}
    settings = {"steps": STEPS, "batch_size": 4, "optimizer": {"lr": 1e-2}, "compute": {"matmul": "default"},
                "clip_norm": 0.5, "dtype": "float64", "mesh": mesh, **training}
    return parse_run({"model": decoder, "training": settings,
                      "data": {"path": str(folder / "text.txt"), "documents": "line", "packing": packing},
                      "report": {"log_every": 1, "eval_every": HALFWAY, "eval_batches": 1, **(report or {})}})


def runs(folder: Path, mesh: dict[str, int] | None) -> dict[str, RunConfig]:
    """Runs that any mesh of ``shard`` and ``tensor`` can make."""
    again = {"matmul": "default", "checkpoint_activations": True}
    return {
        "hybrid": run(folder, mesh, [["mamba", "glu"], [ATTENTION, "mlp"]], packing="documents", accumulation=2,
                      compute=again, average={"decay": 0.5}, report={"keep": 1}),
        "untied": run(folder, mesh, [[ATTENTION, EXPERTS], ["lstm", "mlp"]], model={"readout": READOUT}, steps=FEW,
                      objective={"label_smoothing": 0.1, "z_loss": 1e-2}, optimizer={"kind": "sgd", "momentum": 0.9})}


def sharded_runs(folder: Path, mesh: dict[str, int] | None) -> dict[str, RunConfig]:
    """Runs that a mesh of ``shard`` alone can make."""
    layers = [[ATTENTION, "mlp"]]
    return {"muon": run(folder, mesh, layers, steps=FEW, optimizer={"kind": "muon", "lr": 1e-3}),
            "adafactor": run(folder, mesh, layers, steps=FEW, optimizer={"kind": "adafactor_unfactored"}),
            # Without residual connections, blocks return views.
            "carried": run(folder, mesh, [], model={"blocks": [{"kind": "plain", "residual": False, "layers": ["lstm"]},
                                                               {"kind": "plain", "layers": ["lstm"]}]},
                           carry_state=True, report={"async_save": True}),
            "adapted": run(folder, mesh, layers, steps=FEW, model={"rewrites": [{"kind": "lora", "rank": 2}]})}


def narrow(folder: Path, mesh: dict[str, int] | None) -> RunConfig:
    return run(folder, mesh, [["mamba", "glu"], [ATTENTION, "mlp"]], dtype="bfloat16", steps=FEW,
               optimizer={"kind": "sgd"})


def failing(config: RunConfig, out: Path, *, on_rank: int | None = None, **changes: Any) -> str:
    """What a run raises on this rank, in a world of its own, when ``changes`` are made on one rank or on all."""
    try:
        with World.here() as world:
            if on_rank in (None, world.rank):
                changed = config.training.model_copy(update=changes)
                config = config.model_copy(update={"training": changed})
            train(config, out, world=world)
    except WeftError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def held(config: RunConfig, world: World) -> dict[str, tuple[int, ...]]:
    """The shapes of what this rank holds of each parameter."""
    trainer = Trainer(config, build_model(config), prepare(config).train, steps=STEPS, device="cpu", world=world)
    return {name: tuple(local(parameter).shape) for name, parameter in trainer.model.named_parameters()}


def worker(folder: Path) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("error", "FSDP2-wrapped module")
    found = dict[str, Any]()
    with World.here() as world:
        for name, mesh in (("shard", SHARD), ("tensor", TENSOR)):
            for kind, config in runs(folder, mesh).items():
                train(config, folder / f"{name}-{kind}", world=world)
            train(narrow(folder, mesh), folder / f"{name}-narrow", world=world)
            config = runs(folder, mesh)["hybrid"]
            found[f"{name} held"] = held(config, world)
            interrupted(config, folder / f"{name}-again", world)
            train(config, folder / f"{name}-again", resume=True, world=world)
            interrupted(config, folder / f"{name}-moved", world)
        for kind, config in sharded_runs(folder, SHARD).items():
            train(config, folder / f"shard-{kind}", world=world)
        for name, mesh in (("shard", TENSOR), ("tensor", SHARD), ("grown", SHARD)):
            out = folder / (name if name == "grown" else f"{name}-moved")
            train(runs(folder, mesh)["hybrid"], out, resume=True, allow_inexact=True, world=world)
    config = runs(folder, SHARD)["hybrid"]
    found["disagree"] = failing(config, folder / "disagree", on_rank=1, clip_norm=0.25)
    found["mesh"] = failing(config, folder / "mesh", mesh=MeshSettings(shard=3))
    torch.save(found, folder / f"{os.environ['RANK']}.pt")


def four(folder: Path) -> None:
    """Four processes: sharded and divided, and sharded and replicated."""
    torch.set_num_threads(1)
    with World.here() as world:
        train(runs(folder, {"shard": 2, "tensor": 2})["hybrid"], folder / "both-hybrid", world=world)
        train(runs(folder, {"replicate": 2, "shard": 2})["untied"], folder / "hsdp-untied", world=world)


def killed(folder: Path) -> None:
    """Train until rank 1 kills itself; what the others raise, and how long it takes them, goes to killed.pt."""
    torch.set_num_threads(1)
    config = runs(folder, SHARD)["hybrid"]
    begun, steps = [0.0], config.training.model_copy(update={"steps": 10**6})
    at = folder / f"killed-{os.environ['RANK']}"

    def strike(event: Event) -> None:
        if isinstance(event, Progress) and event.step == 3:
            begun[0] = time.monotonic()
            os.kill(int(other), signal.SIGKILL)

    try:
        with World.here() as world:
            other = world.largest(os.getpid() if world.rank == 1 else 0)
            train(config.model_copy(update={"training": steps, "report": config.report.model_copy(
                update={"eval_every": 2})}), folder / "killed", on_event=strike, world=world)
    except WeftError as error:
        torch.save({"error": f"{error}", "seconds": time.monotonic() - begun[0]}, at.with_suffix(".pt"))
