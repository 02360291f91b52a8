"""What each of the processes of `test_data_parallel` does: train the runs below with the others in a folder, and write
what came of it to RANK.pt there."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.core.errors import WeftError
from weft.training import Event, Progress, RunConfig, Terminated, heartbeat, parse_run, train
from weft.training.exchange import gather_rows, sum_gradients
from weft.training.parallel import World
from weft.training.trainer import seed_step

STEPS, HALFWAY = 6, 3
"""Of a run; it is evaluated and saved after each half."""


def runs(folder: Path) -> dict[str, RunConfig]:
    """Runs of each kind on a text of short documents, so that a row holds several and ranks score unlike numbers."""
    def run(layers: list[Any], model: dict[str, Any] | None = None, **training: Any) -> RunConfig:
        decoder = {"kind": "decoder", "d_model": 12, "context": 24, "blocks": [{"kind": "pre", "layers": layers}],
                   **(model or {})}
        settings = {"steps": STEPS, "batch_size": 4, "optimizer": {"lr": 1e-2}, "compute": {"matmul": "default"},
                    "clip_norm": 0.5, "dtype": "float64", **training}
        report = {"log_every": 1, "eval_every": HALFWAY, "eval_batches": 2}
        return parse_run({"model": decoder, "data": {"path": str(folder / "text.txt"), "documents": "line"},
                          "training": settings, "report": report})

    attention = {"kind": "attention", "n_heads": 2, "position": "rope"}
    experts = {"kind": "moe", "n_experts": 12, "top_k": 1, "renormalise": False, "balance_loss": 0.0, "z_loss": 0.0}
    return {"attention": run([attention, "mlp"], accumulation=2), "lstm": run(["lstm"], carry_state=True),
            "experts": run([attention, experts]),
            "bfloat16": run([attention, "mlp"], accumulation=2, dtype="bfloat16"),
            "dropout": run(["lstm"], {"embedding": {"dropout": 0.2}}, carry_state=True, dtype="float32")}


def starting(folder: Path) -> RunConfig:
    """A run that takes the weights of the checkpoint in ``pretrained`` and trains adapters beside them."""
    plain = runs(folder)["attention"].dump()
    return parse_run({**plain, "start": str(folder / "pretrained"),
                      "model": {**plain["model"], "rewrites": [{"kind": "lora", "rank": 2}]}})


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def interrupted(config: RunConfig, out: Path, world: World) -> str:
    """Train until rank 0 sends SIGTERM to rank 1 alone; what each of them raises."""
    other = world.largest(os.getpid() if world.rank == 1 else 0)

    def strike(event: Event) -> None:
        if isinstance(event, Progress) and event.step == HALFWAY - 1:
            os.kill(other, signal.SIGTERM)

    try:
        train(config, out, on_event=strike, world=world)
    except Terminated as stop:
        return type(stop).__name__
    return "not interrupted"


def failing(config: RunConfig, out: Path, *, on_rank: int | None = None, **changes: Any) -> str:
    """What a run raises on this rank, in a world of its own, when ``changes`` are made on one rank or on all."""
    try:
        with World.here() as world:
            if on_rank in (None, world.rank):
                training = config.training.model_copy(update=changes)
                config = config.model_copy(update={"training": training})
            train(config, out, world=world)
    except WeftError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def started(folder: Path, world: World) -> dict[str, dict[str, Tensor]]:
    """The weights of a run with a start: whole, resumed from a checkpoint, and resumed before there was one."""
    config, again = starting(folder), folder / "started-again"
    found = {"whole": weights(train(config, folder / "started", world=world).model)}
    interrupted(config, again, world)
    found["resumed"] = weights(train(config, again, resume=True, world=world).model)
    if world.leads:
        shutil.rmtree(again / "checkpoints")
    world.total(0)  # no rank looks for checkpoints before they are gone
    found["begun anew"] = weights(train(config, again, resume=True, world=world).model)
    return found


def draws(world: World) -> Tensor:
    """Random numbers of a step on each rank."""
    seed_step(0, 1, world.rank, device=torch.device("cpu"))
    return gather_rows(world, {"draws": torch.rand(1, 4)})["draws"]


class Odd(nn.Module):
    """Parameters of several dtypes, one with a gradient on rank 1 only and one without any."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        for name, dtype in {"single": torch.float32, "twofold": torch.complex64, "wide": torch.float64}.items():
            weight = nn.Parameter(torch.zeros(2, 3, dtype=dtype))
            weight.grad = torch.full_like(weight, rank + 1) * (1j if dtype.is_complex else 1)
            self.register_parameter(name, weight)
        self.some, self.none = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))
        self.some.grad = torch.ones(3) if rank == 1 else None


def added(world: World) -> dict[str, Tensor | None]:
    """The gradients of an `Odd` over all ranks."""
    module = Odd(world.rank)
    sum_gradients(world, module)
    return {name: None if weight.grad is None else weight.grad.clone() for name, weight in module.named_parameters()}


def worker(folder: Path) -> None:
    torch.set_num_threads(1)
    configs, found = runs(folder), dict[str, Any]()
    with World.here() as world:
        heard: list[Event] = []
        found["weights"] = {name: weights(train(config, folder / name, on_event=heard.append, world=world).model)
                            for name, config in configs.items()}
        found["heard"] = len(heard)
        found["started"] = started(folder, world)
        found["draws"], found["added"] = draws(world), added(world)
        for name in ("lstm", "dropout"):
            found[f"{name} stopped"] = interrupted(configs[name], folder / f"{name}-resumed", world)
            model = train(configs[name], folder / f"{name}-resumed", resume=True, world=world).model
            found[f"{name} resumed"] = weights(model)
        interrupted(configs["lstm"], folder / "shrunk", world)
        grown = train(configs["lstm"], folder / "grown", resume=True, allow_inexact=True, world=world)
        found["grown"] = weights(grown.model)
        timed = configs["attention"].training.model_copy(update={"steps": None, "seconds": 0.1})
        found["timed"] = train(configs["attention"].model_copy(update={"training": timed}), folder / "timed",
                               world=world).steps
    found["odd"] = failing(configs["attention"], folder / "odd", batch_size=3)
    found["lost"] = failing(configs["attention"], folder / "lost", on_rank=1, context=10**7)
    found["stands"] = failing(configs["attention"], folder / "attention")
    torch.save(found, folder / f"{os.environ['RANK']}.pt")


def silent(folder: Path) -> None:
    """Train until rank 0 stops rank 1, which neither ends nor answers from then on, once there is a checkpoint."""
    torch.set_num_threads(1)
    heartbeat.BEAT_SECONDS, heartbeat.SILENT_SECONDS = 0.5, 4.0
    config = runs(folder)["lstm"]
    config = config.model_copy(update={"training": config.training.model_copy(update={"steps": 10**6})})
    with World.here() as world:
        other = world.largest(os.getpid() if world.rank == 1 else 0)

        def stop(event: Event) -> None:
            if isinstance(event, Progress) and event.step == HALFWAY + 1:
                os.kill(other, signal.SIGSTOP)

        train(config, folder / "silent", on_event=stop, world=world)
