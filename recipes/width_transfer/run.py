"""The best learning rate against the width, in muP and in the usual parametrization.

    python recipes/width_transfer/run.py               about 12 minutes on one core
    python recipes/width_transfer/run.py --steps 5 --widths 16,32 --seeds 1      a trial

Every model is trained at every rate and seed on the same batches of the source code of Python's standard library; the
loss is the mean of the last tenth of the steps. It writes result.json, width_transfer.svg and README.md beside itself.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch

from weft.core.errors import DivergedError
from weft.drawing.chart import Curve, chart
from weft.training import parse_run
from weft.training.material import prepare
from weft.training.trainer import Trainer

HERE = Path(__file__).parent
BASE = 32
DIVERGED = 100.0
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


def page(record: dict[str, Any]) -> str:
    rows = [f"| {NAMES[name]} | {width} | {best(rates):.2g} | {min(map(statistics.mean, rates.values())):.3f} |"
            for name, widths in record["losses"].items() for width, rates in widths.items()]
    moved = {name: math.log2(best(widths[max(widths, key=int)]) / best(widths[min(widths, key=int)]))
             for name, widths in record["losses"].items()}
    return "\n".join([
        "# The best rate at every width", "",
        f"Decoders of two blocks, {record['steps']} steps of AdamW, {record['seeds']} seeds; rates are powers of two. "
        f"From the narrowest to the widest the best rate moved by 2^{moved['mup']:+.0f} in muP, and by "
        f"2^{moved['usual']:+.0f} in the usual parametrization.", "", "![Loss against the rate](width_transfer.svg)",
        "",
        "| | width | best rate | loss there, nats/token |", "| --- | --- | --- | --- |", *rows, "",
        "`python recipes/width_transfer/run.py` runs it again; `--widths 32,128,512 --steps 2000` is the larger one.",
        ""])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=150)
    options.add_argument("--widths", default="32,64,128,256")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--out", type=Path, default=HERE)
    given = options.parse_args()
    widths = [int(width) for width in given.widths.split(",")]
    material = prepare(parse_run(configuration(BASE, "usual", 1e-3, 0, given.steps))).train
    losses = {name: {str(width): {f"{rate:g}": [loss_of(width, name, rate, seed, given.steps, material)
                                                for seed in range(given.seeds)] for rate in RATES}
                     for width in widths} for name in NAMES}
    record = {"steps": given.steps, "seeds": given.seeds, "losses": losses}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "result.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (given.out / "README.md").write_text(page(record), encoding="utf-8")
    shown = [(name, width, rates) for name, each in losses.items() for width, rates in each.items()]
    curves = [Curve(f"{name} {width}", [(math.log2(float(rate)), min(6.0, statistics.mean(found)))
                                        for rate, found in rates.items()], index)
              for index, (name, width, rates) in enumerate(shown)]
    figure = chart("width_transfer", "Loss against the learning rate", "The loss at the end of training, for every "
                   "width in both parametrizations; above 6 it is drawn at 6.", curves, "log2 of the learning rate",
                   "nats/token", width=640, height=320)
    (given.out / "width_transfer.svg").write_text(figure.alone(), encoding="utf-8")


if __name__ == "__main__":
    main()
