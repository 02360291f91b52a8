"""Figure of `gpu.py`: tokens a second of training by length, for six mixers of one size; and its drawing."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gpu_timing import Figure, Known, device, emptied, in_turns

from weft.core.model import LanguageModel
from weft.drawing.chart import Curve, chart
from weft.training import parse_run
from weft.training.run_training import build_model

LENGTHS = tuple(1024 << i for i in range(8))
TOKENS, BLOCKS = 1 << 17, 12
"""Of a batch, at every length; and blocks of the whole model, of which one is measured."""
ROPE = {"kind": "rope", "layout": "half_split"}
MIXERS: dict[str, dict[str, Any]] = {
    "attention": {"kind": "attention", "n_heads": 12, "position": ROPE},
    "window of 512": {"kind": "attention", "n_heads": 12, "position": ROPE, "mask": {"kind": "window", "size": 512}},
    "Mamba-2": {"kind": "mamba2"},
    "gated DeltaNet": {"kind": "gated_delta_net", "n_heads": 6, "d_head": 128, "d_value": 128},
    "RWKV-7": {"kind": "rwkv7", "n_heads": 12},
    "linear attention": {"kind": "linear_attention", "n_heads": 12}}


def block(mixer: Mapping[str, Any], length: int, tiny: bool) -> LanguageModel:
    """A decoder of one block, of a small vocabulary, in bfloat16, with norms and decays as a run has them."""
    width = 64 if tiny else 768
    own = dict(mixer)
    if tiny:
        own |= {"n_heads": 2} if "n_heads" in own else {}
        own |= {"d_head": 4, "d_value": 4} if "d_value" in own else {}
        own |= {"mask": {"kind": "window", "size": 3}} if "mask" in own else {}
    layers = [own, {"kind": "glu", "d_ff": 32 if tiny else 2048}]
    run = parse_run({"model": {"kind": "decoder", "vocab_size": 256, "context": length, "d_model": width,
                               "norm": "rmsnorm", "blocks": [{"kind": "pre", "norm": "rmsnorm", "layers": layers}]},
                     "training": {"steps": 1, "batch_size": 1, "dtype": "bfloat16"}})
    torch.manual_seed(0)
    from weft.training.precision import narrowed

    model = narrowed(build_model(run).to(device()), torch.bfloat16)
    assert isinstance(model, LanguageModel), "a decoder is one"
    return model.train()


def lengths(tiny: bool, _: Known) -> dict[str, Any]:
    """Milliseconds of one block, forward and backward, and the tokens a second of as many blocks as a model has."""
    report: dict[str, Any] = {}
    places, tokens = ((4, 8), 16) if tiny else (LENGTHS, TOKENS)
    for length in places:
        rows = tokens // length
        text = torch.randint(256, (rows, length), device=device())
        for name, mixer in MIXERS.items():
            model = block(mixer, length, tiny)

            def step(model: LanguageModel = model, text: torch.Tensor = text) -> None:
                model.readout.log_prob(model.hidden(text, None).y, text).mean().backward()
                model.zero_grad(set_to_none=True)

            taken = in_turns({name: step}, seconds=0.15, most=5)[name]
            rate = 1e3 * tokens / (BLOCKS * taken) if isinstance(taken, float) else taken
            report.setdefault(name, {})[str(length)] = rate
            del model, step
            emptied()
    return {"tokens of a batch": tokens, "blocks": BLOCKS, "tokens per second": report, "crossings": crossings(report)}


def crossings(report: Mapping[str, Mapping[str, Any]]) -> dict[str, int | None]:
    """The first measured length from which on each mixer is faster than attention at every one; None: there is none."""
    found: dict[str, int | None] = {}
    dense = report["attention"]
    for name, rates in report.items():
        ahead = [int(length) for length in rates if isinstance(rates[length], float) and (
            not isinstance(dense[length], float) or rates[length] > dense[length])]
        behind = [int(length) for length in rates if int(length) not in ahead]
        later = [each for each in ahead if not behind or each > max(behind)]
        found[name] = min(later) if later and name != "attention" else None
    return found


def drawing(value: Mapping[str, Any], card: str) -> str:
    """The figure as SVG."""
    curves = [Curve(name, [(float(length), rate) for length, rate in rates.items() if isinstance(rate, float)], style,
                    dots=True) for style, (name, rates) in enumerate(value["tokens per second"].items())]
    shown = [curve for curve in curves if curve.points]
    figure = chart("lengths", f"Tokens a second of training, by length, on {card}",
                   f"One block of width 768 forward and backward, times {BLOCKS}: a batch of "
                   f"{value['tokens of a batch']:,} tokens at every length.", shown, "tokens of a row",
                   "tokens a second", scale="logarithmic", lengths=True, width=520, height=320, letters=17)
    return figure.alone()


FIGURES: dict[str, Figure] = {"lengths/six mixers": Figure(75, lengths)}


def main() -> None:
    """Draw the figure of a file of results."""
    parser = argparse.ArgumentParser(description="Draw the figure of lengths of a file that gpu.py has written.")
    parser.add_argument("results", type=Path)
    parser.add_argument("svg", type=Path)
    given = parser.parse_args()
    found = json.loads(given.results.read_text("utf-8"))["figures"]["lengths/six mixers"]
    given.svg.write_text(drawing(found["value"], found["card"]), encoding="utf-8")


if __name__ == "__main__":
    main()
