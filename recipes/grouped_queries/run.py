"""From multi-head to grouped-query and multi-query attention: what averaging heads costs, and training on wins back.

    python recipes/grouped_queries/run.py DATA

DATA is a folder of the texts named below. For each seed a Transformer with a key and a value for each of its eight
heads is trained. Its key and value heads are averaged in groups, as `weft convert --n-kv-heads` does, to four, two and
one, and each copy is trained on for up to a fifth of the steps with the same settings; so is the model itself, since
what more training alone gives must be told apart. The moments of the optimiser begin anew in all of them, behind a
warm-up. All are measured on the same tokens of a book that none was trained on. Runs lie in ``runs/grouped_queries``;
what is finished there is not computed again. `result.json` keeps every figure, and the README's table and the picture
are made from it; without DATA they are made anew. ``--seeds``, ``--steps`` and ``--set model.d_model=512 ...`` make the
study larger.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from weft import api
from weft.comparison.statistics import t_test
from weft.data import TokenStream
from weft.disk.atomic import write_file
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.evaluation import evaluate
from weft.extending.lengths import part_of
from weft.tasks.token_streams import held_out_text
from weft.training import print_event
from weft.training.compute import processor_name

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
RESULT, README, MODEL = HERE / "result.json", HERE / "README.md", HERE / "model.yaml"
TRAINED_ON = ("count-of-monte-cristo.txt", "darwin.txt", "war_and_peace.txt")
TESTED_ON = ("pride-and-prejudice.txt",)
HEADS, GROUPS = 8, (8, 4, 2, 1)
SHARES = (0.05, 0.1, 0.2)
"""How long the copies are trained on, in shares of the steps; the paper takes a twentieth."""
MEASURED, CONFIDENCE = 32_768, 0.95
BEGIN, END = "<!-- result -->\n", "<!-- /result -->\n"


def name_of(groups: int) -> str:
    """Of the attention with so many key and value heads."""
    return {HEADS: "multi-head", 1: "multi-query"}.get(groups, f"grouped-query, {groups} heads")


def text_of(run: Path) -> TokenStream:
    """The last tokens of the book that a run held out."""
    loaded = api.load(run)
    assert loaded.tokenizer is not None, "a run's own checkpoint"
    book = held_out_text(api.run_of(loaded).data, loaded.tokenizer, "validation")
    return part_of(book, len(book) - MEASURED, len(book))


def bits(checkpoint: Path, text: TokenStream) -> float:
    """Bits per byte, each token predicted from half a window or more."""
    _, model = api.load_language_model(checkpoint, "bits per byte")
    length = model.config.context
    found = evaluate(model, text, context=length, stride=length // 2, batch_size=64).bits_per_byte
    assert found is not None, "bytes are counted"
    return found


def trained(out: Path, overrides: Sequence[str], start: Path | None = None) -> Path:
    """The folder of a run, which is begun, gone on with, or finished already."""
    api.train(MODEL, overrides, start=start, out=out, resume=(out / "run.json").exists(),
              on_event=print_event)
    return out


def one_seed(seed: int, steps: int, overrides: Sequence[str], runs: Path) -> dict[str, dict[str, float]]:
    """Bits per byte of each copy, by the steps for which it was trained on."""
    given = [*overrides, f"seed={seed}", f"data.order_seed={seed}"]
    first = trained(runs / f"seed{seed}" / "multi-head", [*given, f"training.steps={steps}"])
    text, stops = text_of(first), [max(1, round(share * steps)) for share in SHARES]
    on = [*given, f"data.order_seed={1000 + seed}", "training.schedule.warmup=0.1", f"training.steps={stops[-1]}",
          f"report.checkpoint_every={stops[0]}", f"report.eval_every={stops[0]}", f"report.keep={stops[-1]}"]
    found: dict[str, dict[str, float]] = {}
    for groups in GROUPS:
        copy = runs / f"seed{seed}" / f"copy{groups}"
        if not (copy / "config.json").exists():
            shutil.rmtree(copy, ignore_errors=True)
            api.convert(first, copy, to="weft", n_kv_heads=groups if groups < HEADS else None)
        further = trained(runs / f"seed{seed}" / f"further{groups}", on, copy)
        found[str(groups)] = {"0": bits(copy, text)} | {
            str(step): bits(further / "checkpoints" / f"{step:08}", text) for step in stops}
        print(f"seed {seed}, {name_of(groups)}: {found[str(groups)]}", flush=True)
    return found


def settings_sha256() -> str:
    """Of all that decides what is computed."""
    given = (MODEL.read_text(encoding="utf-8"), TRAINED_ON, TESTED_ON, HEADS, GROUPS, SHARES, MEASURED)
    return hashlib.sha256(repr(given).encode()).hexdigest()


def study(options: argparse.Namespace) -> dict[str, Any]:
    """Every figure, kept after each seed."""
    torch.set_num_threads(options.threads)
    runs, data = options.runs.resolve(), options.data.resolve()
    for folder, names in (("train", TRAINED_ON), ("test", TESTED_ON)):
        (runs / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            if not (runs / folder / name).exists():
                shutil.copyfile(data / name, runs / folder / name)
    os.chdir(runs)  # the configuration names the folders of the texts alone
    record: dict[str, Any] = {
        "settings_sha256": settings_sha256(), "steps": options.steps, "changed": options.set,
        "threads": options.threads, "processor": processor_name(), "torch": torch.__version__,
        "date": date.today().isoformat(), "seeds": []}
    for seed in range(options.seeds):
        record["seeds"].append(one_seed(seed, options.steps, options.set, runs))
    return record


def interval(values: Sequence[float], digits: int = 3) -> str:
    """The mean, and of several values half the width of its interval."""
    found = t_test(values, CONFIDENCE).interval
    return f"{found.mean:.{digits}f}" + ("" if found.low is None else f" ± {found.mean - found.low:.{digits}f}")


def gaps(record: Mapping[str, Any], groups: int, step: str, beside: str) -> list[float]:
    """By how many bits a byte a copy is worse after these steps than the model of eight heads after those, by seed."""
    return [seed[str(groups)][step] - seed[str(HEADS)][beside] for seed in record["seeds"]]


def verdict(record: Mapping[str, Any], groups: int) -> str:
    """What averaging cost and what training on leaves of it, in words."""
    last = list(record["seeds"][0][str(groups)])[-1]
    cost, left = (gaps(record, groups, step, step) for step in ("0", last))
    found = t_test(left, CONFIDENCE).interval
    if found.low is None or found.high is None:
        said = "one seed tells nothing of the difference"
    else:
        said = "told apart" if found.low > 0 or found.high < 0 else "not told apart"
    return (f"{name_of(groups)}: averaging costs {interval(cost)} bits; {int(last):,} steps later it is "
            f"{interval(left)} bits behind the model of {HEADS} heads that was trained on for as long ({said}), "
            f"{statistics.fmean(left) / statistics.fmean(cost):.0%} of the cost.")


def page(record: Mapping[str, Any]) -> str:
    """What the README says of a result."""
    stops = list(record["seeds"][0][str(HEADS)])
    titles = ["averaged" if stop == "0" else f"{stop} steps on" for stop in stops]
    lines = [f"| attention | state | {' | '.join(titles)} |", f"| --- | ---: |{' ---: |' * len(stops)}"]
    for groups in GROUPS:
        cells = [interval([seed[str(groups)][stop] for seed in record["seeds"]]) for stop in stops]
        lines.append(f"| {name_of(groups)} | {'1' if groups == HEADS else f'1/{HEADS // groups}'} | "
                     f"{' | '.join(cells)} |")
    changed = f", {' '.join(record['changed'])}" if record["changed"] else ""
    return "\n".join([
        f"Bits per byte of held-out text, mean of {len(record['seeds'])} seeds with intervals of {CONFIDENCE:.0%}, "
        f"after {record['steps']:,} steps of multi-head attention; `state` is that of keys and values.", "", *lines,
        "",
        *(f"* {verdict(record, groups)}" for groups in GROUPS if groups < HEADS), "",
        "![Bits per byte against the steps of training on](further.svg)", "",
        f"{record['processor']}, torch {record['torch']}, {record['date']}{changed}.", ""])


def picture(record: Mapping[str, Any]) -> Figure:
    """Bits per byte against the steps of training on."""
    curves = [Curve(name_of(groups), [(int(stop), statistics.fmean(seed[str(groups)][stop] for seed in record["seeds"]))
                                      for stop in record["seeds"][0][str(groups)]], style, dots=True)
              for style, groups in enumerate(GROUPS)]
    return chart("further", "Trained on after averaging heads", "The mean over seeds for each number of heads.", curves,
                 "steps of training on", "bits per byte", width=520, height=280, letters=22)


def write(record: Mapping[str, Any]) -> None:
    """The README's table and the picture."""
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    write_file(README, f"{before}{BEGIN}{page(record)}{END}{rest.partition(END)[2]}")
    write_file(HERE / "further.svg", picture(record).alone())


def main() -> None:
    """Run the study if there is a folder of texts, and write its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="the folder of books; without it the page is made again")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes to model.yaml")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/grouped_queries")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    if options.data is not None:
        write_file(RESULT, json.dumps(study(options), indent=1) + "\n")
    write(json.loads(RESULT.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
