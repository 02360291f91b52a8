"""The best learning rate against the width, in muP and in the usual parametrization.

    python recipes/width_transfer/run.py               about 12 minutes on one core
    python recipes/width_transfer/run.py --steps 5 --widths 16,32 --seeds 1      a trial

Every model is trained at every rate and seed on the same batches of the source code of Python's standard library; the
loss is the mean of the last tenth of the steps. It writes result.json, mup.svg, usual.svg and README.md beside itself.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from weft.comparison.statistics import t_test
from weft.core.errors import DivergedError
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.training import parse_run
from weft.training.material import prepare
from weft.training.trainer import Trainer

HERE = Path(__file__).parent
BASE = 32
DIVERGED = 100.0
CONFIDENCE = 0.95
RATES = [2.0 ** power for power in range(-11, -2)]
NAMES = {"mup": "muP", "usual": "the usual parametrization"}


def configuration(width: int, name: str, rate: float, seed: int, steps: int) -> dict[str, Any]:
    layers = [{"kind": "attention", "n_heads": 4}, {"kind": "mlp", "d_ff": 4 * width}]
    model: dict[str, Any] = {
        "kind": "decoder", "d_model": width, "context": 32, "norm": "layernorm", "position": "learned",
        "embedding": {"std": 0.3}, "readout": {"kind": "linear", "tied": False},
        "blocks": [{"repeat": 2, "of": [{"kind": "pre", "norm": "layernorm", "layers": layers}]}]}
    if name == "mup":
        model["parametrization"] = {"kind": "mup", "base_width": BASE}
    return {"model": model, "seed": seed, "data": {"max_bytes": 300_000, "order_seed": seed},
            "training": {"steps": steps, "batch_size": 8, "compute": {"matmul": "default"},
                         "schedule": {"kind": "linear"},
                         "optimizer": {"kind": "adamw", "lr": rate, "weight_decay": 0.0}}}


def loss_of(width: int, name: str, rate: float, seed: int, steps: int, material: Any) -> float:
    """The mean training loss of the last tenth of the steps, in nats a token; `DIVERGED` where it diverges."""
    run = parse_run(configuration(width, name, rate, seed, steps))
    torch.manual_seed(seed)
    trainer = Trainer(run, run.model.build(), material, steps=steps, device="cpu")
    losses = []
    for _ in range(steps):
        try:
            sums = trainer.advance().sums
        except DivergedError:
            return DIVERGED
        losses.append(sums.nats / sums.tokens)
    return statistics.mean(losses[-max(1, steps // 10):])


def best(losses: dict[str, list[float]]) -> float:
    """The rate with the least mean loss over seeds."""
    return float(min(losses, key=lambda rate: statistics.mean(losses[rate])))


def power(rate: float) -> str:
    """A rate as a power of two."""
    return f"2^{math.log2(rate):.0f}"


def each_seed(losses: dict[str, list[float]]) -> list[float]:
    """The best rate of every seed by itself."""
    return [best({rate: [found[seed]] for rate, found in losses.items()})
            for seed in range(len(next(iter(losses.values()))))]


def dearer(losses: dict[str, list[float]], rate: float) -> str:
    """By how much the loss is higher at a rate than at the best, with the interval over seeds: both have the same
    batches."""
    differences = [there - least for there, least in zip(losses[f"{rate:g}"], losses[f"{best(losses):g}"], strict=True)]
    found = t_test(differences, CONFIDENCE).interval
    if not any(differences):
        return "0"
    return f"{found.mean:.3f}" + ("" if found.low is None else f" ± {found.mean - found.low:.3f}")


def moved(widths: dict[str, dict[str, list[float]]]) -> str:
    """What the best rate does from the narrowest model to the widest."""
    narrow, wide = (best(widths[each(widths, key=int)]) for each in (min, max))
    if wide == narrow:
        return "stays where it is"
    return f"rises {wide / narrow:.0f}-fold" if wide > narrow else f"falls to 1/{narrow / wide:.0f}"


def page(found: dict[str, Any]) -> str:
    """README.md."""
    rows = []
    narrowest = min(next(iter(found["losses"].values())), key=int)
    for name, widths in found["losses"].items():
        first = best(widths[narrowest])
        rows += [f"| {NAMES[name]} | {width} | {power(best(rates))} | {', '.join(map(power, each_seed(rates)))} | "
                 f"{statistics.mean(rates[f'{best(rates):g}']):.3f} | {dearer(rates, first)} |"
                 for width, rates in widths.items()]
    widest = max(next(iter(found["losses"].values())), key=int)
    mup, usual = (found["losses"][name][widest] for name in NAMES)
    gap = statistics.mean(usual[f"{best(usual):g}"]) - statistics.mean(mup[f"{best(mup):g}"])
    return "\n".join([
        "# The best rate at every width", "",
        "A rate that is best for a narrow model is best for a wide one in muP (Yang et al. 2022), and is not in the "
        "usual parametrization. Is that so here?", "",
        "    python recipes/width_transfer/run.py", "",
        f"Decoders of two blocks, {found['steps']} steps of AdamW, {found['seeds']} seeds; rates are powers of two, "
        f"and the loss is the mean of the last tenth of the steps. From width {narrowest} to {widest} the best rate "
        f"{moved(found['losses']['mup'])} in muP, and {moved(found['losses']['usual'])} in the usual parametrization. "
        f"With each at its own best rate, the usual one ends {abs(gap):.3f} nats/token "
        f"{'below' if gap < 0 else 'above'} muP at width {widest}: what muP saves is the search for a rate.", "",
        *(line for name in NAMES for line in (f"![Loss against the rate: {NAMES[name]}]({name}.svg)", "")),
        f"| | width | best rate | of each seed | loss there, nats/token | more at the best rate of width {narrowest} |",
        "| --- | --- | --- | --- | --- | --- |", *rows, "",
        f"The last column has its interval over seeds at {CONFIDENCE:.0%}: models of one seed have the same batches. "
        "A larger one is `--widths 32,128,512 --steps 2000`; `--draw` writes this page from result.json.", ""])


def pictures(found: dict[str, Any]) -> list[Figure]:
    """Loss against the rate, a figure for each parametrization with the same axes."""
    means = {name: {width: [(math.log2(float(rate)), min(6.0, statistics.mean(values)))
                            for rate, values in rates.items()] for width, rates in widths.items()}
             for name, widths in found["losses"].items()}
    every = [loss for widths in means.values() for points in widths.values() for _, loss in points]
    return [chart(name, f"Loss against the learning rate, {NAMES[name]}", "The loss at the end of training against the "
                  "rate, a curve for every width; above 6 it is drawn at 6.",
                  [Curve(f"width {width}", points, index, dots=True)
                   for index, (width, points) in enumerate(widths.items())],
                  "log2 of the learning rate", f"{NAMES[name]}, nats/token", width=520, height=280,
                  include=(min(every), max(every))) for name, widths in means.items()]


def write(record: dict[str, Any], out: Path) -> None:
    """The page and the pictures."""
    (out / "README.md").write_text(page(record), encoding="utf-8")
    for figure in pictures(record):
        (out / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=150)
    options.add_argument("--widths", default="32,64,128,256")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--out", type=Path, default=HERE)
    options.add_argument("--draw", action="store_true", help="the page and pictures of result.json anew")
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "result.json"
    if not given.draw:
        file.write_text(json.dumps(measured(given), indent=1) + "\n", encoding="utf-8")
    write(json.loads(file.read_text(encoding="utf-8")), given.out)


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """Every loss."""
    material = prepare(parse_run(configuration(BASE, "usual", 1e-3, 0, given.steps))).train
    widths = given.widths.split(",")
    losses: dict[str, dict[str, dict[str, list[float]]]] = {name: {width: {} for width in widths} for name in NAMES}
    for name, width, rate in track(list(product(NAMES, widths, RATES)), "Losses"):
        losses[name][width][f"{rate:g}"] = [loss_of(int(width), name, rate, seed, given.steps, material)
                                            for seed in range(given.seeds)]
    return {"steps": given.steps, "seeds": given.seeds, "losses": losses}


if __name__ == "__main__":
    main()
