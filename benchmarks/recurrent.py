"""Recurrent models: training against other implementations, decoding, and how time and memory grow with the tokens.

    python benchmarks/recurrent.py [--mixers mamba attention ...] [--only decoding] [--rounds 5]    # on an idle machine

Models have some ten million parameters (`recurrent_models.SUBJECTS`). Training: a step of AdamW on four rows of 512
tokens, the contenders of a mixer in turns in one process; ratios to the first peer are medians over the turns.
Decoding: 128 tokens after a prompt of 64, at batch 1, greedily, by Weft (plain and compiled) and by
`transformers` from one folder of weights, in turns, in float32 and in bfloat16; in float32 all must give the same
tokens. Growth: one layer of 256 features, forward and backward, on one row
of 1,024 to 65,536 tokens, with the peak memory of a process of its own beyond what it held before; and a step of one
token after as many. What is wanted stands in `SUBJECTS`. Peers that are not installed are named as missing. Mamba takes
some six minutes, most of them the peer's. Writes ``results/recurrent.json``.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attention import held
from recurrent_models import CLIP, RATE, SUBJECTS, Sizes, Subject, logits_of
from torch import Tensor, nn
from training_weft import stream_of

from weft import api
from weft.core.config import parse_part
from weft.core.layer import Layer
from weft.core.part_config import Dims
from weft.decoding import CompiledStep, generate
from weft.ops.forms import forced
from weft.ops.native.library import describe
from weft.ops.processor import processor_name
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

Step = Callable[[], None]
RESULTS = Path(__file__).parent / "results" / "recurrent.json"
WIDTH = 256
LENGTHS = (1024, 4096, 16384, 65536)
PROMPT, NEW = 64, 128
DTYPES = ("float32", "bfloat16")
"""In which models decode."""
PARTS = ("training", "decoding", "growth")


def tokens_of(sizes: Sizes, steps: int) -> Tensor:
    """Random tokens for so many steps."""
    return torch.randint(sizes.vocabulary, (steps * sizes.rows * sizes.steps + 1,),
                         generator=torch.Generator().manual_seed(0))


def weft_step(subject: Subject, sizes: Sizes, kernels: Mapping[str, str], steps: int) -> tuple[nn.Module, Step]:
    """Weft's model, and a step of its own trainer."""
    run = subject.run(sizes, kernels, steps)
    torch.manual_seed(0)
    model = build_model(run)
    trainer = Trainer(run, model, stream_of(tokens_of(sizes, steps), sizes.vocabulary), steps=steps, device="cpu")

    def step() -> None:
        with forced(kernels):
            trainer.advance()

    return model, step


def peer_step(model: nn.Module, sizes: Sizes) -> Step:
    """A step of the plain loop that a user of the other library would write."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)
    tokens = tokens_of(sizes, 1)
    inputs, targets = tokens[:-1].view(sizes.rows, -1), tokens[1:]

    def step() -> None:
        nn.functional.cross_entropy(logits_of(model, inputs).flatten(0, 1), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def training(subject: Subject, sizes: Sizes, rounds: int) -> dict[str, Any]:
    """Tokens a second of every contender, and its ratio to the first peer."""
    built = {name: weft_step(subject, sizes, kernels, rounds + 1) for name, kernels in subject.forms.items()}
    missing = [name for name in subject.peers if importlib.util.find_spec(name) is None]
    for name, peer in subject.peers.items():
        if name not in missing:
            model = peer(sizes)
            built[name] = model, peer_step(model, sizes)
    seconds: dict[str, list[float]] = {name: [] for name in built}
    for _ in range(rounds + 1):
        for name, (_, step) in built.items():
            begun = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - begun)
    taken = {name: each[1:] for name, each in seconds.items()}  # the first one measures products and fills caches
    base = next((name for name in subject.peers if name not in missing), next(iter(built)))
    return {"not installed": missing, "contenders": {
        name: {"tokens per second": sizes.rows * sizes.steps / statistics.median(own),
               f"times {base}": statistics.median(a / b for a, b in zip(taken[base], own, strict=True)),
               "parameters": sum(p.numel() for p in built[name][0].parameters())} for name, own in taken.items()}}


def decoding(subject: Subject, sizes: Sizes, rounds: int) -> dict[str, Any] | None:
    """By dtype: tokens a second by Weft, as it is and compiled, and by `transformers`, from the same
    weights."""
    if subject.foreign is None or importlib.util.find_spec("transformers") is None:
        return None
    with tempfile.TemporaryDirectory() as place:
        subject.foreign(sizes).save_pretrained(place)  # type: ignore[operator]
        return {name: _decoding(subject.foreign(sizes), api.load(place).model, getattr(torch, name), sizes, rounds)
                for name in DTYPES}


def _decoding(foreign: Any, own: Any, dtype: torch.dtype, sizes: Sizes, rounds: int) -> dict[str, Any]:
    """In one dtype; ``first``, seconds of the first run, holds what the compiler takes."""
    foreign, own = foreign.to(dtype).eval(), own.to(dtype).eval()
    compiled = CompiledStep(own)
    prompt = torch.randint(sizes.vocabulary, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()

    def by_weft(model: Any, step: CompiledStep | None = None) -> list[int]:
        return list(generate(model, [prompt], max_new_tokens=NEW, compiled=step).rows[0].tokens)

    def by_transformers() -> list[int]:
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = foreign.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False,
                                   pad_token_id=0, eos_token_id=None)
        return [int(token) for token in out[0, PROMPT:]]

    runs: dict[str, Callable[[], list[int]]] = {
        "weft": lambda: by_weft(own),
        "weft compiled": lambda: by_weft(own, compiled), "transformers": by_transformers}
    timed = {name: timed_run(run) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name].append(timed_run(run)[0])
    same = {name: tokens == timed["transformers"][1] for name, (_, tokens) in timed.items()}
    return {name: {"tokens per second": NEW / statistics.median(taken), "same tokens": same[name],
                   "first": timed[name][0], "times transformers": statistics.median(
                       a / b for a, b in zip(seconds["transformers"], taken, strict=True))}
            for name, taken in seconds.items()}


def timed_run(run: Callable[[], list[int]]) -> tuple[float, list[int]]:
    """Its seconds and its tokens."""
    begun = time.perf_counter()
    tokens = run()
    return time.perf_counter() - begun, tokens


def layer_of(mixer: str) -> Layer:
    """The mixer alone."""
    torch.manual_seed(0)
    layer = parse_part(("mixer",), dict(SUBJECTS[mixer].layers[0])).build(Dims(WIDTH, context=LENGTHS[-1]))
    assert isinstance(layer, Layer), "a mixer is one"
    return layer


def both_ways(layer: Layer, steps: int) -> float:
    """Seconds of forward and backward on one row."""
    x = torch.randn(1, steps, WIDTH)
    begun = time.perf_counter()
    layer(x).y.square().mean().backward()
    return time.perf_counter() - begun


def one_token(layer: Layer, steps: int) -> float:
    """Seconds of a step after ``steps`` tokens."""
    with torch.inference_mode():
        state = layer.init_state(1, capacity=steps + 64)
        for _ in range(steps // 1024):
            state = layer(torch.randn(1, 1024, WIDTH), state).state
        taken = []
        for _ in range(60):
            x = torch.randn(1, 1, WIDTH)
            begun = time.perf_counter()
            state = layer(x, state).state
            taken.append(time.perf_counter() - begun)
    return statistics.median(taken[10:])


def measured_length(mixer: str, steps: int) -> dict[str, float]:
    """Seconds and bytes of one length, in this process."""
    layer = layer_of(mixer)
    both_ways(layer, 256)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew, see proc(5)
    before = held("VmHWM")
    first = both_ways(layer, steps)
    peak = held("VmHWM") - before
    return {"seconds": min(first, both_ways(layer, steps)), "MiB": peak / 2**20, "step": one_token(layer, steps)}


def growth(mixer: str, longest: int) -> dict[str, Any]:
    """By the number of tokens, each in a process of its own; per token relative to the shortest."""
    found: dict[str, Any] = {}
    for steps in (each for each in LENGTHS if each <= longest):
        done = subprocess.run([sys.executable, __file__, "--length", mixer, str(steps), "--threads",
                               str(torch.get_num_threads())], check=True, capture_output=True, text=True)
        row = found[str(steps)] = json.loads(done.stdout.splitlines()[-1])
        base, factor = found[str(LENGTHS[0])], steps / LENGTHS[0]
        row |= {"seconds a token, relative": row["seconds"] / base["seconds"] / factor,
                "memory a token, relative": row["MiB"] / base["MiB"] / factor}
    return found


def measured(mixer: str, given: argparse.Namespace) -> dict[str, Any]:
    """All of one mixer."""
    subject, sizes = SUBJECTS[mixer], Sizes(given.width, given.layers, given.vocabulary, given.rows, given.steps)
    parts: dict[str, Callable[[], Any]] = {
        "training": lambda: training(subject, sizes, given.rounds),
        "decoding": lambda: decoding(subject, sizes, given.rounds), "growth": lambda: growth(mixer, given.longest)}
    return {"wanted": dict(subject.wanted), **{name: parts[name]() for name in given.only}}


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--mixers", nargs="+", default=["mamba"], choices=tuple(SUBJECTS))
    made.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS, help="what to measure")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--longest", type=int, default=LENGTHS[-1], help="tokens of the longest row")
    for name, value in Sizes()._asdict().items():
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--out", type=Path, default=RESULTS)
    made.add_argument("--note", default="", help="written into the results")
    made.add_argument("--length", nargs=2, help=argparse.SUPPRESS)
    return made


def main() -> None:
    """Measure, print, write."""
    given = parser().parse_args()
    torch.set_num_threads(given.threads)
    if given.length is not None:
        print(json.dumps(measured_length(given.length[0], int(given.length[1]))))
        return
    load = os.getloadavg()[0]
    mixers = {mixer: measured(mixer, given) for mixer in given.mixers}
    report = {"processor": processor_name(), "threads": given.threads, "torch": torch.__version__,
              "native code": describe().split(",")[0], "date": datetime.date.today().isoformat(),
              "load": {"before": load, "after": os.getloadavg()[0]}, "note": given.note,
              "sizes": {name: getattr(given, name) for name in Sizes._fields}, "mixers": mixers}
    print(json.dumps(report, indent=1))
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
