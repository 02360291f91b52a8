"""Training by two processes: the course of one process, saved and resumed, and ended by all.

Starting processes takes most of the time here, so one start makes all the runs that need no command line, in processes
that find what torchrun would have set up; torchrun itself starts those of the last test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from fresh import Fresh
from integration.data_parallel_worker import HALFWAY, STEPS, runs, silent, starting, weights, worker
from weft.checkpoints.load import load_checkpoint, read_training
from weft.checkpoints.locate import find_checkpoint
from weft.core.errors import UnsupportedError
from weft.training import Event, RunConfig, Saved, parse_run, train
from weft.training.parallel import World
from weft.training.requirements import rank_problems
from weft.training.run_training import build_model

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
EXACT = ("attention", "lstm", "experts")
"""Runs whose course is that of one process up to the rounding of float64."""


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen([*TORCHRUN, *command], env={**os.environ, "OMP_NUM_THREADS": "1"}, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[2])


def halfway(config: RunConfig, out: Path) -> None:
    """Train in this process until the first checkpoint."""
    def stop(event: Event) -> None:
        if isinstance(event, Saved):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, out, on_event=stop)


def ranks_of(work: Callable[[Path], None], folder: Path, store: TCPStore) -> list[Fresh]:
    """Two processes that do ``work`` together, as torchrun would have started them."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1",
              "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    return [Fresh(work, folder, folder=folder, environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both processes have trained."""
    path = tmp_path_factory.mktemp("parallel")
    lines = (f"line {i}: {'ab ' * (i * i % 11)}is {i % 7 + i % 5}\n" for i in range(300))
    (path / "text.txt").write_text("".join(lines), encoding="utf-8")
    halfway(runs(path)["lstm"], path / "grown")
    halfway(runs(path)["attention"], path / "pretrained")
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    ends = [rank.end() for rank in ranks_of(worker, path, store)]
    assert [end.returncode for end in ends] == [0, 0], "\n".join(end.stderr for end in ends)
    return path


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, Any]]:
    """What each rank found."""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The weights of the same runs in one process."""
    return {name: weights(train(config, folder / f"alone-{name}").model) for name, config in runs(folder).items()}


def gap(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest entry of each tensor."""
    return max(float((found[name] - wanted[name]).abs().max() / wanted[name].abs().max()) for name in wanted)


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def losses(run: Path) -> list[float]:
    return [record["loss"] for record in metrics(run) if record["event"] == "progress"]


def test_all_ranks_end_in_the_same_weights_bit_for_bit(found: list[dict[str, Any]], folder: Path) -> None:
    for name in runs(folder):
        first, second = (result["weights"][name] for result in found)
        assert all(torch.equal(first[key], second[key]) for key in first), name


@pytest.mark.parametrize("name", EXACT)
def test_the_weights_are_those_of_one_process(name: str, found: list[dict[str, Any]],
                                              alone: dict[str, dict[str, Tensor]]) -> None:
    """float64 rounds at 1e-16; Adam's quotient enlarges it where a gradient is nearly zero."""
    assert gap(found[0]["weights"][name], alone[name]) < 1e-9


@pytest.mark.parametrize("name", EXACT)
def test_the_loss_of_every_step_is_that_of_one_process(name: str, alone: dict[str, dict[str, Tensor]],
                                                       folder: Path) -> None:
    assert name in alone
    assert len(losses(folder / name)) == STEPS
    assert losses(folder / name) == pytest.approx(losses(folder / f"alone-{name}"), rel=1e-12)


def test_a_run_with_a_start_ends_in_the_weights_of_one_process(found: list[dict[str, Any]], folder: Path) -> None:
    """Every rank takes the checkpoint's weights, and adapters drawn by rank 0; only these are trained."""
    alone = weights(train(starting(folder), folder / "alone-started").model)
    first, second = (result["started"]["whole"] for result in found)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert gap(first, alone) < 1e-9
    before = load_checkpoint(find_checkpoint(folder / "pretrained")).model.state_dict()
    kept = {name: tensor for name, tensor in before.items() if name in first}
    assert kept and all(torch.equal(first[name], tensor) for name, tensor in kept.items())
    records = [json.loads((folder / run / "run.json").read_bytes())["start"] for run in ("started", "alone-started")]
    assert records[0] == records[1] and records[0]["fresh"]
    notices = [record["text"] for record in metrics(folder / "started") if record["event"] == "notice"]
    assert sum(notice.startswith("starting from ") for notice in notices) == 1


@pytest.mark.parametrize("how", ["resumed", "begun anew"])
def test_a_run_with_a_start_goes_on_bit_for_bit(how: str, found: list[dict[str, Any]]) -> None:
    for result in found:
        whole, again = result["started"]["whole"], result["started"][how]
        assert all(torch.equal(again[key], whole[key]) for key in whole)


def test_weights_in_bfloat16_stay_near_those_of_one_process(found: list[dict[str, Any]],
                                                            alone: dict[str, dict[str, Tensor]]) -> None:
    """One process adds the rows of a batch in bfloat16, which rounds at 4e-3; Adam turns that into a part of the six
    updates of at most 1e-2 each, and the largest weights are near 1."""
    assert gap(found[0]["weights"]["bfloat16"], alone["bfloat16"]) < 0.06


def test_dropout_is_drawn_anew_on_each_rank(found: list[dict[str, Any]]) -> None:
    first, second = found[0]["draws"]
    assert not torch.equal(first, second)


def test_gradients_of_every_dtype_are_added(found: list[dict[str, Any]]) -> None:
    for result in found:
        added = result["added"]
        assert torch.equal(added["single"], torch.full((2, 3), 3.0))
        assert torch.equal(added["twofold"], torch.full((2, 3), 3j, dtype=torch.complex64))
        assert torch.equal(added["wide"], torch.full((2, 3), 3.0, dtype=torch.float64))
        assert torch.equal(added["some"], torch.ones(3)), "a gradient on one rank is that of all"
        assert added["none"] is None


def test_a_checkpoint_holds_the_carried_rows_of_all_ranks(alone: dict[str, dict[str, Tensor]], folder: Path) -> None:
    mine, whole = (read_training(folder / run / "checkpoints" / f"{STEPS:08d}") for run in ("lstm", "alone-lstm"))
    carried = [name for name in whole if name.startswith("carried.")]
    assert mine.keys() == whole.keys()
    assert carried
    for name in carried:
        assert mine[name].shape[0] == 4, "one row for each of the batch"
        torch.testing.assert_close(mine[name], whole[name], rtol=1e-9, atol=1e-12)


def test_rank_0_alone_tells_and_writes(found: list[dict[str, Any]], folder: Path) -> None:
    per_run = 1 + STEPS + 2 * 2  # started; a line a step; evaluated and saved twice
    assert [result["heard"] for result in found] == [per_run * len(runs(folder)), 0]
    for name in runs(folder):
        assert len(metrics(folder / name)) == per_run
        assert json.loads((folder / name / "run.json").read_bytes())["ranks"] == 2


@pytest.mark.parametrize("name", ["lstm", "dropout"])
def test_a_signal_to_one_rank_stops_all_after_a_checkpoint(name: str, found: list[dict[str, Any]],
                                                           folder: Path) -> None:
    """Rank 1 was signalled at the second step; the run is resumed from where both stopped, to the same weights."""
    assert [result[f"{name} stopped"] for result in found] == ["Terminated", "Terminated"]
    started = [record["step"] for record in metrics(folder / f"{name}-resumed") if record["event"] == "started"]
    assert len(started) == 2
    assert HALFWAY - 1 <= started[1] < STEPS, "resumed from the checkpoint of the signal"
    for result in found:
        resumed, whole = result[f"{name} resumed"], result["weights"][name]
        assert all(torch.equal(resumed[key], whole[key]) for key in whole)


def test_a_run_goes_on_in_a_world_of_another_size(found: list[dict[str, Any]], alone: dict[str, dict[str, Tensor]],
                                                  folder: Path) -> None:
    """One process began it and two ended it; then two began it and one ends it, the carried rows with them."""
    assert gap(found[1]["grown"], alone["lstm"]) < 1e-9
    inexact = json.loads((folder / "grown" / "run.json").read_bytes())["inexact"]
    assert [entry["step"] for entry in inexact] == [HALFWAY]
    with pytest.raises(UnsupportedError, match=r"began with 2 ranks \(here 1\).*--allow-inexact"):
        train(runs(folder)["lstm"], folder / "shrunk", resume=True)
    shrunk = train(runs(folder)["lstm"], folder / "shrunk", resume=True, allow_inexact=True).model
    assert gap(weights(shrunk), alone["lstm"]) < 1e-9


def test_a_budget_in_seconds_is_settled_for_all_ranks(found: list[dict[str, Any]]) -> None:
    assert found[0]["timed"] == found[1]["timed"] >= 1


def test_an_error_is_told_by_one_rank(found: list[dict[str, Any]]) -> None:
    first, second = found
    assert first["odd"].startswith("ConfigError: ")
    assert "3 rows do not divide among 2 ranks. Choose a multiple of 2, such as 4" in first["odd"]
    assert "holds a run already" in first["stands"]
    assert "training.context: 10000000 on rank 1, and None on rank 0." in second["lost"], "the rank that failed"
    quiet = "another rank has failed, and reports why."
    assert [second["odd"], second["stands"], first["lost"]] == [
        f"FailedElsewhere: rank {rank}: {quiet}" for rank in (1, 1, 0)]


def test_nothing_is_written_for_a_batch_that_does_not_divide(found: list[dict[str, Any]], folder: Path) -> None:
    assert "do not divide" in found[0]["odd"]
    assert not (folder / "odd").exists()


@pytest.mark.parametrize(("model", "message"), [
    ({"kind": "ngram", "order": 2}, "is fitted by counting, which one process does, and 2 were started"),
    ({"kind": "decoder", "d_model": 8, "norm": "batchnorm", "blocks": [{"kind": "pre", "layers": ["mlp"]}]},
     "batch normalisation needs the statistics of the whole batch")])
def test_models_that_ranks_cannot_share_are_refused(model: dict[str, Any], message: str) -> None:
    run = parse_run({"model": model})
    assert any(message in problem for problem in rank_problems(run, build_model(run), 2, 2))


def test_one_gpu_is_not_given_to_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnsupportedError, match=r"'cuda:1' for 2 ranks.*Give cuda"):
        World.here("cuda:1")
    assert World.here("cuda").device == torch.device("cuda:1")


def test_a_rank_that_is_stopped_is_named_and_ends_the_others(tmp_path: Path) -> None:
    """It closes no connection, so the other one would wait for it in the next sum. What is saved stands."""
    (tmp_path / "text.txt").write_text("".join(f"line {i}: {i % 7}\n" for i in range(300)), encoding="utf-8")
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    first, second = ranks_of(silent, tmp_path, store)
    try:
        told = first.end(120)
    finally:
        second.send(signal.SIGKILL)
        second.end()
    assert told.returncode == 1
    last = tmp_path / f"silent/checkpoints/{HALFWAY:08d}"
    assert told.stderr == (f"error: rank 0: rank 1 has not answered for 4 seconds, as a process that is stopped or "
                           f"hangs does; the last whole checkpoint is {last}. End that process, then go on with "
                           "--resume.\n")
    assert load_checkpoint(last).facts["step"] == HALFWAY


def test_sigterm_to_torchrun_saves_once_and_is_told_once(folder: Path) -> None:
    """Through the command line: one console, one checkpoint, an exit code that is not zero."""
    config = runs(folder)["attention"].dump()
    config["training"]["steps"], config["report"]["eval_every"] = 10**6, 10**6
    (folder / "long.json").write_text(json.dumps(config), encoding="utf-8")
    process = start("-m", "weft", "train", str(folder / "long.json"), "--out", str(folder / "long"))
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert lines[1].startswith("step 1/1,000,000")
    assert process.returncode != 0
    assert errors.count("terminated\n") == 1, errors
    shown = [*lines, *rest.splitlines()]
    assert len({line.split("  ")[0] for line in shown}) == len(shown), "each line once"
    saved = [record["step"] for record in metrics(folder / "long") if record["event"] == "saved"]
    assert [f"{step:08d}" for step in saved] == [path.name for path in (folder / "long" / "checkpoints").iterdir()]
    assert len(saved) == 1
