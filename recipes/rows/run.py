"""Accuracy of architectures on generated rows: every contestant at its best rate, several seeds.

    python recipes/rows/run.py recipes/recall             all of a study, resumed where it was interrupted;
                                                     rows that a change of study.yaml does not concern are kept
    python recipes/rows/run.py recipes/recall --steps 20 --seeds 1 --out FOLDER      a trial
    python recipes/rows/run.py recipes/recall --device cuda --jobs 15       on a GPU, 15 contestants at a time
    python recipes/rows/run.py recipes/recall --draw      the tables and pictures of result.json anew

A study is a folder with ``study.yaml``: models (a contestant, in several sizes), a task, rates; a contestant may have
``steps`` and ``rows`` of its own. Each rate is tried with ``trial_seed``, which is none of the seeds, on held-out rows
(``validation``), and where the best lies at the edge, the next one beyond it, up to ``widest`` more on each side; the
best, of equals the first, then trains with every seed, and those runs are measured on other rows (``test``), at every
length; a run that diverges counts as 0. Writes result.json and its page (page.py): tables in README.md between the
marks, and a picture for each axis.

Of a row that is recorded trials and runs are kept: a larger ``widest`` tries the rates that it adds, another
``trial_seed`` makes all trials anew, and the runs are made again where another rate is the best. A row says with which
seed its rates were tried, on which processor its runs were made, and which trials on another.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
import yaml
from page import rates_at_edge, sizes_of, steps_of, write

import weft
from weft.comparison.study_settings import beyond
from weft.core.declarations import Trait
from weft.core.errors import DivergedError
from weft.core.layer import traits_of
from weft.core.model import LanguageModel
from weft.ops.processor import processor_name
from weft.training import RunConfig, parse_run, train


@final
class Trained(NamedTuple):
    """A run that has ended.

    Attributes:
        accuracy: on held-out rows.
        checkpoint: its folder; None: it diverged.
    """

    accuracy: float
    checkpoint: Path | None


def study_of(folder: Path, steps: int | None = None, seeds: int | None = None) -> dict[str, Any]:
    """The study of a folder, perhaps shortened."""
    found: dict[str, Any] = yaml.safe_load((folder / "study.yaml").read_text(encoding="utf-8"))
    if steps is not None:
        found["steps"] = steps
        found["contestants"] = {name: model_alone(own, ["steps"]) for name, own in found["contestants"].items()}
    found["seeds"] = found["seeds"] if seeds is None else list(range(seeds))
    if found["trial_seed"] in found["seeds"]:
        raise SystemExit(f"{folder}: the trial seed {found['trial_seed']} is among the seeds that count; name another.")
    return found


def study_sha256(study: Mapping[str, Any]) -> str:
    """A hash of what is run; comments are not among it."""
    return hashlib.sha256(json.dumps(study, sort_keys=True).encode()).hexdigest()


def standing(result: Mapping[str, Any], study: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a result that are of ``study`` as well: a contestant or a task more or fewer changes no other row."""
    return [row for row in result["rows"] if row["task"] in study["tasks"] and row["contestant"] in study["contestants"]
            and row["size"] in sizes_of(study, row["contestant"])
            and decisive(result["study"], row) == decisive(study, row)]


def decisive(study: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """What of a study decides a row of its result, besides the size."""
    parts = ("tasks", "lengths", "contestants", "sizes", "steps", "widest", "trial_seed")
    task, name = row["task"], row["contestant"]
    return {**{key: value for key, value in study.items() if key not in parts}, "task": task_of(study, task, name),
            "lengths": study["lengths"].get(task), "contestant": model_alone(study["contestants"][name]),
            "steps": steps_of(study, task, name)}


def model_alone(own: Any, without: Sequence[str] = ("steps", "rows")) -> Any:
    """A contestant without what it says of its runs."""
    return {key: value for key, value in own.items() if key not in without} if isinstance(own, Mapping) else own


def task_of(study: Mapping[str, Any], task: str, name: str) -> dict[str, Any]:
    """The task of a contestant, which may have fewer rows to learn from: a model that is counted takes so many."""
    own = study["contestants"][name]
    return {**study["tasks"][task], **({"rows": own["rows"]} if isinstance(own, Mapping) and "rows" in own else {})}


def model_of(study: Mapping[str, Any], name: str, size: int) -> dict[str, Any]:
    """The configuration of a contestant of a size: layers of the study's model, or a model of its own."""
    own = model_alone(study["contestants"][name])
    if isinstance(own, Mapping) and "layers" not in own:
        return {**own, "context": study["model"]["context"]}
    layers = own["layers"] if isinstance(own, Mapping) else own
    more = {key: value for key, value in own.items() if key != "layers"} if isinstance(own, Mapping) else {}
    block = {"kind": "pre", "norm": "rmsnorm", "layers": layers}
    return {**study["model"], **more, "d_model": size, "blocks": [{"repeat": study["blocks"], "of": [block]}]}


def run_of(study: Mapping[str, Any], task: str, name: str, size: int, rate: float, seed: int) -> RunConfig:
    """A run of one contestant."""
    steps = steps_of(study, task, name)
    return parse_run({
        "task": task_of(study, task, name), "model": model_of(study, name, size), "seed": seed,
        "data": {"order_seed": seed},
        "training": {"steps": steps, "batch_size": study["batch_size"], "optimizer": {"lr": rate, "weight_decay": 0.0},
                     "compute": {"matmul": "default"}},
        "report": {"eval_every": steps, "eval_batches": None, "checkpoint_every": steps, "log_every": steps}})


def state_bytes(run: RunConfig, length: int) -> int | None:
    """Bytes of the state of a row that has been read; None for a model that reads it whole."""
    with torch.device("meta"):
        model = run.model.build()
    return model.init_state(1, capacity=length).nbytes() if isinstance(model, LanguageModel) else None


def best_rate(study: Mapping[str, Any], task: str, name: str, size: int, device: str, place: Path,
              known: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """The rate with the highest accuracy on held-out rows with the trial seed, and the accuracies of all in the order
    in which they were tried; a model that is counted has no rate to try.

    Args:
        known: the accuracies of trials that were made before.
    """
    rates, seed, tried = [float(rate) for rate in study["rates"]], study["trial_seed"], dict(known)
    if counted(run_of(study, task, name, size, rates[0], seed)):
        return rates[0], {}
    while left := [rate for rate in rates if f"{rate:g}" not in tried] or wider(study, tried):
        for rate in left:
            run = run_of(study, task, name, size, rate, seed)
            tried[f"{rate:g}"] = trained(run, place / f"trial{rate:g}", device).accuracy
            print(f"{task}, {name} {size or ''}, trial at {rate:g}: {tried[f'{rate:g}']:.4f}", flush=True)
    return float(max(tried, key=lambda each: tried[each])), tried


def wider(study: Mapping[str, Any], tried: Mapping[str, float]) -> list[float]:
    """The next rate beyond an edge at which the best lies; none where none is, or ``widest`` were tried there."""
    rates, given = sorted(map(float, tried)), sorted(map(float, study["rates"]))
    more = {"below": sum(rate < given[0] for rate in rates), "above": sum(rate > given[-1] for rate in rates)}
    return [beyond(rates, side) for side in rates_at_edge(tried) if more[side] < study.get("widest", 0)]


def trained(run: RunConfig, place: Path, device: str) -> Trained:
    """Train; the accuracy is 0 for a run that diverged."""
    try:
        done = train(run, place, device=device)
    except DivergedError:
        return Trained(0.0, None)
    return Trained(done.validation.measures["accuracy"], done.checkpoint)


def counted(run: RunConfig) -> bool:
    """Whether the model is counted and has no rate."""
    return Trait.NOT_DIFFERENTIABLE in traits_of(run.model.build())


def outcome(study: Mapping[str, Any], task: str, name: str, size: int, device: str,
            row: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Everything about one contestant of a size on a task.

    Args:
        row: what is recorded of it: its trials are not made again, and its runs only where the best rate is another.
    """
    begun, before = time.process_time(), {} if row is None else row
    known = before if before.get("trial_seed") == study["trial_seed"] else {"tried": {}, "tried_on": {}}
    with tempfile.TemporaryDirectory() as folder:
        rate, tried = best_rate(study, task, name, size, device, Path(folder), known["tried"])
        again = not before or rate != before["rate"]
        scores = measured(study, task, name, size, device, rate, Path(folder)) if again else before["accuracy"]
    run = run_of(study, task, name, size, rate, 0)
    return {"task": task, "contestant": name, "size": size, "rate": rate, "trial_seed": study["trial_seed"],
            "tried": tried, "tried_on": {each: where(device) for each in tried} | known["tried_on"], "accuracy": scores,
            "processor": where(device) if again else before["processor"],
            "state_bytes": {length: state_bytes(run, int(length) or run.context) for length in scores},
            "parameters": parameters(run),
            "processor_seconds": round(time.process_time() - begun) + before.get("processor_seconds", 0)}


def measured(study: Mapping[str, Any], task: str, name: str, size: int, device: str, rate: float,
             folder: Path) -> dict[str, list[float]]:
    """The accuracy on test rows of a run with every seed, by length of a row."""
    lengths: list[int] = study["lengths"].get(task) or [study["tasks"][task].get("length", 0)]
    scores: dict[str, list[float]] = {str(length): [] for length in lengths}
    for seed in study["seeds"]:
        run = run_of(study, task, name, size, rate, seed)
        checkpoint = trained(run, folder / f"seed{seed}", device).checkpoint
        if checkpoint is None:
            for values in scores.values():
                values.append(0.0)
            continue
        for length in lengths:
            found = weft.measure(weft.load(checkpoint, device=device), part="test", length=length or None,
                                 batch_size=study["eval_rows"])
            scores[str(length)].append(found.measures["accuracy"])
            chance = found.measures["chance"]
            print(f"{task}, {name} {size or ''}, seed {seed}, length {length}: {scores[str(length)][-1]:.4f} "
                  f"(chance {chance:.4f})", flush=True)
    return scores


def parameters(run: RunConfig) -> int:
    """Numbers that the model learns."""
    return sum(each.numel() for each in run.model.build().parameters())


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
    before = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {"rows": []}
    known = {(row["task"], row["contestant"], row["size"]): row for row in standing(before, study)}
    wanted = [(task, name, size) for task in study["tasks"] for name in study["contestants"]
              for size in sizes_of(study, name)]
    done = {each: row for each, row in known.items() if not row["tried"]
            or (row["trial_seed"] == study["trial_seed"] and not wider(study, row["tried"]))}
    left = {each: known.get(each) for each in wanted if each not in done}
    for row in outcomes(study, left, given.device, given.jobs):
        done[row["task"], row["contestant"], row["size"]] = row
        result: dict[str, Any] = {
            "study_sha256": study_sha256(study), "study": study, "weft": weft.__version__, "torch": torch.__version__,
            "rows": [found for each in wanted if (found := done.get(each, known.get(each)))]}
        record.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write(json.loads(record.read_text(encoding="utf-8")), out)


def outcomes(study: Mapping[str, Any], left: Mapping[tuple[str, str, int], Any], device: str,
             jobs: int) -> Iterator[dict[str, Any]]:
    """The outcomes of contestants, as they come, with what is recorded of each; the largest models begin first."""
    if jobs == 1:
        yield from (outcome(study, *each, device, row) for each, row in left.items())
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        ordered = sorted(left.items(), key=lambda each: -each[0][2])
        started = [pool.submit(outcome, study, *one, device, row) for one, row in ordered]
        yield from (each.result() for each in as_completed(started))


def where(device: str) -> str:
    """What computes."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else processor_name()


if __name__ == "__main__":
    main()
