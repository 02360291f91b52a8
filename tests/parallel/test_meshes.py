"""Training on a mesh: the course of one process, whatever its axes are, saved, resumed and moved to another mesh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from fresh import Ended, Fresh
from integration.test_data_parallel import gap, halfway
from parallel.mesh_worker import four, killed, narrow, runs, sharded_runs, worker
from weft.checkpoints.load import load_checkpoint
from weft.checkpoints.locate import find_checkpoint
from weft.core.errors import UnsupportedError
from weft.core.layer import Chooser
from weft.training import train
from weft.training.material import prepare
from weft.training.run_training import build_model

NAMES = [f"{mesh}-{kind}" for mesh in ("shard", "tensor") for kind in ("hybrid", "untied")]
SHARDED = ["shard-muon", "shard-adafactor", "shard-carried", "shard-adapted"]


def start(work: Any, ranks: int, folder: Path) -> list[Ended]:
    """Run ``work(folder)`` in processes that find what torchrun would have set up."""
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port),
              "OMP_NUM_THREADS": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    started = [Fresh(work, folder, folder=folder, environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
               for rank in range(ranks)]
    return [each.end() for each in started]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes, and four, have trained."""
    path = tmp_path_factory.mktemp("meshes")
    lines = (f"line {i}: {'ab ' * (i * i % 11)}is {i % 7 + i % 5}\n" for i in range(300))
    (path / "text.txt").write_text("".join(lines), encoding="utf-8")
    halfway(runs(path, None)["hybrid"], path / "grown")
    for work, ranks in ((worker, 2), (four, 4)):
        ends = start(work, ranks, path)
        assert [end.returncode for end in ends] == [0] * ranks, "\n".join(end.stderr for end in ends)
    return path


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The weights of the same runs in one process."""
    every = {**runs(folder, None), **sharded_runs(folder, None), "narrow": narrow(folder, None)}
    for name, config in every.items():
        train(config, folder / f"alone-{name}")
    return {name: saved(folder / f"alone-{name}") for name in every}


def saved(run: Path) -> dict[str, Tensor]:
    """The weights in the last checkpoint of a run."""
    return load_checkpoint(find_checkpoint(run)).model.state_dict()


def figures(run: Path, event: str, name: str) -> list[float]:
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record[name] for record in map(json.loads, lines) if record["event"] == event]


@pytest.mark.parametrize("name", [*NAMES, "both-hybrid", "hsdp-untied"])
def test_the_course_is_that_of_one_process(name: str, alone: dict[str, dict[str, Tensor]], folder: Path) -> None:
    """Loss and gradient norm of every step, with documents packed; float64 rounds at 1e-16. The weights that Adam has
    moved are compared less exactly, since its quotient enlarges rounding where a gradient is nearly zero."""
    kind = name.partition("-")[2]
    for figure in ("loss", "grad_norm"):
        expected = figures(folder / f"alone-{kind}", "progress", figure)
        assert len(expected) == runs(folder, None)[kind].training.steps
        assert figures(folder / name, "progress", figure) == pytest.approx(expected, rel=1e-10)
    assert gap(saved(folder / name), alone[kind]) < 1e-9


def test_experts_were_idle_on_one_process_alone(folder: Path) -> None:
    """In the runs with experts that are compared above: processes that share parameters add gradients of all experts,
    or wait for each other without end."""
    config = runs(folder, None)["untied"]
    torch.manual_seed(config.seed)
    model, batches = build_model(config), config.made_task().batches(prepare(config).train)
    experts = next(module for module in model.modules() if isinstance(module, Chooser))
    used: list[set[int]] = []
    experts.register_forward_pre_hook(lambda layer, inputs: used.append(
        set(layer.choose(inputs[0]).chosen.flatten().tolist())))
    for rank in range(2):
        columns = batches.batch(0, rank=rank, world=2).columns
        model(columns.inputs, None, columns.span)
    assert used[0] ^ used[1], "some are idle on one process and not on the other"


@pytest.mark.parametrize("name", ["shard-hybrid", "tensor-hybrid"])
def test_the_evaluation_is_that_of_one_process(name: str, alone: dict[str, dict[str, Tensor]], folder: Path) -> None:
    assert alone
    measured, expected = (figures(folder / run, "validated", "validation") for run in (name, "alone-hybrid"))
    assert [each["loss"] for each in measured] == pytest.approx([each["loss"] for each in expected], rel=1e-10)


@pytest.mark.parametrize("name", SHARDED)
def test_optimisers_of_whole_matrices_carried_rows_and_adapters_are_sharded(
        name: str, alone: dict[str, dict[str, Tensor]], folder: Path) -> None:
    assert gap(saved(folder / name), alone[name.partition("-")[2]]) < 1e-9


@pytest.mark.parametrize("mesh", ["shard", "tensor"])
def test_weights_in_bfloat16_stay_near_those_of_one_process(mesh: str, alone: dict[str, dict[str, Tensor]],
                                                            folder: Path) -> None:
    """bfloat16 rounds at 4e-3, and a gradient has gone through some ten roundings; sums in another order are not equal,
    which shows that bfloat16 was used."""
    found = saved(folder / f"{mesh}-narrow")
    for figure, bound in (("loss", 1e-2), ("grad_norm", 5e-2)):
        one, many = (figures(folder / f"{run}-narrow", "progress", figure) for run in ("alone", mesh))
        assert one != many
        assert many == pytest.approx(one, rel=bound)
    assert gap(found, alone["narrow"]) < 0.05
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}, "saved as they are updated"


def test_each_process_holds_its_part(found: list[dict[str, Any]]) -> None:
    sharded, divided = found[0]["shard held"], found[0]["tensor held"]
    output = "stack.layers.1.layers.0.output.weight"
    assert sharded[output] == (8, 16) and divided[output] == (16, 8)
    assert divided["stack.layers.1.layers.0.qkv.weight"] == (16, 16), "two heads of queries, one of keys, one of values"
    assert divided["stack.layers.0.layers.0.a_log"] == (16, 16)
    rows = [each["tensor held"]["embedding.tokens.weight"][0] for each in found]
    assert sum(rows) == 257 and max(rows) - min(rows) == 1, "a vocabulary need not divide"


@pytest.mark.parametrize("mesh", ["shard", "tensor"])
def test_a_resumed_run_ends_in_the_same_weights_bit_for_bit(mesh: str, found: list[dict[str, Any]],
                                                            folder: Path) -> None:
    assert found
    again, whole = saved(folder / f"{mesh}-again"), saved(folder / f"{mesh}-hybrid")
    assert len(figures(folder / f"{mesh}-again", "started", "step")) == 2
    assert all(torch.equal(again[name], whole[name]) for name in whole)


@pytest.mark.parametrize("run", ["shard-moved", "tensor-moved", "grown"])
def test_a_run_goes_on_in_another_mesh(run: str, alone: dict[str, dict[str, Tensor]], folder: Path) -> None:
    """From sharded to divided and back, and from one process to two; optimiser and averages go with it."""
    assert gap(saved(folder / run), alone["hybrid"]) < 1e-9
    inexact = json.loads((folder / run / "run.json").read_bytes())["inexact"]
    assert len(inexact) == 1 and "the run began with " in inexact[0]["reason"]


def test_one_process_goes_on_from_many(found: list[dict[str, Any]], alone: dict[str, dict[str, Tensor]],
                                       folder: Path) -> None:
    assert found
    run, config = folder / "shard-again", runs(folder, None)["hybrid"]
    last = sorted((run / "checkpoints").iterdir())[-1]
    (last / "sharded" / "rank-00000.safetensors").write_bytes(b"damaged")  # so that the one before is taken
    with pytest.raises(UnsupportedError, match=r"began with 2 ranks \(here 1\).*--allow-inexact"):
        train(config, run, resume=True)
    train(config, run, resume=True, allow_inexact=True)
    notices = figures(run, "notice", "text")
    assert any("is damaged, and is now" in notice for notice in notices)
    assert gap(saved(run), alone["hybrid"]) < 1e-9


def test_errors_name_what_ranks_disagree_on_and_a_mesh_that_does_not_fit(found: list[dict[str, Any]],
                                                                         folder: Path) -> None:
    first, second = found
    assert "training.clip_norm: 0.25 on rank 1, and 0.5 on rank 0." in second["disagree"]
    assert first["disagree"].startswith("FailedElsewhere")
    assert "a mesh of shard 3 has 3 processes, and 2 were started. Start 3" in first["mesh"]
    assert not (folder / "mesh").exists()


def test_the_others_end_when_a_process_is_killed_and_name_it(folder: Path) -> None:
    ends = start(killed, 2, folder)
    assert ends[1].returncode == -9
    told = torch.load(folder / "killed-0.pt", weights_only=True)
    assert "the connection to rank 1 is lost, which has ended without a word" in told["error"]
    assert "The last good checkpoint is" in told["error"]
    assert told["seconds"] < 20, "a busy machine takes some seconds more than the two that ranks wait for each other"
    load_checkpoint(find_checkpoint(folder / "killed"))
