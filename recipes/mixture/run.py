"""Pre-training on a mixture of books, wikitext-2 and text of the web, with the losses by source.

    python recipes/mixture/run.py DATA                 about three minutes on one core
    python recipes/mixture/run.py DATA --steps 20 --seeds 1 --out /tmp/mixture      a trial

DATA is a folder with books/*.txt, wikitext-2/train.txt and web-text/c4_demo.jsonl. The same model is trained with equal
weights and with mostly books, on several seeds. It writes result.json, mixture.svg and README.md beside itself. The
command that scales it up is `torchrun --nproc-per-node 8 -m weft train`, with the sources and a preset of the size.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from weft.drawing.chart import Curve, chart
from weft.training import Progress, parse_run, print_event, train
from weft.training.events import Event
from weft.training.sources import SourcesRead

HERE = Path(__file__).parent
WEIGHTS = {"equal": {"books": 1.0, "wiki": 1.0, "web": 1.0}, "books": {"books": 0.8, "wiki": 0.1, "web": 0.1}}


def configuration(data: Path, weights: dict[str, float], seed: int, steps: int) -> dict[str, Any]:
    paths = {"books": str(data / "books/*.txt"), "wiki": str(data / "wikitext-2/train.txt"),
             "web": str(data / "web-text/c4_demo.jsonl")}
    layers = [{"kind": "attention", "n_heads": 4, "position": "rope"}, {"kind": "glu", "d_ff": 256}]
    return {"model": {"kind": "decoder", "d_model": 96, "context": 128, "norm": "rmsnorm", "embedding": {"std": 0.1},
                      "blocks": [{"repeat": 3, "of": [{"kind": "pre", "norm": "rmsnorm", "layers": layers}]}]},
            "tokenizer": {"kind": "bpe", "vocab_size": 1024}, "seed": seed,
            "data": {"order_seed": seed, "max_bytes": 2_000_000, "sources": {
                name: {"path": path, "weight": weights[name], "max_epochs": 20} for name, path in paths.items()}},
            "training": {"steps": steps, "batch_size": 8, "optimizer": {"kind": "adamw", "lr": 0.003},
                         "compute": {"matmul": "default"}},
            "report": {"log_every": max(1, steps // 25), "eval_every": steps, "eval_batches": 60}}


def trained(data: Path, name: str, seed: int, steps: int, out: Path) -> dict[str, Any]:
    events: list[Event] = []

    def keep(event: Event) -> None:
        events.append(event)
        print_event(event)

    result = train(parse_run(configuration(data, WEIGHTS[name], seed, steps)), out / f"runs/{name}-{seed}",
                   on_event=keep)
    read = [event for event in events if isinstance(event, SourcesRead)][-1]
    return {"curve": [[event.step, dict(event.sources)] for event in events if isinstance(event, Progress)],
            "held_out": {key: value for key, value in result.validation.measures.items() if key.startswith("bits")},
            "read": [source.to_json() for source in read.sources]}


def page(found: dict[str, Any]) -> str:
    rows = []
    for name, runs in found["runs"].items():
        for index, read in enumerate(runs[0]["read"]):
            bits = [run["held_out"][f"bits_per_byte.{read['name']}"] for run in runs]
            spread = f" ± {statistics.stdev(bits):.3f}" if len(bits) > 1 else ""
            source = runs[0]["read"][index]
            rows.append(f"| {name} | {read['name']} | {read['weight']:.1%} | {source['realised']:,} | "
                        f"{source['realised'] / source['held']:.2f} | {statistics.mean(bits):.3f}{spread} |")
    return "\n".join([
        "# Losses by source", "",
        f"One model with two mixtures of books, wikitext-2 and text of the web: {found['steps']} steps, "
        f"{found['seeds']} seeds. Bits per byte are of the held-out text of each source, with the standard deviation "
        "over seeds.", "", "![Training loss by source](mixture.svg)", "",
        "| weights | source | share | tokens read | epochs | bits per byte |", "| --- | --- | --- | --- | --- | --- |",
        *rows, "", "`python recipes/mixture/run.py DATA` runs it again.", ""])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("data", type=Path)
    options.add_argument("--steps", type=int, default=400)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--out", type=Path, default=HERE)
    given = options.parse_args()
    runs = {name: [trained(given.data, name, seed, given.steps, given.out) for seed in range(given.seeds)]
            for name in WEIGHTS}
    record = {"steps": given.steps, "seeds": given.seeds, "runs": runs}
    (given.out / "result.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (given.out / "README.md").write_text(page(record), encoding="utf-8")
    lines = [(f"{name}: {source}", [(step, by[source]) for step, by in found[0]["curve"] if source in by])
             for name, found in runs.items() for source in WEIGHTS[name]]
    figure = chart("mixture", "Training loss by source", "The loss of each source during the first seed's run, with "
                   "equal weights and with mostly books.",
                   [Curve(name, points, index) for index, (name, points) in enumerate(lines)], "steps", "nats/token",
                   width=640, height=320, letters=14)
    (given.out / "mixture.svg").write_text(figure.alone(), encoding="utf-8")


if __name__ == "__main__":
    main()
