"""Kill `weft train` at random moments and compare what comes out with runs that nobody disturbed.

    python recipes/resume/kill.py --kills 110

For every kind of model one run is left alone. Then the same run is started again and again: each process gets SIGKILL
at a random moment, and the next goes on with --resume. Once a kind has had its kills, the run is allowed to end, and
the SHA-256 sums of its last weights and of its optimiser's state are compared with those of the undisturbed run.

One moment in four is drawn from the whole time after the lock on the folder, the others lie within four steps after a
step that is drawn from those that are left. Processes are forked by this one, which has imported everything and
trained once; with --fresh each is a new interpreter.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

import weft
from weft.cli.main import app

STEPS = 40
PACKED_FROM = (argparse, subprocess, tempfile)
"""Modules of the standard library whose source is cut into documents shorter than a window."""


def decoder(*layers: Any, **options: Any) -> dict[str, Any]:
    """A decoder with dropout on the embeddings and on every residual branch."""
    return {"kind": "decoder", "d_model": 32, "context": 64, "norm": "layernorm",
            "embedding": {"dropout": 0.1, "std": 0.02},
            "blocks": [{"kind": "pre", "layers": list(layers), "dropout": 0.1}], **options}


ATTENTION = {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope"}
MLP = {"kind": "mlp", "d_ff": 64}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "attention": (decoder({**ATTENTION, "scores": {"dropout": 0.1}}, MLP), {"accumulation": 2}),
    "attention, bfloat16": (decoder(ATTENTION, MLP), {"accumulation": 2, "dtype": "bfloat16"}),
    "attention, checkpointed activations": (decoder(ATTENTION, MLP), {"compute": {"checkpoint_activations": True}}),
    "lstm, carried state": (decoder("lstm"), {"carry_state": True, "accumulation": 2}),
    "gru, bfloat16, carried state": (decoder("gru"), {"carry_state": True, "dtype": "bfloat16"}),
    "s4d": (decoder("s4d", MLP), {"accumulation": 2}),
    "gated convolution": (decoder({"kind": "gated_convolution", "d_conv": 6, "dilation": 2}), {"accumulation": 3}),
    "mixture of experts": (decoder(ATTENTION, {"kind": "moe", "n_experts": 4, "top_k": 2, "expert": MLP}),
                           {"accumulation": 2}),
    "channel mix": (decoder(ATTENTION, "channel_mix"), {"accumulation": 2}),
    "feed-forward": ({"kind": "feedforward", "context": 64, "order": 5, "d_embedding": 16, "d_hidden": 48,
                      "std": 0.1, "dropout": 0.1}, {"accumulation": 2}),
    "sgd with momentum": (decoder(ATTENTION, MLP), {"optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}),
}


def write_documents(folder: Path) -> None:
    """Documents of 20 to 119 characters, several in every window."""
    folder.mkdir()
    text, length = "".join(inspect.getsource(module) for module in PACKED_FROM), random.Random(0)
    place = 0
    for number in range(600):
        size = length.randint(20, 119)
        (folder / f"{number:04d}.txt").write_text(text[place : place + size], encoding="utf-8")
        place += size


def write_config(path: Path, name: str, data: Path) -> None:
    """The run of that name."""
    model, training = RUNS[name]
    # The choice between matrix products is recorded when a run begins; two runs, by name, begin with the same one.
    compute = {"matmul": "default", **training.get("compute", {})}
    run = {"model": model, "data": {"path": str(data)}, "seed": 3,
           "training": {"steps": STEPS, "batch_size": 8, **training, "compute": compute},
           "report": {"log_every": 1, "eval_every": 10, "eval_batches": 2, "checkpoint_every": 2, "keep": 1}}
    path.write_text(yaml.safe_dump(run), encoding="utf-8")


class Training(NamedTuple):
    """A process that trains, and where it tells of errors."""

    pid: int
    errors: Path

    def end(self) -> int:
        """Wait for it; its exit code, negative for a signal."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if code not in (0, -signal.SIGKILL):
            raise SystemExit(self.errors.read_text())
        return code


def start(config: Path, out: Path, *, fresh: bool) -> Training:
    """`weft train`, as a process of its own; one that goes on where there is something to go on with."""
    arguments = ["train", str(config), "--out", str(out), "--threads", "1"]
    arguments += ["--resume"] if (out / ".lock").exists() else []
    errors = out.with_suffix(".err")
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if fresh:
                os.execv(sys.executable, [sys.executable, "-m", "weft", *arguments])
            app(arguments)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        finally:
            os._exit(1)
    wait_for_lock(pid, out)
    return Training(pid, errors)


def wait_for_lock(pid: int, out: Path) -> None:
    """Until the process holds its folder, or has ended."""
    mark = f"{pid}\n".encode()
    while not has_ended(pid) and not ((out / ".lock").exists() and (out / ".lock").read_bytes() == mark):
        time.sleep(0.001)


def has_ended(pid: int) -> bool:
    """Whether the process has, without taking note of it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def last_step(out: Path) -> int:
    """The last step that the metrics tell of."""
    metrics = out / "metrics.jsonl"
    lines = metrics.read_text(errors="replace").splitlines() if metrics.exists() else []
    return max((int(json.loads(line)["step"]) for line in lines if line.endswith("}")), default=0)


def finish(config: Path, out: Path, *, fresh: bool) -> float:
    """Let a run end; seconds from the lock on."""
    training, begun = start(config, out, fresh=fresh), time.perf_counter()
    if training.end():
        raise SystemExit(f"{out}: killed by somebody else")
    return time.perf_counter() - begun


def kill(config: Path, out: Path, seconds: float, chance: random.Random, *, fresh: bool) -> dict[str, Any] | None:
    """Start or resume, kill, and tell how far it had come; None when the run ended before."""
    training, before = start(config, out, fresh=fresh), last_step(out)
    if chance.random() < 0.25:
        time.sleep(chance.uniform(0, seconds))
    else:
        aim = chance.randint(min(before, STEPS - 1), STEPS - 1)
        while last_step(out) < aim and not has_ended(training.pid):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 4 * seconds / STEPS))
    os.kill(training.pid, signal.SIGKILL)
    if training.end() == 0:
        return None
    return {"step": last_step(out), "writing": any(out.rglob(".*.draft"))}


def sums(out: Path) -> dict[str, str]:
    """SHA-256 of the last weights and of the optimiser's state and the carried one."""
    last = out / "checkpoints" / f"{STEPS:08d}"
    return {name: hashlib.sha256((last / name).read_bytes()).hexdigest()
            for name in ("model.safetensors", "training.safetensors")}


def disturbed(name: str, folder: Path, data: Path, kills: int, chance: random.Random, *,
              fresh: bool) -> dict[str, Any]:
    """Kill one kind of model ``kills`` times, in as many runs as it takes, and compare every one that ends."""
    config = folder / "run.yaml"
    write_config(config, name, data)
    seconds = finish(config, folder / "whole", fresh=fresh)
    wanted, number = sums(folder / "whole"), 0
    done: list[dict[str, Any]] = []
    ends: list[bool] = []
    while len(done) < kills or not ends:
        out = folder / f"killed-{number}"
        killed = kill(config, out, seconds, chance, fresh=fresh) if len(done) < kills else None
        if killed is not None:
            done.append({"run": number, **killed})
            continue
        finish(config, out, fresh=fresh)  # a run that has ended already resumes to itself
        ends.append(sums(out) == wanted)
        number += 1
    print(f"{name}: {len(done)} kills, {sum(done_at['writing'] for done_at in done)} of them while a file was being "
          f"written; {sum(ends)} of {len(ends)} runs ended in the same bytes", flush=True)
    return {"seconds": round(seconds, 2), "kills": done, "runs": len(ends), "same": sum(ends), "sha256": wanted}


def main() -> None:
    """Run every kind, and write the result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kills", type=int, default=110, help="in all, spread over the kinds of models")
    options.add_argument("--seed", type=int, default=0, help="of the moments")
    options.add_argument("--fresh", action="store_true", help="start a new interpreter for every process")
    options.add_argument("--only", nargs="*", default=list(RUNS), help="names of runs")
    options.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    chosen = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    chance, begun, found = random.Random(chosen.seed), time.perf_counter(), {}
    with tempfile.TemporaryDirectory() as temporary:
        write_documents(Path(temporary) / "text")
        write_config(Path(temporary) / "first.yaml", "attention", Path(temporary) / "text")
        weft.train(Path(temporary) / "first.yaml", ["training.steps=1"], out=Path(temporary) / "first")
        for index, name in enumerate(chosen.only):
            folder = Path(temporary) / f"{index}"
            folder.mkdir()
            share = chosen.kills * (index + 1) // len(chosen.only) - chosen.kills * index // len(chosen.only)
            found[name] = disturbed(name, folder, Path(temporary) / "text", share, chance,
                                    fresh=chosen.fresh)
    kills = [kill for kind in found.values() for kill in kind["kills"]]
    result = {"kills": len(kills), "while_writing": sum(kill["writing"] for kill in kills),
              **{total: sum(kind[total] for kind in found.values()) for total in ("runs", "same")},
              "seconds": round(time.perf_counter() - begun), "fresh": chosen.fresh, "seed": chosen.seed,
              "weft": weft.__version__, "torch": torch.__version__, "python": platform.python_version(),
              "machine": platform.machine(), "kinds": found}
    chosen.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{result['kills']} kills, {result['same']} of {result['runs']} runs ended in the same bytes")
    if result["same"] != result["runs"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
