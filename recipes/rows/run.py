"""Accuracy of architectures on generated rows: every contestant at its best rate, several seeds.

    python recipes/rows/run.py recipes/recall             all of a study, resumed where it was interrupted
    python recipes/rows/run.py recipes/recall --steps 20 --seeds 1 --out FOLDER      a trial
    python recipes/rows/run.py recipes/recall --device cuda --jobs 15       on a GPU, 15 contestants at a time
    python recipes/rows/run.py recipes/recall --draw      the tables and pictures of result.json anew

A study is a folder with ``study.yaml``: models (a contestant, in several sizes), a task, rates. Each rate is tried with
seed 0 on held-out rows (``validation``); the best then trains with every seed, and is measured on other rows
(``test``), at every length; a run that diverges counts as 0. Writes result.json, its tables in README.md between the
marks, and a picture for each axis.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import yaml

import weft
from weft.comparison.statistics import t_test
from weft.core.errors import DivergedError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel
from weft.core.traits import Trait
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.ops.processor import processor_name
from weft.training import RunConfig, parse_run, train

BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"
CONFIDENCE = 0.95


def study_of(folder: Path, steps: int | None = None, seeds: int | None = None) -> dict[str, Any]:
    """The study of a folder, perhaps shortened."""
    found: dict[str, Any] = yaml.safe_load((folder / "study.yaml").read_text(encoding="utf-8"))
    found["steps"] = found["steps"] if steps is None else steps
    found["seeds"] = found["seeds"] if seeds is None else list(range(seeds))
    return found


def study_sha256(study: Mapping[str, Any]) -> str:
    """A hash of what is run; comments are not among it."""
    return hashlib.sha256(json.dumps(study, sort_keys=True).encode()).hexdigest()


def model_of(study: Mapping[str, Any], name: str, size: int) -> dict[str, Any]:
    """The configuration of a contestant of a size: layers of the study's model, or a model of its own."""
    own = study["contestants"][name]
    if isinstance(own, Mapping) and "layers" not in own:
        return {**own, "context": study["model"]["context"]}
    layers = own["layers"] if isinstance(own, Mapping) else own
    more = {key: value for key, value in own.items() if key != "layers"} if isinstance(own, Mapping) else {}
    block = {"kind": "pre", "norm": "rmsnorm", "layers": layers}
    return {**study["model"], **more, "d_model": size, "blocks": [{"repeat": study["blocks"], "of": [block]}]}


def run_of(study: Mapping[str, Any], task: str, name: str, size: int, rate: float, seed: int) -> RunConfig:
    """A run of one contestant."""
    steps = study["steps"]
    return parse_run({
        "task": study["tasks"][task], "model": model_of(study, name, size), "seed": seed, "data": {"order_seed": seed},
        "training": {"steps": steps, "batch_size": study["batch_size"], "optimizer": {"lr": rate, "weight_decay": 0.0},
                     "compute": {"matmul": "default"}},
        "report": {"eval_every": steps, "eval_batches": None, "checkpoint_every": steps, "log_every": steps}})


def sizes_of(study: Mapping[str, Any], name: str) -> list[int]:
    """The sizes of a contestant: the study's, or 0 for a model of its own."""
    own = study["contestants"][name]
    return [0] if isinstance(own, Mapping) and "layers" not in own else list(study["sizes"])


def state_bytes(run: RunConfig, length: int) -> int | None:
    """Bytes of the state of a row that has been read; None for a model that reads it whole."""
    with torch.device("meta"):
        model = run.model.build()
    return model.init_state(1, capacity=length).nbytes() if isinstance(model, LanguageModel) else None


def best_rate(study: Mapping[str, Any], task: str, name: str, size: int, device: str) -> tuple[float, list[float]]:
    """The rate with the highest accuracy on held-out rows, and the accuracies of all."""
    rates = [float(rate) for rate in study["rates"]]
    if counted(run_of(study, task, name, size, rates[0], 0)):
        return rates[0], []
    found = []
    for rate in rates:
        with tempfile.TemporaryDirectory() as place:
            found.append(accuracy(run_of(study, task, name, size, rate, 0), Path(place) / "run", device))
    return rates[found.index(max(found))], found


def accuracy(run: RunConfig, place: Path, device: str) -> float:
    """On held-out rows after training; 0 for a run that diverged."""
    try:
        return train(run, place, device=device).validation.measures["accuracy"]
    except DivergedError:
        return 0.0


def counted(run: RunConfig) -> bool:
    """Whether the model is counted and has no rate."""
    return Trait.NOT_DIFFERENTIABLE in traits_of(run.model.build())


def outcome(study: Mapping[str, Any], task: str, name: str, size: int, device: str) -> dict[str, Any]:
    """Everything about one contestant of a size on a task."""
    begun = time.perf_counter()
    rate, tried = best_rate(study, task, name, size, device)
    lengths: list[int] = study["lengths"].get(task) or [study["tasks"][task].get("length", 0)]
    scores: dict[str, list[float]] = {str(length): [] for length in lengths}
    for seed in study["seeds"]:
        run = run_of(study, task, name, size, rate, seed)
        with tempfile.TemporaryDirectory() as place:
            try:
                done = train(run, Path(place) / "run", device=device)
            except DivergedError:
                for values in scores.values():
                    values.append(0.0)
                continue
            for length in lengths:
                found = weft.measure(weft.load(done.checkpoint, device=device), part="test", length=length or None,
                                     batch_size=study["eval_rows"])
                scores[str(length)].append(found.measures["accuracy"])
                chance = found.measures["chance"]
                print(f"{task}, {name} {size or ''}, seed {seed}, length {length}: {scores[str(length)][-1]:.4f} "
                      f"(chance {chance:.4f})", flush=True)
    run = run_of(study, task, name, size, rate, 0)
    return {"task": task, "contestant": name, "size": size, "rate": rate, "tried": tried, "accuracy": scores,
            "state_bytes": {str(length): state_bytes(run, length or run.context) for length in lengths},
            "parameters": parameters(run),
            "seconds": round(time.perf_counter() - begun)}


def parameters(run: RunConfig) -> int:
    """Numbers that the model learns."""
    return sum(each.numel() for each in run.model.build().parameters())


def interval(values: list[float]) -> str:
    """The mean in percent, with half its interval over seeds."""
    found = t_test(values, CONFIDENCE).interval
    half = "" if found.low is None else f" ± {100 * (found.mean - found.low):.1f}"
    return f"{100 * found.mean:.1f}{half}"


def tables(result: Mapping[str, Any], names: Iterable[str]) -> str:
    """A table for each task, and the pictures."""
    lines: list[str] = []
    for task in result["study"]["tasks"]:
        rows = [each for each in result["rows"] if each["task"] == task]
        lengths = list(rows[0]["accuracy"])
        lines += [f"**{task}**: accuracy on test rows, %, by tokens of a row" if lengths != ["0"] else
                  f"**{task}**: accuracy on test rows, %", "",
                  "| contestant | d_model | parameters | state, bytes | rate | "
                  + " | ".join(length if length != "0" else "accuracy" for length in lengths) + " |",
                  "| --- | ---: | ---: | ---: | ---: | " + " | ".join("---:" for _ in lengths) + " |"]
        for each in rows:
            state = each["state_bytes"][lengths[0]]
            lines.append(f"| {each['contestant']} | {each['size'] or ''} | {each['parameters']:,} | "
                         f"{'' if state is None else f'{state:,}'} | {each['rate']:g} | "
                         + " | ".join(interval(values) for values in each["accuracy"].values()) + " |")
        lines.append("")
    lines += [f"{len(result['study']['seeds'])} seeds, intervals at {CONFIDENCE:.0%}; torch {result['torch']}, "
              f"{result['processor']}, {sum(each['seconds'] for each in result['rows']):,} seconds.", ""]
    return "\n".join([*lines, *(f"![{name}]({name}.svg)" for name in names), ""])


def pictures(result: Mapping[str, Any]) -> list[Figure]:
    """Accuracy against bytes of state where there are several sizes, against length where there are several."""
    figures = []
    for task in result["study"]["tasks"]:
        rows = [each for each in result["rows"] if each["task"] == task]
        names = list(dict.fromkeys(each["contestant"] for each in rows))
        first = next(iter(rows[0]["accuracy"]))
        by_state = [Curve(name, sorted((float(each["state_bytes"][first] or 1), mean(each["accuracy"][first]))
                                       for each in rows if each["contestant"] == name), style, dots=True)
                    for style, name in enumerate(names)]
        if len(result["study"]["sizes"]) > 1:
            figures.append(chart(f"{task}-state", f"{task}: accuracy against the state",
                                 "Accuracy of each contestant against the bytes of its state.", by_state,
                                 "bytes of state", "accuracy", lengths=True, width=560, include=(0, 1), letters=18))
        largest = [each for each in rows if each["size"] in (0, max(result["study"]["sizes"]))]
        if len(rows[0]["accuracy"]) > 1:
            curves = [Curve(each["contestant"], [(float(length), mean(values)) for length, values in
                                                 each["accuracy"].items()], style, dots=True)
                      for style, each in enumerate(largest)]
            figures.append(chart(f"{task}-length", f"{task}: accuracy against the length of a row",
                                 "Accuracy of each contestant against the length of test rows.", curves,
                                 "tokens of a row", "accuracy", lengths=True, width=560, include=(0, 1), letters=18))
    return figures


def mean(values: list[float]) -> float:
    """The mean over seeds."""
    return statistics.fmean(values)


def write(result: Mapping[str, Any], out: Path) -> None:
    """Write the tables into the page, and the pictures."""
    figures = pictures(result)
    for figure in figures:
        (out / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")
    page = out / "README.md"
    before, _, rest = (page.read_text(encoding="utf-8") if page.exists() else BEGIN + END).partition(BEGIN)
    _, _, after = rest.partition(END)
    names = [figure.name for figure in figures]
    page.write_text(f"{before}{BEGIN}{tables(result, names)}{END}{after}", encoding="utf-8")


def main() -> None:
    """Run a study, or draw its result."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("study", type=Path)
    options.add_argument("--steps", type=int)
    options.add_argument("--seeds", type=int)
    options.add_argument("--out", type=Path)
    options.add_argument("--device", default="cpu")
    options.add_argument("--jobs", type=int, default=1, help="contestants at a time, each in a process of its own")
    options.add_argument("--draw", action="store_true")
    given = options.parse_args()
    out: Path = given.out or given.study
    out.mkdir(parents=True, exist_ok=True)
    record, study = out / "result.json", study_of(given.study, given.steps, given.seeds)
    if given.draw:
        write(json.loads(record.read_text(encoding="utf-8")), out)
        return
    result: dict[str, Any] = {"study_sha256": study_sha256(study), "study": study, "rows": []}
    if record.exists() and json.loads(record.read_text(encoding="utf-8"))["study_sha256"] == result["study_sha256"]:
        result = json.loads(record.read_text(encoding="utf-8"))
    result |= {"weft": weft.__version__, "torch": torch.__version__, "processor": where(given.device)}
    done = {(each["task"], each["contestant"], each["size"]) for each in result["rows"]}
    wanted = [(task, name, size) for task in study["tasks"] for name in study["contestants"]
              for size in sizes_of(study, name)]
    left = [each for each in wanted if each not in done]
    for row in outcomes(study, left, given.device, given.jobs):
        result["rows"].append(row)
        result["rows"].sort(key=lambda each: wanted.index((each["task"], each["contestant"], each["size"])))
        record.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write(result, out)


def outcomes(study: Mapping[str, Any], wanted: Sequence[tuple[str, str, int]], device: str,
             jobs: int) -> Iterator[dict[str, Any]]:
    """The outcomes of contestants, as they come; the largest models begin first."""
    if jobs == 1:
        yield from (outcome(study, *each, device) for each in wanted)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        ordered = sorted(wanted, key=lambda each: -each[2])
        started = [pool.submit(outcome, study, *one, device) for one in ordered]
        yield from (each.result() for each in as_completed(started))


def where(device: str) -> str:
    """What computes."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else processor_name()


if __name__ == "__main__":
    main()
