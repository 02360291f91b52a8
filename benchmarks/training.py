"""Training speed and memory of a Llama-shaped model: Weft, `transformers` and `litgpt`, at equal loss.

    python benchmarks/training.py                      the 30M-parameter model, three rounds, about an hour
    python benchmarks/training.py --layers 2 --steps 4 --rounds 1

Each contender runs in a process of its own; a round runs all of them one after another, so that a passing load meets
all alike, and medians are over the rounds. Results go to ``benchmarks/results/training.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from training_weft import model_of, run_of, stream_of, weights_of

from weft.analysis.matmul import matmul_rate
from weft.core.model import parameter_count
from weft.data import ShuffledBatches
from weft.ops.processor import processor_name
from weft.training.rates import model_flops_per_token

HERE = Path(__file__).parent
LIBRARIES = ("weft", "transformers", "litgpt")
LOSS_BOUND = {"float32": 1e-3, "bfloat16": 3e-2}
"""Largest difference of a loss from Weft's in float32: rounding in another order, or eight bits of mantissa."""
Job = dict[str, Any]
Row = dict[str, Any]


def jobs(shape: dict[str, int], threads: int, wanted: list[str]) -> list[Job]:
    """Every contender. Peers run on PyTorch's default route, and in float32 on oneDNN's too."""
    found = []
    for dtype in ("float32", "bfloat16"):
        for library in LIBRARIES:
            other = ["default", "onednn"] if dtype == "float32" else ["default"]
            for route in (["auto"] if library == "weft" else other):
                found += [{"library": library, "dtype": dtype, "route": route, "compile": fast, "threads": threads,
                           "shape": shape} for fast in (False, True)]
    return [job for job in found if not wanted or name_of(job) in wanted]


def name_of(job: Job) -> str:
    """Such as ``weft-float32-auto-compiled``."""
    return "-".join((job["library"], job["dtype"], job["route"], "compiled" if job["compile"] else "eager"))


def prepare(folder: Path, shape: dict[str, int], steps: int, text: int) -> None:
    """Initial weights, and batches of tokens that follow one another by a rule, most of the time; ``text`` is the seed
    of their draws."""
    job = {"shape": shape, "dtype": "float32", "compile": False, "route": "default"}
    save_file({name: tensor.contiguous() for name, tensor in weights_of(model_of(job), shape["layers"]).items()},
              folder / "weights.safetensors")
    generator = torch.Generator().manual_seed(text)
    count = steps * shape["batch"] * shape["context"] + 1
    tokens = (torch.rand(count, generator=generator).pow(4) * shape["vocabulary"]).long()
    follows = torch.rand(count, generator=generator) < 0.5
    tokens[1:] = torch.where(follows[1:], (tokens[:-1] * 7 + 3) % shape["vocabulary"], tokens[1:])
    source = ShuffledBatches(stream_of(tokens, shape["vocabulary"]), rows=shape["batch"], length=shape["context"],
                             seed=run_of(job, steps).data.order_seed)
    made = [source.batch(step) for step in range(steps)]
    save_file({"tokens": tokens, **{name: torch.stack([torch.from_numpy(getattr(batch, name)) for batch in made])
                                    for name in ("inputs", "targets")}}, folder / "batches.safetensors")


def run(job: Job, folder: Path) -> Row:
    """What one contender measured, or why it could not."""
    done = subprocess.run([sys.executable, str(HERE / "training_contender.py"), json.dumps(job), str(folder)],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": str(job["threads"])})
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def summarise(job: Job, rounds: list[Row], references: list[list[float] | None]) -> Row:
    """Medians over the rounds. ``loss_errors`` are the largest differences from the losses of the same round's
    reference, whose text is another one in each; ``loss_error`` is their mean, and None without a reference."""
    good = [row for row in rounds if "error" not in row]
    head = {"name": name_of(job), **{key: job[key] for key in ("library", "dtype", "route", "compile")}}
    if not good:
        return {**head, "error": rounds[-1]["error"]}
    errors = [max(abs(a - b) for a, b in zip(row["losses"], exact, strict=True))
              for row, exact in zip(rounds, references, strict=True) if exact is not None and "error" not in row]
    error = statistics.fmean(errors) if errors else None
    middle = {key: statistics.median(row[key] for row in good)
              for key in ("tokens_per_second", "peak_bytes", "first_step_seconds")}
    return {**head, **middle, "loss_errors": errors, "loss_error": error,
            "loss_equal": None if error is None else max(errors) <= LOSS_BOUND[job["dtype"]],
            "rounds": [row["tokens_per_second"] for row in good], "losses": good[0]["losses"]}


def compare(rows: list[Row]) -> list[Row]:
    """Weft's best against the fastest peer, by dtype and by the peers' route."""
    found = []
    good = [row for row in rows if "error" not in row]
    for dtype in ("float32", "bfloat16"):
        own = [row for row in good if row["library"] == "weft" and row["dtype"] == dtype]
        for route in ("default", "onednn"):
            peers = [row for row in good if row["library"] != "weft" and (row["dtype"], row["route"]) == (dtype, route)]
            if own and peers:
                best, peer = (max(some, key=lambda row: row["tokens_per_second"]) for some in (own, peers))
                found.append({"dtype": dtype, "peers_route": route, "weft": best["name"], "peer": peer["name"],
                              "speed": best["tokens_per_second"] / peer["tokens_per_second"],
                              "memory": best["peak_bytes"] / peer["peak_bytes"]})
    return found


def roofline(threads: int) -> dict[str, float]:
    """Operations a second of the best route for each dtype."""
    torch.set_num_threads(threads)
    return {"float32": matmul_rate(torch.float32), "bfloat16": matmul_rate(torch.bfloat16)}


def markdown(report: dict[str, Any]) -> str:
    """The report as two tables."""
    lines = [f"# Training {report['parameters'] / 1e6:.1f}M parameters", "",
             f"{report['processor']}, {report['threads']} threads, torch {report['torch']}; load before "
             f"{report['load'][0]:.1f}, after {report['load'][1]:.1f}. {report['shape']}", "",
             "| contender | tokens/s | of the matmul roofline | peak memory | first step | loss differs by |",
             "| --- | --- | --- | --- | --- | --- |"]
    for row in report["rows"]:
        if "error" in row:
            lines.append(f"| {row['name']} | failed: {row['error']} | | | | |")
            continue
        share = row["tokens_per_second"] * report["flops_per_token"] / report["roofline"][row["dtype"]]
        lines.append(f"| {row['name']} | {row['tokens_per_second']:.0f} | {share:.0%} | "
                     f"{row['peak_bytes'] / 1e9:.2f} GB | {row['first_step_seconds']:.1f} s | {_error(row)} |")
    lines += ["", "| Weft's fastest against | speed | memory |", "| --- | --- | --- |"]
    lines += [f"| {row['peer']} (by {row['weft']}) | {row['speed']:.2f}x | {row['memory']:.2f}x |"
              for row in report["comparison"]]
    return "\n".join(lines) + "\n"


def _error(row: Row) -> str:
    if row["loss_error"] is None:
        return "not known without Weft in float32"
    spread = f", {min(row['loss_errors']):.1e} to {max(row['loss_errors']):.1e}" if len(row["loss_errors"]) > 1 else ""
    return f"{row['loss_error']:.1e}{spread}{'' if row['loss_equal'] else ' (not equal)'}"


def measure(options: argparse.Namespace, shape: dict[str, int], folder: Path) -> tuple[list[Row], dict[str, float]]:
    """All rounds of all contenders, and the median of the rooflines measured before each round and after the last."""
    contenders = jobs(shape, options.threads, options.only)
    rounds: dict[str, list[Row]] = {name_of(job): [] for job in contenders}
    roofs = []
    for turn in range(options.rounds):
        prepare(folder, shape, options.steps + 1, turn)
        roofs.append(roofline(options.threads))
        for job in contenders:
            found = run(job, folder)
            rounds[name_of(job)].append(found)
            told = found.get("error") or f"{found['tokens_per_second']:.0f} tokens/s"
            print(f"round {turn + 1}  {name_of(job)}  {told}", flush=True)
    names = [name_of(job) for job in contenders if (job["library"], job["dtype"]) == ("weft", "float32")]
    references = [next((rounds[name][turn]["losses"] for name in names if "error" not in rounds[name][turn]), None)
                  for turn in range(options.rounds)]
    roofs.append(roofline(options.threads))
    return ([summarise(job, rounds[name_of(job)], references) for job in contenders],
            {dtype: statistics.median(roof[dtype] for roof in roofs) for dtype in roofs[0]})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 8), ("width", 512), ("heads", 8), ("kv-heads", 2), ("d-ff", 1536),
                        ("vocabulary", 8192), ("context", 512), ("batch", 8), ("steps", 8), ("rounds", 3),
                        ("threads", os.cpu_count() or 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", nargs="*", default=[], help="names of contenders, such as weft-float32-auto-eager")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "training")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    shape = {name: getattr(options, name) for name in
             ("layers", "width", "heads", "kv_heads", "d_ff", "vocabulary", "context", "batch")}
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        rows, roof = measure(options, shape, Path(folder))
    model = model_of({"shape": shape, "dtype": "float32", "compile": False, "route": "default"})
    report = {"shape": shape, "parameters": parameter_count(model), "processor": processor_name(),
              "threads": options.threads, "torch": torch.__version__, "load": [before, os.getloadavg()[0]],
              "flops_per_token": model_flops_per_token(model, shape["context"]),
              "roofline": roof, "comparison": compare(rows), "rows": rows}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
