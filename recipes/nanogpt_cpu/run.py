"""nanoGPT's CPU recipe, and its speed beside a plain loop with `transformers`:

    python recipes/nanogpt_cpu/run.py input.txt                 trains, evaluates, measures the speed
    python recipes/nanogpt_cpu/run.py input.txt --only speed    one part alone; the other keeps its last result

The first nine tenths of the text are trained on and the rest is held out. The run goes into ``runs/nanogpt_cpu``, what
was found into ``result.json`` beside this file, from which the tables of the README are made.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch

from weft import api
from weft.core.model import parameter_count
from weft.disk.atomic import write_file
from weft.training import TrainResult, print_event
from weft.training.compute import processor_name

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
CONFIG, RESULT, README = HERE / "gpt.yaml", HERE / "result.json", HERE / "README.md"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->\n"
PARTS = ("training", "speed")
CONTENDERS = ("weft", "transformers", "transformers, fused AdamW")
EVERY = 50
"""Steps of an interval; the first of a process is its warm-up and does not count."""
WINDOWS = 2400
"""Of nanoGPT's own estimate: 200 batches of 12."""
Row = dict[str, Any]


def split(text: Path, folder: Path) -> list[str]:
    """Write the two parts of the text, cut where nanoGPT cuts, and name them to the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = text.read_text(encoding="utf-8")
    border = int(len(whole) * 0.9)
    paths = {"path": (folder / "train.txt", whole[:border]),
             "validation_path": (folder / "validation.txt", whole[border:])}
    for path, part in paths.values():
        write_file(path, part)
    return [f"data.{key}={path}" for key, (path, _) in paths.items()]


def train(overrides: list[str], out: Path) -> Row:
    """Train the model, or go on, and evaluate it."""
    found = api.train(CONFIG, overrides, out=out, resume=(out / "run.json").exists(), on_event=print_event)
    whole = api.evaluate(found.checkpoint)
    return {"numbers": parameter_count(found.model), "steps": found.steps, "seconds": found.seconds,
            "loss": whole.loss, "tokens": whole.tokens, "protocol": whole.protocol.describe(),
            "random_windows": random_windows(found, Path(overrides[1].partition("=")[2]))}


def random_windows(found: TrainResult, text: Path) -> dict[str, float]:
    """nanoGPT's protocol: windows drawn at random, each from an empty state, all their characters counted alike."""
    tokens = torch.tensor(found.tokenizer.encode(text.read_text(encoding="utf-8")))
    context, model = found.config.context, found.model
    starts = torch.randint(len(tokens) - context, (WINDOWS, 1), generator=torch.Generator().manual_seed(0))
    windows = tokens[starts + torch.arange(context + 1)]
    with torch.inference_mode():
        losses = torch.cat([-model.readout.log_prob(model.hidden(rows[:, :-1]).y, rows[:, 1:]).mean(1)
                            for rows in windows.split(found.config.training.batch_size)])
    return {"windows": WINDOWS, "loss": float(losses.mean()), "error": float(losses.std()) / math.sqrt(WINDOWS)}


def speed(overrides: list[str], *, steps: int, rounds: int, threads: int) -> Row:
    """All contenders in turns, forwards and backwards, each time in processes of their own."""
    changes = [*overrides, f"training.steps={EVERY + steps}"]
    turns: dict[str, list[Row]] = {name: [] for name in CONTENDERS}
    load = os.getloadavg()[0]
    for turn in range(rounds):
        for name in CONTENDERS if turn % 2 == 0 else CONTENDERS[::-1]:
            turns[name].append(contend(name, changes, threads))
            print(f"round {turn + 1}: {name} {1e3 * step_seconds(turns[name][-1]):.1f} ms/step", flush=True)
    paces = {name: [step_seconds(row) for row in found] for name, found in turns.items()}
    middle = {name: statistics.median(each) for name, each in paces.items()}
    rival = min(CONTENDERS[1:], key=middle.__getitem__)
    rows = {name: {"step_seconds": middle[name], "rounds": paces[name], "loss_error": loss_error(found[0],
                   turns["weft"][0])} for name, found in turns.items()}
    return {"steps": steps, "rows": rows, "rival": rival, "load_before": load, "ratio": middle[rival] / middle["weft"]}


def contend(name: str, overrides: list[str], threads: int) -> Row:
    """What `contender.py` measures."""
    job = {"name": name, "config": str(CONFIG), "overrides": overrides, "every": EVERY, "threads": threads}
    done = subprocess.run([sys.executable, str(HERE / "contender.py"), json.dumps(job)], stdout=subprocess.PIPE,
                          text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def step_seconds(row: Row) -> float:
    """Median over the intervals after the warm-up."""
    seconds: list[float] = row["seconds"]
    return statistics.median(seconds[1:]) / EVERY


def loss_error(row: Row, reference: Row) -> float:
    """Largest difference of an interval's mean loss."""
    found: list[float] = [abs(a - b) for a, b in zip(row["losses"], reference["losses"], strict=True)]
    return max(found)


def table(results: Mapping[str, Row]) -> str:
    """What was found, as Markdown."""
    parts = [part(results[name]) for name, part in (("training", training_table), ("speed", speed_table))
             if name in results]
    return "\n\n".join(parts) + "\n"


def training_table(found: Row) -> str:
    """The losses, in nats per character."""
    drawn = found["random_windows"]
    return "\n".join([
        "| validation loss, nats per character | found | published |", "| --- | ---: | ---: |",
        f"| all {found['tokens']:,} tokens, in windows of 64 | {found['loss']:.4f} | |",
        f"| nanoGPT's way: {drawn['windows']:,} windows drawn at random | {drawn['loss']:.3f} ± {drawn['error']:.3f} | "
        "1.88 |", "",
        f"{found['numbers']:,} numbers, {found['steps']:,} steps. {machine(found)}"])


def speed_table(found: Row) -> str:
    """Seconds a step, and whether they differ from the fastest rival's."""
    lines = ["| contender | ms a step, median | rounds | loss differs by |", "| --- | ---: | --- | ---: |"]
    lines += [f"| {name} | {1e3 * row['step_seconds']:.1f} | {', '.join(f'{1e3 * each:.1f}' for each in row['rounds'])}"
              f" | {row['loss_error']:.0e} |" for name, row in found["rows"].items()]
    return "\n".join([*lines, "", f"**{verdict(found)}** {machine(found)} Load before: {found['load_before']:.1f}."])


def verdict(found: Row) -> str:
    """Whether every round of one is faster than every round of the other, in words; a ratio is told only then."""
    mine, theirs = (found["rows"][name]["rounds"] for name in ("weft", found["rival"]))
    if min(mine) <= max(theirs) and min(theirs) <= max(mine):
        took = ", ".join(f"{1e3 * min(each):.1f} to {1e3 * max(each):.1f} ms" for each in (mine, theirs))
        return f"Not told apart from {found['rival']} in speed: rounds of {took}."
    return f"{found['ratio']:.2f} times the speed of {found['rival']}."


def machine(found: Row) -> str:
    """When and on what."""
    return f"{found['date']}, {found['processor']}, {found['threads']} threads, torch {found['torch']}."


def keep(part: str, found: Row, threads: int) -> None:
    """Write a part's result and the README's tables."""
    here = {"date": date.today().isoformat(), "processor": processor_name(), "torch": torch.__version__,
            "threads": threads}
    results = {**(json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}), part: {**found, **here}}
    write_file(RESULT, json.dumps(results, indent=1, sort_keys=True) + "\n")
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    write_file(README, f"{before}{BEGIN}{table(results)}{END}{rest.partition(END)[2]}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("text", type=Path, help="tinyshakespeare, as one file")
    options.add_argument("--only", choices=PARTS, help="this part alone")
    options.add_argument("--runs", type=Path, default=ROOT / "runs/nanogpt_cpu")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--rounds", type=int, default=3, help="of the measurement of speed")
    options.add_argument("--steps", type=int, default=300, help="that are timed in a round, a multiple of 50")
    given = options.parse_args()
    if given.steps < EVERY or given.steps % EVERY or given.rounds < 1:
        options.error(f"--steps must be a multiple of {EVERY}, and --rounds at least 1")
    torch.set_num_threads(given.threads)
    overrides = split(given.text, given.runs.resolve() / "text")
    if given.only in (None, "training"):
        keep("training", train(overrides, given.runs.resolve() / "run"), given.threads)
    if given.only in (None, "speed"):
        keep("speed", speed(overrides, steps=given.steps, rounds=given.rounds, threads=given.threads), given.threads)
    print(table(json.loads(RESULT.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
