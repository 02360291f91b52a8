"""Pre-training against none on SST-2 and CoLA, with all weights, LoRA and a frozen body side by side (GPT-1's recipe).

    python recipes/pretraining/run.py DATA                   about 25 minutes on one core
    python recipes/pretraining/run.py DATA --scale 0.02 --seeds 2 --out /tmp/pretraining     a trial
    python recipes/pretraining/run.py DATA --draw            the page and pictures of result.json anew

DATA is a folder with books/*.txt, wikitext-2/train.txt, sst2/{train,test}.tsv and cola/{train,dev}.tsv. Each seed
pre-trains a decoder of its own, and fine-tunes it in every way. The rate of each way and task is the best of three, by
the loss on a tenth of the training records, of seed 0 and a third of the steps. Writes result.json, README.md and a
picture for each task beside itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import runpy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from weft.api import measure
from weft.comparison.statistics import t_test
from weft.ops.processor import processor_name
from weft.training import parse_run, print_event, train
from weft.training.files import read_plain

HERE = Path(__file__).parent
SHOW: dict[str, Any] = runpy.run_path(str(HERE.parent / "digits" / "report.py"))
CONFIDENCE = 0.95
FIELDS = "origin\tlabel\tmark\tsentence\n"
"""The fields of CoLA's files, which lack a line of names."""
TASKS = {"sst2": ("SST-2", "accuracy", "train.tsv", "test.tsv"), "cola": ("CoLA", "matthews", "train.tsv", "dev.tsv")}
WAYS: Mapping[str, tuple[str, bool, float]] = {
    "none": ("no pre-training", False, 1e-3), "head": ("no pre-training, frozen", False, 1e-2),
    "all": ("all weights", True, 1e-3), "lora": ("LoRA", True, 3e-3), "frozen": ("frozen body", True, 1e-2)}
"""The name of each way, whether it starts from pre-trained weights, and the middle one of its rates."""
RECORDS = 8000
"""Of a task, at most: more than are read in training."""

SPREAD = (1 / 3, 1.0, 3.0)
LORA = {"kind": "lora", "rank": 8, "also_train": ["head.*"]}


def pretraining(data: Path, seed: int, scale: float) -> dict[str, Any]:
    """The configuration of pre-training."""
    plain = shortened(read_plain(HERE / "pretrain.yaml"), scale)
    paths = {"books": data / "books/*.txt", "wiki": data / "wikitext-2/train.txt"}
    sources = {name: {"path": str(path), "weight": 1.0} for name, path in paths.items()}
    return {**plain, "seed": seed, "data": {"order_seed": seed, "max_bytes": 5_000_000, "sources": sources}}


def tuning(way: str, start: Path, data: Mapping[str, Any], seed: int, rate: float, scale: float) -> dict[str, Any]:
    """The configuration of one fine-tuning. Without pre-training the model and its tokenizer are those of ``start``,
    and its weights are new."""
    plain, found = shortened(read_plain(HERE / "tune.yaml"), scale), WAYS[way]
    head: dict[str, Any] = {"head": {"kind": "pooled", "pool": "last"}}
    if way == "lora":
        head["rewrites"] = [LORA]
    if way in ("frozen", "head"):
        plain["training"]["train"] = ["head"]
    plain["training"]["optimizer"] = {"kind": "adamw", "lr": rate, "weight_decay": 0.01}
    report = {**plain["report"], "eval_every": plain["training"]["steps"],
              "checkpoint_every": plain["training"]["steps"]}
    origin: dict[str, Any] = {"start": str(start), "model": head} if found[1] else {
        "model": {**read_plain(HERE / "pretrain.yaml")["model"], **head, "vocab_size": 2048},
        "tokenizer": {"kind": "file", "path": str(start)}}
    return {**plain, **origin, "report": report, "seed": seed, "data": {**data, "order_seed": seed}}


def shortened(plain: dict[str, Any], scale: float) -> dict[str, Any]:
    """A configuration with fewer steps."""
    steps = max(1, round(scale * plain["training"]["steps"]))
    report = {key: min(steps, value) if isinstance(value, int) else value for key, value in plain["report"].items()}
    return {**plain, "training": {**plain["training"], "steps": steps}, "report": report}


def files_of(data: Path, task: str, folder: Path) -> dict[str, str]:
    """The first records of the files of a task, with the line that names their fields."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for key, name in zip(("path", "validation_path"), TASKS[task][2:], strict=True):
        text = (data / task / name).read_text(encoding="utf-8")
        copy = folder / f"{task}-{name}"
        lines = (text if text.startswith("sentence\t") else FIELDS + text).splitlines(keepends=True)
        copy.write_text("".join(lines[:1 + RECORDS]), encoding="utf-8")
        found[key] = str(copy)
    return found


def best_rate(way: str, start: Path, files: Mapping[str, str], scale: float, out: Path) -> dict[str, float]:
    """The loss of every rate on a tenth of the training records."""
    data = {"path": files["path"], "validation": 0.1}
    found = {}
    for factor in SPREAD:
        rate = float(f"{factor * WAYS[way][2]:.1g}")
        config = tuning(way, start, data, 0, rate, scale / 3)
        found[f"{rate:g}"] = train(parse_run(config), out / f"{way}-{rate:g}").validation.loss
    return found


def study(given: argparse.Namespace) -> dict[str, Any]:
    """Every run."""
    begun, starts, bits, tasks = time.process_time(), [], [], dict[str, Any]()
    for seed in range(given.seeds):
        start, measures = pretrained(given, seed)
        starts.append(start)
        bits.append({key: value for key, value in measures.items() if key.startswith("bits")})
        print(f"pre-trained, seed {seed}: {bits[-1]}", flush=True)
    for task, (_, score, *_) in TASKS.items():
        files, ways = files_of(given.data, task, given.runs / "data"), dict[str, Any]()
        for way in WAYS:
            tried = best_rate(way, starts[0], files, given.scale, given.runs / f"{task}-rates")
            rate = float(min(tried, key=lambda each: tried[each]))
            scores = list[float]()
            for seed, start in enumerate(starts):
                config = tuning(way, start, files, seed, rate, given.scale)
                done = train(parse_run(config), given.runs / f"{task}-{way}-{seed}",
                             on_event=print_event)
                scores.append(done.validation.measures[score])
                examples, learned = done.validation.tokens, trained(done.model)
            ways[way] = {"tried": tried, "rate": rate, "scores": scores, "examples": examples, "trained": learned}
            print(f"{task}, {way}: rate {rate:g}, {scores}", flush=True)
        tasks[task] = ways
    return {"settings_sha256": settings_sha256(), "seeds": given.seeds, "scale": given.scale, "bits": bits,
            "steps": [shortened(read_plain(HERE / name), given.scale)["training"]["steps"]
                      for name in ("pretrain.yaml", "tune.yaml")],
            "tasks": tasks, "torch": torch.__version__, "processor": processor_name(),
            "processor_seconds": round(time.process_time() - begun)}


def pretrained(given: argparse.Namespace, seed: int) -> tuple[Path, dict[str, float]]:
    """The checkpoint of a seed and its measures; one that is finished is not repeated."""
    run, config = given.runs / f"pretrained-{seed}", parse_run(pretraining(given.data, seed, given.scale))
    checkpoint = run / "checkpoints" / f"{config.training.steps:08d}"
    if not checkpoint.is_dir():
        train(config, run, on_event=print_event)
    return checkpoint, measure(checkpoint).named()


def trained(model: torch.nn.Module) -> int:
    """Numbers that are learned."""
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def settings_sha256() -> str:
    """Of what is run."""
    files = [(HERE / name).read_text("utf-8") for name in ("pretrain.yaml", "tune.yaml")]
    return hashlib.sha256(repr((files, sorted(WAYS.items()), SPREAD, sorted(LORA.items()))).encode()).hexdigest()


def written(values: list[float]) -> str:
    """The mean and half its interval, both times a hundred; values that are all one tell nothing of others."""
    if len(set(values)) == 1 and len(values) > 1:
        return f"{100 * values[0]:.1f} in every run"
    found = t_test(values, CONFIDENCE).interval
    return f"{100 * found.mean:.1f}" + ("" if found.low is None else f" ± {100 * (found.mean - found.low):.1f}")


def verdict(ways: Mapping[str, Any], name: str, way: str, other: str) -> str:
    """A difference of two ways within seeds, in words; differences that are all one have no interval."""
    differences = [a - b for a, b in zip(ways[way]["scores"], ways[other]["scores"], strict=True)]
    if len(set(differences)) == 1 and len(differences) > 1:
        return f"{name}: {WAYS[way][0]} {100 * differences[0]:+.1f} against {WAYS[other][0]} in every run"
    over = t_test(differences, CONFIDENCE).interval
    apart = over.low is not None and over.high is not None and (over.low > 0 or over.high < 0)
    return (f"{name}: {WAYS[way][0]} {100 * over.mean:+.1f} against {WAYS[other][0]}"
            + ("" if over.low is None else f" (± {100 * (over.mean - over.low):.1f}, "
               f"{'told apart' if apart else 'not told apart'})"))


def page(found: dict[str, Any]) -> str:
    """README.md."""
    rows, verdicts = [], []
    for task, ways in found["tasks"].items():
        name, measure = TASKS[task][:2]
        for way, each in ways.items():
            rates = [float(rate) for rate in each["tried"]]
            edge = "!" if each["rate"] in (min(rates), max(rates)) else ""
            rows.append(f"| {name}, {measure} | {WAYS[way][0]} | {each['trained']:,} | {each['rate']:g}{edge} | "
                        f"{written(each['scores'])} |")
        verdicts += [verdict(ways, name, way, other) for way, other in
                     (("all", "none"), ("lora", "none"), ("frozen", "head"), ("lora", "all"))]
    return "\n".join([
        "# Pre-training against none, on SST-2 and CoLA", "",
        "Does a decoder that has first learned to predict text classify sentences better than one that has not, and "
        "how much of that is kept if only an adapter or a head is trained (Radford et al. 2018, GPT-1)?", "",
        "    python recipes/pretraining/run.py DATA", "", said(found), "",
        *(line for task in found["tasks"] for line in (f"![{TASKS[task][0]} by way of training]({task}.svg)", "")),
        "| task | way | trained | rate | on held-out sentences |", "| --- | --- | ---: | ---: | ---: |", *rows, "",
        "`!`: the best rate was the lowest or the highest of the three. Differences within seeds:", "",
        *(f"* {each}" for each in verdicts), "", *silent(found["tasks"]),
        f"SST-2 is measured on {found['tasks']['sst2']['all']['examples']:,} sentences, CoLA on "
        f"{found['tasks']['cola']['all']['examples']:,}. torch {found['torch']}, {found['processor']}.", "",
        "## A larger one", "", "The same by hand, on eight GPUs:", "", "```text",
        "torchrun --nproc-per-node 8 -m weft train recipes/pretraining/pretrain.yaml data.path=TEXT \\",
        "    model.d_model=768 model.blocks.0.repeat=12 model.context=512 training.steps=100000 --out runs/pretrained",
        "weft train recipes/pretraining/tune.yaml start=runs/pretrained data.path=sst2/train.tsv \\",
        "    data.validation_path=sst2/test.tsv 'model.head={kind: pooled, pool: last}' \\",
        "    'model.rewrites=[{kind: lora, rank: 8, also_train: [\"head.*\"]}]' --out runs/sst2", "```", ""])


def silent(tasks: Mapping[str, Any]) -> list[str]:
    """What cannot be seen, since models give every sentence one class: Matthews' correlation is then 0."""
    lines = []
    for task, ways in tasks.items():
        same = [WAYS[way][0] for way, each in ways.items() if not any(each["scores"])]
        if same:
            lines += [f"On {TASKS[task][0]} every seed gives all sentences one class in: {', '.join(same)}. Between "
                      "these ways nothing can be seen at this size and length.", ""]
    return lines


def said(found: dict[str, Any]) -> str:
    """What was done, in words."""
    whole, books, wiki = (sum(each[key] for each in found["bits"]) / found["seeds"]
                          for key in ("bits_per_byte", "bits_per_byte.books", "bits_per_byte.wiki"))
    return (f"The model stands in [pretrain.yaml](pretrain.yaml): {found['steps'][0]:,} steps on books and wikitext-2, "
            f"whose held-out text then takes {whole:.2f} bits per byte ({books:.2f} of books, {wiki:.2f} of "
            f"wikitext-2). Fine-tuning has {found['steps'][1]:,} steps of 16 sentences ([tune.yaml](tune.yaml)) in "
            "every way, with the best of three rates. The class is read off the last "
            "token; GPT-1's auxiliary loss of text is left out. A frozen body trains the head alone, and LoRA its "
            "matrices of rank 8 and the head. Figures are percent, means of "
            f"{found['seeds']} seeds of pre-training and fine-tuning with intervals at {CONFIDENCE:.0%}.")


def write(found: dict[str, Any], out: Path) -> None:
    """The page and a picture of each task."""
    (out / "README.md").write_text(page(found), encoding="utf-8")
    for task, ways in found["tasks"].items():
        name, measure = TASKS[task][:2]
        groups = {WAYS[way][0].replace("no pre-training", "none"): [100 * value for value in each["scores"]]
                  for way, each in ways.items()}
        (out / f"{task}.svg").write_text(SHOW["picture"](
            groups, CONFIDENCE, f"{name} by way of training", f"{name}, {measure}, %; dots are seeds"), "utf-8")


def main() -> None:
    """Run, and write what was found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--scale", type=float, default=1.0, help="of all steps")
    options.add_argument("--out", type=Path, default=HERE)
    options.add_argument("--runs", type=Path, default=Path("runs/pretraining"))
    options.add_argument("--draw", action="store_true")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "result.json"
    if not given.draw:
        file.write_text(json.dumps(study(given), indent=1) + "\n", encoding="utf-8")
    write(json.loads(file.read_text(encoding="utf-8")), given.out)


if __name__ == "__main__":
    main()
