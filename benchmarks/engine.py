"""The engine of serving against the slots that it decodes with: what scheduling, admission and events cost.

    python benchmarks/engine.py                    a Llama-like model of 30M parameters in bfloat16, 1 to 64 rows
    python benchmarks/engine.py --beside           a prompt of 32k tokens beside eight streams, instead
    python benchmarks/engine.py --prefix           the first token after a shared prefix, instead

All rows are asked for at once, 64 tokens in and 64 out, greedily. ``slots`` reads them with one call of
`Slots.admit_all` and then steps; ``engine`` is given the same rows as requests. The two take turns in one process;
figures are medians of the rounds. Results go to ``benchmarks/results/engine.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from weft.core.config import parse_part
from weft.core.model import LanguageModel
from weft.decoding import Row, RowSettings, Slots
from weft.serving.engine import Engine
from weft.serving.requests import EngineLimits, Event, Request
from weft.training.compute import processor_name

HERE = Path(__file__).parent
ROPE = {"kind": "attention", "n_heads": 6, "n_kv_heads": 2, "position": "rope"}
LAYERS: dict[str, Any] = {"attention": ROPE, "mamba": "mamba"}


def model_of(kind: str, options: argparse.Namespace) -> LanguageModel:
    torch.manual_seed(0)
    model = parse_part(("model",), {
        "kind": "decoder", "vocab_size": options.vocabulary, "context": 2048, "d_model": options.width,
        "norm": "rmsnorm", "blocks": [{"repeat": options.layers, "of": [{
            "kind": "pre", "norm": "rmsnorm",
            "layers": [LAYERS[kind], {"kind": "glu", "d_ff": 8 * options.width // 3}]}]}]}).build(None)
    assert isinstance(model, LanguageModel)
    return model.eval().to(getattr(torch, options.dtype))


def prompts(count: int, length: int, vocabulary: int, seed: int) -> list[Row]:
    generator = torch.Generator().manual_seed(seed)
    return [Row(tuple(line)) for line in torch.randint(vocabulary, (count, length), generator=generator).tolist()]


def through_slots(model: LanguageModel, rows: list[Row], new: int) -> float:
    """New tokens a second."""
    begun = time.perf_counter()
    slots = Slots(model, len(rows), capacity=256)
    slots.admit_all(rows, [RowSettings(new, row=index) for index in range(len(rows))])
    while slots.live:
        slots.step()
    slots.close()
    return len(rows) * new / (time.perf_counter() - begun)


def through_engine(model: LanguageModel, rows: list[Row], new: int) -> float:
    """New tokens a second."""
    engine = Engine(model, None, limits=EngineLimits(prefix_bytes=0))
    begun = time.perf_counter()
    events: list[Event] = []
    for index, row in enumerate(rows):
        engine.submit(Request(row, RowSettings(new, row=index), keep=False), events.append)
    while engine.step():
        pass
    spent = time.perf_counter() - begun
    assert len(events) == len(rows) * (new + 1), events[:1]
    return len(rows) * new / spent


def speeds(options: argparse.Namespace) -> dict[str, Any]:
    model, ways = model_of("attention", options), {"slots": through_slots, "engine": through_engine}
    found: dict[str, Any] = {"parameters": sum(each.numel() for each in model.parameters())}
    for count in options.rows:
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.rounds + 1):  # the first one is not counted
            for way, run in ways.items():
                times[way].append(run(model, prompts(count, 64, options.vocabulary, turn), 64))
        middle = {way: statistics.median(each[1:]) for way, each in times.items()}
        found[f"{count} rows"] = {**middle, "engine over slots": middle["engine"] / middle["slots"]}
        print(count, found[f"{count} rows"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, number in (("width", 384), ("layers", 10), ("vocabulary", 16384), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=HERE / "results" / "engine.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    kinds: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"speeds": speeds}
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for name, measure in kinds.items():
        found[name] = measure(options)
    found["machine"] = {"processor": processor_name(), "threads": options.threads, "torch": torch.__version__,
                        "load": os.getloadavg()[0]}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
