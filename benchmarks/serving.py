"""Decoding while rows come and go, against the same steps of rows that stay.

    python benchmarks/serving.py                  four kinds of layer, eight slots, a change every eight steps
    python benchmarks/serving.py --layers 2 --width 64 --steps 64

``plain`` steps of rows that stay go through the model's own code; ``staying`` ones are taken as `Slots` takes them, by
tape; in ``changing`` a row leaves and another is admitted every eight steps, its prompt being read included, and in
``changing, without prompts`` not. The four take turns, a block of steps each, in one process; figures are medians over
blocks. Joining is also timed by itself: a row put into a running batch in place (`weft.core.rows.admit`), and the batch
made anew around it (`concat`). Results go to ``benchmarks/results/serving.json`` and ``.md``.
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
from weft.core.model import LanguageModel, ModelState
from weft.core.rows import admit
from weft.core.span import Span
from weft.core.state import concat
from weft.decoding import RowSettings, Slots
from weft.training.compute import processor_name

HERE = Path(__file__).parent
EVERY = 8
ROPE = {"kind": "attention", "n_heads": 8, "n_kv_heads": 2, "position": "rope"}
LAYERS: dict[str, list[Any]] = {
    "attention": [ROPE], "window": [{**ROPE, "mask": "causal & window(128)"}], "lstm": ["lstm"], "s4d": ["s4d"],
    "hybrid": [ROPE, {**ROPE, "mask": "causal & window(128)"}, "lstm", "s4d"]}


def model_of(kind: str, options: argparse.Namespace) -> LanguageModel:
    torch.manual_seed(0)
    model = parse_part(("model",), {
        "kind": "decoder", "vocab_size": options.vocabulary, "context": options.capacity, "d_model": options.width,
        "norm": "rmsnorm", "blocks": [{"repeat": options.layers, "of": [{
            "kind": "pre", "norm": "rmsnorm", "layers": [*LAYERS[kind], {"kind": "glu", "d_ff": 3 * options.width}]}]}],
    }).build(None)
    assert isinstance(model, LanguageModel)
    return model.eval()


class Batch:
    """Slots that are full, in which a row may be replaced every few steps."""

    def __init__(self, model: LanguageModel, options: argparse.Namespace, *, plain: bool, changing: bool) -> None:
        self._clock = time.process_time if options.cpu_time else time.perf_counter
        self._prompt, self._new = options.prompt, options.capacity - options.prompt
        self._slots = Slots(model, options.rows, capacity=options.capacity, plain=plain)
        self._changing, self._next, self.reading = changing, 0, 0.0
        for _ in range(options.rows):
            self._admit()
        for _ in range(24):
            self._slots.step()

    def _admit(self) -> None:
        prompt = [(self._next + place) % 97 for place in range(self._prompt)]
        self._slots.admit(prompt, RowSettings(self._new, row=self._next))
        self._next += 1

    def block(self) -> tuple[float, float]:
        """Seconds of a step, over `EVERY` of them; the second without admitting."""
        begun = self._clock()
        if self._changing:
            self._slots.retire(self._next % self._slots.size)
            self._admit()
        between = self._clock()
        for _ in range(EVERY):
            assert len(self._slots.step()) == self._slots.size
        ended = self._clock()
        return (ended - begun) / EVERY, (ended - between) / EVERY


def measured(model: LanguageModel, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a step in each way."""
    batches = {"plain": Batch(model, options, plain=True, changing=False),
               "staying": Batch(model, options, plain=False, changing=False),
               "changing": Batch(model, options, plain=False, changing=True)}
    seconds: dict[str, list[float]] = {name: [] for name in (*batches, "changing, without prompts")}
    for _ in range(options.steps // EVERY):
        for name, batch in batches.items():
            whole, alone = batch.block()
            seconds[name].append(whole)
            if name == "changing":
                seconds["changing, without prompts"].append(alone)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


def started(model: LanguageModel, rows: int, capacity: int, read: int) -> ModelState:
    tokens = torch.ones(rows, read, dtype=torch.int64)
    out = model.hidden(tokens, model.init_state(rows, capacity=capacity), Span(fresh=True, bound=read, uniform=True))
    assert out.state is not None
    return out.state


@torch.inference_mode()
def joining(options: argparse.Namespace, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds in which a row joins a batch of ``--state-bytes``: in place, and by making the batch anew."""
    model = model_of("attention", options)
    one = started(model, 1, 64, 64)
    slots = options.state_mib * 2**20 * 64 // (sum(tensor.nbytes for tensor, spec in one.tensors().values()
                                                  if spec.grows is not None) * options.rows)
    batch = started(model, options.rows, slots, 8)

    def place() -> None:
        nonlocal batch
        batch = admit(batch, [3], one)

    ways: dict[str, Callable[[], object]] = {"in place": place, "anew": lambda: concat([batch, one])}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            begun = clock()
            way()
            seconds[name].append(clock() - begun)
    return {"state_mib": batch.nbytes() / 2**20, **{name: 1000 * statistics.median(each)
                                                    for name, each in seconds.items()}}


def table(report: dict[str, Any]) -> str:
    """The results as Markdown."""
    names = ("plain", "staying", "changing", "changing, without prompts")
    lines = [f"| layers | {' | '.join(names)} | changing / plain |", f"| --- {'| --- ' * 5}|"]
    for kind, found in report["steps"].items():
        figures = " | ".join(f"{found[name]:.2f}" for name in names)
        lines.append(f"| {kind} | {figures} | {found['changing'] / found['plain']:.2f} |")
    joined = report["joining"]
    return "\n".join([*lines, "", f"Milliseconds of a step, medians. A row joins a batch whose state holds "
                      f"{joined['state_mib']:.0f} MiB in {joined['in place']:.1f} ms in place, in {joined['anew']:.0f} "
                      f"ms where the batch is made anew.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"layers": 4, "width": 256, "vocabulary": 4096, "capacity": 1024, "rows": 8, "prompt": 32,
                        "steps": 320, "state-mib": 256, "threads": torch.get_num_threads()}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--cpu-time", action="store_true",
                        help="time of the processor, with one thread, where the machine is not idle")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    before = os.getloadavg()[0]
    report = {"shape": {name: getattr(options, name) for name in ("layers", "width", "vocabulary", "capacity", "rows",
                                                                  "prompt", "steps")},
              "threads": options.threads, "cpu_time": options.cpu_time, "processor": processor_name(),
              "torch": torch.__version__,
              "steps": {kind: measured(model_of(kind, options), options) for kind in LAYERS},
              "joining": joining(options, clock), "load_before": before, "load_after": os.getloadavg()[0]}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "serving.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "serving.md").write_text(table(report))
    print(table(report))


if __name__ == "__main__":
    main()
