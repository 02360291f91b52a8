"""Train short, test long: perplexity against the length of the context for every scheme of positions.

    python recipes/lengths/run.py DATA

DATA is a folder of long texts with the names below. Each scheme is trained at 128 tokens with each seed; then every
model is measured on the last tokens of a book that it was not trained on, in windows of each length that advance by
half of it, so that all lengths predict the same tokens. Models with rotary positions are also extended to 1,024 tokens
by three methods, and measured as they are and after a tenth of the training's tokens more. Runs lie in
``runs/lengths``; one that was interrupted goes on, and schemes whose settings have not changed since they were recorded
are not run again. `result.json` keeps every figure, and the tables and the pictures of the README are made from it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import torch
from page import page, pictures

from weft import api
from weft.core.errors import WeftError
from weft.disk.atomic import write_file
from weft.evaluation import Evaluation, evaluate
from weft.extending.lengths import part_of
from weft.tasks.token_streams import held_out_text
from weft.training import print_event
from weft.training.compute import processor_name

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
RESULT, README, MODEL = HERE / "result.json", HERE / "README.md", HERE / "model.yaml"
TRAINED_ON = ("count-of-monte-cristo.txt", "darwin.txt", "war_and_peace.txt")
TESTED_ON = ("pride-and-prejudice.txt",)
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
LONGER, TUNING_SHARE = 1024, 0.1
MEASURED, BATCH_TOKENS = 32_768, 8_192
METHODS = ("linear", "ntk", "yarn")
PLACE = "model.blocks.0.of.0.layers.0.position"
SCHEMES: dict[str, tuple[str, ...]] = {
    "none": (),
    "sinusoidal": ("model.position=sinusoidal", "model.embedding={}"),
    "learned": ("model.position=learned",),
    "t5": ("model.shared={bias: t5}", f"{PLACE}={{shared: bias}}"),
    "alibi": (f"{PLACE}=alibi",),
    "rope": (f"{PLACE}=rope",),
}
"""Changes to the configuration. Sinusoidal positions prescribe embeddings of about their own size, as published."""


def trained(scheme: str, seed: int, runs: Path) -> Path:
    """The last checkpoint of a run, begun or gone on with; the book of the test chooses none."""
    out = runs / f"{scheme}-{seed}"
    run = api.train(MODEL, [*SCHEMES[scheme], f"seed={seed}", f"data.order_seed={seed}"], out=out,
                    resume=(out / "run.json").exists(), on_event=print_event)
    return run.checkpoint


def measured(checkpoint: Path) -> dict[str, Any]:
    """Perplexity and bits per byte at each length, or the reason why the model cannot be run at it."""
    loaded, model = api.load_language_model(checkpoint, "perplexity")
    assert loaded.run is not None and loaded.tokenizer is not None, "a run's own checkpoint"
    book = held_out_text(api.run_of(loaded).data, loaded.tokenizer, "validation")
    text = part_of(book, len(book) - MEASURED, len(book))
    found: dict[str, Any] = {}
    for length in LENGTHS:
        try:
            found[str(length)] = _figures(evaluate(model, text, context=length, stride=length // 2,
                                                   batch_size=BATCH_TOKENS // length))
        except WeftError as refused:
            found[str(length)] = {"refused": str(refused).splitlines()[0]}
    return found


def extended(checkpoint: Path, scheme: str, seed: int, runs: Path) -> dict[str, Any]:
    """Perplexity at each length of a model that was rescaled, and of one that was trained further."""
    steps = round(TUNING_SHARE * _steps(checkpoint))
    found = {}
    for method in METHODS:
        out = runs / f"{scheme}-{seed}-{method}"
        if not (out / "result.json").exists():
            shutil.rmtree(out, ignore_errors=True)
            api.extend(checkpoint, out, context=LONGER, method=method, steps=steps,
                       measuring=api.Measuring(tokens=MEASURED, lengths=LENGTHS))
        stages = json.loads((out / "result.json").read_text(encoding="utf-8"))["stages"]
        found[method] = {stage["name"]: {str(length): {name: each[name] for name in ("perplexity", "bits_per_byte")}
                                         for length, each in zip(LENGTHS, stage["evaluations"], strict=True)}
                         for stage in stages if stage["name"] != "before"}
    return found


def _steps(checkpoint: Path) -> int:
    run = api.run_of(api.load(checkpoint))
    assert run.training.tokens is not None, "the length of a run stands in tokens"
    return math.ceil(run.training.tokens / (run.training.batch_size * run.context))


def _figures(found: Evaluation) -> dict[str, Any]:
    return {"perplexity": found.perplexity, "bits_per_byte": found.bits_per_byte, "tokens": found.tokens}


def prepare(data: Path, runs: Path) -> None:
    """The books, copied into two folders that the configuration names."""
    for folder, names in (("train", TRAINED_ON), ("test", TESTED_ON)):
        (runs / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            if not (runs / folder / name).exists():
                shutil.copyfile(data / name, runs / folder / name)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path, nargs="?", help="the folder of books; without it the page is made again")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--runs", type=Path, default=ROOT / "runs/lengths")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = options.parse_args()
    if given.data is not None:
        study(given.data.resolve(), given.runs.resolve(), given.seeds, given.threads)
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    write_file(README, page(README.read_text(encoding="utf-8"), result))
    for figure in pictures(result):
        write_file(HERE / f"{figure.name}.svg", figure.alone())


def settings_sha256(scheme: str) -> str:
    """Of all that decides what is computed of a scheme."""
    given = (MODEL.read_text(encoding="utf-8"), TRAINED_ON, TESTED_ON, LENGTHS, LONGER, TUNING_SHARE, MEASURED, METHODS,
             SCHEMES[scheme])
    return hashlib.sha256(repr(given).encode()).hexdigest()


def study(data: Path, runs: Path, seeds: int, threads: int) -> None:
    """Train and measure every model, and keep the figures after each. A scheme of which the record has as many seeds
    and whose settings have not changed since stands as it is."""
    torch.set_num_threads(threads)
    prepare(data, runs)
    os.chdir(runs)  # the configuration names the folders of the texts alone
    before = json.loads(RESULT.read_text(encoding="utf-8"))
    made = {scheme: each for scheme, each in before["made"].items()
            if each["settings_sha256"] == settings_sha256(scheme) and len(before["models"][scheme]) == seeds}
    models = {scheme: before["models"][scheme] for scheme in made}
    last = {"torch": torch.__version__, "date": date.today().isoformat()}
    facts = {"seeds": seeds, "context": 128, "longer": LONGER, "lengths": LENGTHS, **last}
    here = {"threads": threads, "processor": processor_name(), **last}
    for scheme in [each for each in SCHEMES if each not in made]:
        models[scheme] = {}
        for seed in range(seeds):
            checkpoint = trained(scheme, seed, runs)
            found = {"trained": measured(checkpoint)}
            if scheme == "rope":
                found |= extended(checkpoint, scheme, seed, runs)
            models[scheme][str(seed)] = found
            print(f"{scheme}, seed {seed}: " + "  ".join(
                f"{length} {figures.get('perplexity', math.nan):.1f}" for length, figures in found["trained"].items()),
                flush=True)
        made[scheme] = {"settings_sha256": settings_sha256(scheme), **here}
        ordered = {each: models[each] for each in SCHEMES if each in models}
        write_file(RESULT, json.dumps({**facts, "made": made, "models": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
