"""How far bfloat16 moves the losses of training: each contender of `training.py` beside Weft in float32, on many texts.

    python benchmarks/training_errors.py               # some ten minutes of one core; nothing is timed
    python benchmarks/training_errors.py --texts 3 --layers 2

`training.py` has a text for each of its rounds, and from one text to the next the error varies by more than the
contenders do. Here each contender is one process, which trains the same model from the same weights on each text in
turn. The error of a text is the largest difference of a loss over its steps. Results go to
``benchmarks/results/training_errors.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from training_contender import Step, peer
from training_weft import trainer_on

from training import Job, jobs, name_of, prepare
from weft.ops.processor import processor_name

FILE = Path(__file__).parent / "results" / "training_errors.json"
REFERENCE = "weft-float32-auto-eager"


def losses(job: Job, folder: Path) -> list[float]:
    """Those of a contender's steps on the text in a folder."""
    weights, batches = load_file(folder / "weights.safetensors"), load_file(folder / "batches.safetensors")
    step: Step
    if job["library"] == "weft":
        trainer = trainer_on(job, weights, batches)

        def step(_: int) -> float:
            return trainer.advance().sums.loss
    else:
        step = peer(job, weights, batches)
    return [step(index) for index in range(len(batches["inputs"]))]


def measured(job: Job, folders: list[Path]) -> list[list[float]]:
    """The losses of every text, from one process."""
    done = subprocess.run([sys.executable, __file__, "--contender", json.dumps(job), *map(str, folders)],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": str(job["threads"])})
    if done.returncode:
        raise SystemExit(f"{name_of(job)} failed:\n{done.stderr}")
    found: list[list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(name: str, found: list[list[float]], exact: list[list[float]]) -> dict[str, Any]:
    """The mean of the texts' errors, and the standard error of that mean."""
    errors = [max(abs(a - b) for a, b in zip(mine, theirs, strict=True))
              for mine, theirs in zip(found, exact, strict=True)]
    spread = statistics.stdev(errors) / math.sqrt(len(errors)) if len(errors) > 1 else None
    return {"name": name, "mean": statistics.fmean(errors), "standard_error": spread,
            "median": statistics.median(errors), "errors": errors}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 8), ("width", 512), ("heads", 8), ("kv-heads", 2), ("d-ff", 1536),
                        ("vocabulary", 8192), ("context", 512), ("batch", 2), ("steps", 7), ("texts", 12),
                        ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path, default=FILE)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    shape = {name: getattr(options, name) for name in
             ("layers", "width", "heads", "kv_heads", "d_ff", "vocabulary", "context", "batch")}
    contenders = {name_of(job): job for job in jobs(shape, options.threads, [])
                  if job["dtype"] == "bfloat16" or name_of(job) == REFERENCE}
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place) / str(text) for text in range(options.texts)]
        for text, folder in enumerate(folders):
            folder.mkdir()
            prepare(folder, shape, options.steps, text)
        exact = measured(contenders.pop(REFERENCE), folders)
        rows = []
        for name, job in contenders.items():
            rows.append(summary(name, measured(job, folders), exact))
            print(f"{name}: {rows[-1]['mean']:.1e} +- {rows[-1]['standard_error'] or 0:.1e}", flush=True)
    report = {"shape": shape, "steps": options.steps, "processor": processor_name(), "threads": options.threads,
              "torch": torch.__version__, "rows": rows}
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contender"]:
        given = json.loads(sys.argv[2])
        torch.set_num_threads(given["threads"])
        print(json.dumps([losses(given, Path(each)) for each in sys.argv[3:]]))
    else:
        main()
