"""Runs of every kind of model, and processes that train and can be killed.

Run as a program it imports everything once and then forks one process for each run it is told to train, so that
killing a run costs no start of Python.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, final

from weft.training import RunConfig, parse_run, train

MLP: dict[str, Any] = {"kind": "mlp", "d_ff": 16}
HEADS: dict[str, Any] = {"kind": "attention", "n_heads": 2, "position": "rope", "scores": {"dropout": 0.1}}


def decoder(*layers: Any) -> dict[str, Any]:
    """A decoder with dropout."""
    return {"kind": "decoder", "d_model": 12, "context": 24, "norm": "layernorm", "embedding": {"dropout": 0.1},
            "blocks": [{"kind": "pre", "layers": list(layers), "dropout": 0.1}]}


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "attention": (decoder(HEADS, MLP), {"accumulation": 2}),
    "attention, bfloat16": (decoder(HEADS, MLP), {"accumulation": 2, "dtype": "bfloat16"}),
    "lstm, carried state": (decoder("lstm"), {"carry_state": True, "accumulation": 2}),
    "gru, bfloat16, carried state": (decoder("gru"), {"carry_state": True, "dtype": "bfloat16"}),
    "elman, sgd with momentum": (decoder("elman"), {"optimizer": {"kind": "sgd", "lr": 0.1, "momentum": 0.9}}),
    "s4d": (decoder("s4d", MLP), {"accumulation": 2}),
    "gated convolution": (decoder({"kind": "gated_convolution", "d_conv": 3}), {"accumulation": 3}),
    "mixture of experts": (decoder(HEADS, {"kind": "moe", "n_experts": 3, "top_k": 2, "expert": MLP}),
                           {"accumulation": 2}),
    "channel mix": (decoder(HEADS, "channel_mix"), {"accumulation": 2}),
    "feed-forward": ({"kind": "feedforward", "context": 24, "order": 4, "d_embedding": 6, "d_hidden": 10,
                      "dropout": 0.1}, {"accumulation": 2}),
}


def write_documents(folder: Path) -> Path:
    """Documents of 4 to 15 characters, several in every window."""
    text, length = folder / "text", random.Random(0)
    text.mkdir()
    for number in range(200):
        (text / f"{number:03d}.txt").write_text("".join(length.choices("abcde \n", k=length.randint(4, 15))))
    return text


def run_of(name: str, text: Path, *, steps: int = 12, **report: Any) -> RunConfig:
    """The run of that kind."""
    model, training = KINDS[name]
    return parse_run({"model": model, "data": {"path": str(text)}, "seed": 3,
                      "training": {"steps": steps, "batch_size": 4, "compute": {"matmul": "default"}, **training},
                      "report": {"log_every": 1, "eval_every": 4, "eval_batches": 1, "checkpoint_every": 2, **report}})


def last_bytes(out: Path) -> dict[str, bytes]:
    """Weights and optimiser of the last checkpoint, as they stand in their files."""
    last = max(out.glob("checkpoints/[0-9]*"))
    return {name: (last / name).read_bytes() for name in ("model.safetensors", "training.safetensors")} | {
        "step": last.name.encode()}


def losses(out: Path) -> list[tuple[int, str, float]]:
    """Step, event and loss of every line of the metrics that has one."""
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(record["step"], record["event"], record.get("loss", record.get("validation", {}).get("loss")))
            for record in records if record["event"] in ("progress", "validated")]


@final
class Trainers:
    """Processes that train, forked by one that has imported everything."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
        self._server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=environment)

    def start(self, run: RunConfig, out: Path) -> int:
        """Train or resume; the number of the process."""
        return int(self._ask({"run": run.dump(), "out": str(out), "resume": (out / ".lock").exists()}))

    def end(self) -> int:
        """Wait for it; its exit code, negative for a signal."""
        return int(self._ask({}))

    def close(self) -> None:
        """End the server too."""
        self._server.kill()
        self._server.communicate()

    def _ask(self, request: dict[str, Any]) -> str:
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return self._server.stdout.readline()


def serve() -> None:
    """Fork for every request to train, and tell how the process ended when asked."""
    warm_up()
    gc.freeze()  # a fork that searched through what stays would copy its memory
    child = 0
    for line in sys.stdin:
        request = json.loads(line)
        if not request:
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        child = os.fork()
        if child == 0:
            code = 1
            try:
                train(parse_run(request["run"]), request["out"], resume=request["resume"])
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)


def warm_up() -> None:
    """What torch imports in a first step takes seconds; done here, every fork has it."""
    with tempfile.TemporaryDirectory() as folder:
        train(run_of("attention", write_documents(Path(folder)), steps=1), Path(folder) / "run")


def timed_end(trainers: Trainers, run: RunConfig, out: Path) -> float:
    """Train or resume to the end; its seconds."""
    begun = time.perf_counter()
    trainers.start(run, out)
    assert trainers.end() == 0
    return time.perf_counter() - begun


if __name__ == "__main__":
    serve()
