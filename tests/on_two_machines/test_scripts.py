"""The scripts of examples/cluster, run as two machines would: each starts a torchrun of its own on this one, and they
meet at a port. Slurm's two commands are stood in for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weft.checkpoints.load import load_checkpoint
from weft.checkpoints.locate import find_checkpoint

SCRIPTS = Path(__file__).parents[2] / "examples/cluster"
SRUN = """#!/bin/sh
# srun: the command on every one of two nodes at once; fails if one does.
"$@" & first=$!
"$@" & second=$!
wait $first && wait $second
"""
CONFIG = """
model: {kind: decoder, d_model: 8, context: 8, blocks: [{kind: pre, layers: [{kind: attention, n_heads: 2}, mlp]}]}
data: {path: TEXT}
training: {steps: STEPS, batch_size: 4, dtype: float64, compute: {matmul: default},
           schedule: {kind: constant, warmup: 0.0}}
report: {log_every: 1, eval_every: 3, eval_batches: 1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a configuration, a text, and commands that find this Python."""
    (tmp_path / "text.txt").write_text("".join(f"line {i} of {i * i % 7}\n" for i in range(300)))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho localhost\n"), (
            "torchrun", f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'),
            ("python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path


def configured(folder: Path, steps: int) -> str:
    text = CONFIG.replace("TEXT", str(folder / "text.txt")).replace("STEPS", str(steps))
    (folder / "run.yaml").write_text(text)
    return str(folder / "run.yaml")


def started(folder: Path, script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
                   "DEVICE": "cpu", **variables}
    return subprocess.Popen(["sh", str(SCRIPTS / script), *arguments], cwd=folder, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[str]) -> str:
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("localhost", 0))
        return int(each.getsockname()[1])


def losses(run: Path) -> list[float]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["event"] == "progress"]


def alone(folder: Path, config: str) -> list[float]:
    """The losses of one process."""
    subprocess.run([sys.executable, "-m", "weft", "train", config, "--out", str(folder / "alone")], check=True,
                   capture_output=True, cwd=folder)
    return losses(folder / "alone")


@pytest.mark.parametrize("mesh", ["training.mesh.shard=2", "training.mesh.tensor=2"])
def test_two_machines_meet_and_take_the_course_of_one_process(folder: Path, mesh: str) -> None:
    config, out = configured(folder, 3), str(folder / "together")
    here: dict[str, Any] = {"MACHINES": "2", "HEAD": f"localhost:{free_port()}", "PROCESSES": "1"}
    both = [started(folder, "two_machines.sh", config, out, mesh, **here) for _ in range(2)]
    outputs = [ended(each) for each in both]
    assert sum("step 3/3" in output for output in outputs) == 1, "one of them prints"
    assert losses(folder / "together") == pytest.approx(alone(folder, config), rel=1e-10)
    load_checkpoint(find_checkpoint(folder / "together"))


def test_slurm_s_script_starts_on_every_node_and_goes_on_when_it_is_queued_again(folder: Path) -> None:
    out = str(folder / "together")
    slurm = {"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_NODELIST": "two", "SLURM_JOB_ID": "7"}
    for steps in (3, 6):
        config = configured(folder, steps)
        more = [] if steps == 3 else ["training.steps=6"]
        ended(started(folder, "slurm.sh", config, out, "training.mesh.shard=2", *more, **slurm,
                      PORT=str(free_port())))
    assert losses(folder / "together") == pytest.approx(alone(folder, config), rel=1e-10)
