"""Decoding speed of a Llama-shaped model: Weft, `transformers` `generate` and llama.cpp, greedily, the same weights and
prompts.

    python benchmarks/decoding.py                      the 30M-parameter model, three rounds
    python benchmarks/decoding.py --layers 12 --width 768 --heads 12 --kv-heads 12 --d-ff 2048 --vocabulary 32000 \\
        --new 96                                       125M parameters
    python benchmarks/decoding.py --layers 2 --new 16 --rounds 1

Each contender runs in a process of its own; a round runs all of them one after another, and medians are over the
rounds. What Weft's plain form is to llama.cpp, and a layout to plain, is timed in turns in one process, since the speed
of a machine's memory may change from one minute to the next. In float32 Weft and `transformers` must give the same
tokens. ``int8`` and ``int4`` are Weft's rewrites of all matrices with activations in bfloat16, and llama.cpp's q8_0 and
q4_0. llama.cpp takes part where `llama_cpp` is installed (`pip install --no-binary llama-cpp-python
llama-cpp-python==0.3.36`, some minutes). Results go to ``benchmarks/results/decoding.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from decoding_llama_cpp import write_files
from safetensors.torch import save_file
from training_weft import model_of, weights_of

from weft.ops.processor import processor_name

HERE = Path(__file__).parent
FLOATS, WHOLE = ("float32", "bfloat16"), ("int8", "int4")
FORMS = {"weft": ("plain", "compiled"), "transformers": ("eager", "compiled"), "llama.cpp": ("plain",)}
RIVALS = {"transformers": "eager", "llama.cpp": "plain"}
"""Each other library, and the form of it that Weft's rows are compared with."""
Job = dict[str, Any]
Row = dict[str, Any]


def jobs(shape: dict[str, int], options: argparse.Namespace) -> list[Job]:
    """Every contender, and the sweep over contexts."""
    same = {"shape": shape, "threads": options.threads, "prompt": options.prompt, "new": options.new,
            "repeats": options.repeats}
    llama = "llama.cpp" in options.libraries and importlib.util.find_spec("llama_cpp") is not None
    found = [{**same, "library": library, "form": form, "dtype": dtype, "batch": batch,
              "beside": "llama.cpp" if llama and (library, form) == ("weft", "plain") else None}
             for dtype in (*FLOATS, *WHOLE) for batch in options.batches for library, forms in FORMS.items()
             for form in forms if (form != "compiled" or (not options.eager and dtype in FLOATS))
             and (library != "llama.cpp" or llama)
             and (library != "transformers" or dtype in FLOATS)
             and library in options.libraries and dtype in options.dtypes]
    found += [{**same, "library": "weft", "form": "sweep", "dtype": dtype, "batch": 1}
              for dtype in FLOATS if "weft" in options.libraries and dtype in options.dtypes]
    return found


def name_of(job: Job) -> str:
    """Such as ``weft bfloat16 x8 compiled``."""
    return f"{job['library']} {job['dtype']} x{job['batch']} {job['form']}"


def run(job: Job, folder: Path) -> Row:
    """What one contender measured, or why it could not."""
    done = subprocess.run([sys.executable, str(HERE / "decoding_contender.py"), json.dumps(job), str(folder)],
                          capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": str(job["threads"])})
    if done.returncode < 0:
        return {"error": f"ended by the signal {signal.Signals(-done.returncode).name}"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    found: Row = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def summary(job: Job, rounds: list[Row]) -> Row:
    """Medians over the rounds."""
    row: Row = {"name": name_of(job), **{key: job[key] for key in ("library", "form", "dtype", "batch")}}
    errors = [found["error"] for found in rounds if "error" in found]
    if errors:
        return {**row, "error": errors[0]}
    if job["form"] == "sweep":
        contexts = rounds[0]["sweep"]
        return {**row, "sweep": {c: statistics.median(found["sweep"][c] for found in rounds) for c in contexts}}
    seconds = statistics.median(found["seconds"] for found in rounds)
    return {**row, "seconds": seconds, "tokens_per_second": job["batch"] * job["new"] / seconds,
            "first": statistics.median(found["first"] for found in rounds),
            "peak_bytes": max(found["peak_bytes"] for found in rounds), "tokens": rounds[0]["tokens"],
            "turns": {name: statistics.median(each["turns"][name] for each in rounds) for name in rounds[0]["turns"]}}


def compare(rows: list[Row]) -> list[str]:
    """Adds to Weft's rows their ratio to each other library, and to its plain form; gives the float32 rows whose tokens
    are others than those of `transformers`."""
    by = {(row["library"], row["form"], row["dtype"], row["batch"]): row for row in rows if "seconds" in row}
    wrong = []
    for (library, _, dtype, batch), row in by.items():
        rivals = {name: by.get((name, form, dtype, batch)) for name, form in (*RIVALS.items(), ("weft", "plain"))}
        if library == "weft":
            row["ratios"] = {name: other["seconds"] / row["seconds"] for name, other in rivals.items() if other}
            row["ratios"] |= row["turns"]
        same = rivals["transformers"]
        if library != "llama.cpp" and dtype == "float32" and same is not None and row["tokens"] != same["tokens"]:
            wrong.append(row["name"])
    return wrong


def table(rows: list[Row]) -> str:
    """The results as Markdown."""
    lines = ["| contender | weights | batch | tokens/s | against transformers, eager | against llama.cpp | "
             "against plain | peak MiB | first call, s |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        start = f"| {row['library']}, {row['form']} | {row['dtype']} | {row['batch']} |"
        if "error" in row:
            lines.append(f"{start} failed: {row['error'][:80]} | | | | | |")
        elif "seconds" in row:
            known = row.get("ratios", {})
            ratios = " | ".join(f"{known[name]:.2f}x" if name in known else "" for name in (*RIVALS, "weft"))
            lines.append(f"{start} {row['tokens_per_second']:.0f} | {ratios} | {row['peak_bytes'] / 2**20:.0f} | "
                         f"{row['first']:.1f} |")
    for row in rows:
        if "sweep" in row:
            steps = ", ".join(f"{context}: {1000 * each:.1f}" for context, each in row["sweep"].items())
            lines += ["", f"Milliseconds of a step by the tokens before it, {row['dtype']}: {steps}."]
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 8, "width": 512, "heads": 8, "kv-heads": 2, "d-ff": 1536, "vocabulary": 8192, "context": 512}
    runs = {"prompt": 64, "new": 256, "rounds": 3, "repeats": 3, "threads": torch.get_num_threads()}
    for name, value in (sizes | runs).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--libraries", nargs="+", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--dtypes", nargs="+", default=[*FLOATS, *WHOLE], choices=[*FLOATS, *WHOLE])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8], help="texts at once")
    parser.add_argument("--eager", action="store_true", help="leave out what is compiled")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    shape = {name: getattr(options, name) for name in ("layers", "width", "heads", "kv_heads", "d_ff", "vocabulary",
                                                       "context")}
    shape["batch"] = 8  # read by the weights' maker only
    before, todo = os.getloadavg()[0], jobs(shape, options)
    found: dict[str, list[Row]] = {name_of(job): [] for job in todo}
    with tempfile.TemporaryDirectory() as place:
        job = {"shape": shape, "dtype": "float32", "compile": False, "route": "default"}
        weights = weights_of(model_of(job), shape["layers"])
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, Path(place) / "weights.safetensors")
        if any(job["library"] == "llama.cpp" for job in todo):
            write_files(todo[0], weights, Path(place))
        for number in range(options.rounds):
            for job in todo:
                found[name_of(job)].append(run(job, Path(place)))
                told = found[name_of(job)][-1]
                print(number + 1, name_of(job), told.get("seconds", told.get("error", "done")), flush=True)
    rows = [summary(job, found[name_of(job)]) for job in todo]
    wrong = compare(rows)
    report = {"shape": shape, "prompt": options.prompt, "new": options.new, "rounds": options.rounds,
              "threads": options.threads, "processor": processor_name(), "torch": torch.__version__,
              "load_before": before, "load_after": os.getloadavg()[0],
              "rows": [{key: value for key, value in row.items() if key != "tokens"} for row in rows]}
    (options.out / "decoding.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "decoding.md").write_text(table(rows))
    print(table(rows))
    if wrong:
        sys.exit(f"other tokens than transformers in float32: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
