"""Renew src/weft/ops/thresholds.json for this processor: where one form of an operation becomes faster than another.

    python benchmarks/thresholds.py                         # on an idle machine; two minutes
    python benchmarks/thresholds.py --only int8_linear.few  # one of them, the others stay

For every threshold two forms are timed in turns on calls of growing size. The threshold is the size up to which taking
the first, and the second beyond it, costs the least over all sizes. The entry of this processor is replaced or added;
those of others stay, and so does the order of forms, which is a decision and not a measurement. Another process that
computes makes threads wait for one another, and the figures worthless: OMP_NUM_THREADS=1 is then the lesser evil.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.core.clock import Keys
from weft.core.config import parse_part
from weft.core.part_config import Dims
from weft.core.span import WHOLE
from weft.decoding.rows import Row
from weft.decoding.session import Session
from weft.masks import Causal, Window
from weft.masks.visible import Rule, visible
from weft.ops.attention import AttentionCall
from weft.ops.banded_attention import ROWS
from weft.ops.fft_convolution import ConvolutionCall
from weft.ops.forms import OPERATIONS, forced
from weft.ops.int8_linear import Int8Call, quantised
from weft.ops.linear import LinearCall
from weft.ops.linear_recurrence import LinearRecurrenceCall
from weft.ops.native.library import why_not
from weft.ops.processor import processor_name
from weft.ops.rms_norm import RMSNormCall
from weft.ops.thresholds import FILE
from weft.ops.wide_linear import lacks_bfloat16
from weft.positions.base import PositionTerm

WINDOW, EXPERTS = 128, 8
ROWS_OF_A_MAP = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256)
TURNS, SECONDS = 15, 0.01
"""Turns for each size, and the least time that a form is repeated for in a turn."""


def crossing(operation: str, first: str, second: str, calls: Iterator[tuple[int, Any]],
             running: Callable[[str, str], Callable[[Any], Any]] | None = None) -> int:
    """The size up to which to take ``first`` in place of ``second``; 0 for none.

    Args:
        operation: by its name, as the forms are.
        first, second: forms.
        calls: sizes and calls, growing.
        running: returns the function of a call that is timed, of an operation and a form; None: the form alone.
    """
    one, other = ((OPERATIONS.get(operation).form(name).run if running is None else running(operation, name))
                  for name in (first, second))
    best, least, cost = 0, 0.0, 0.0
    for size, call in calls:
        ratio = statistics.median(seconds(one, call) / seconds(other, call) for _ in range(TURNS))
        print(f"{operation}: {first} / {second} at {size}: {ratio:.2f}", flush=True)
        cost += math.log(ratio)
        if cost < least:
            best, least = size, cost
    return best


def seconds(work: Callable[[Any], Any], call: Any, clock: Callable[[], float] = time.perf_counter) -> float:
    """Of ``work(call)``, over as many times as fill `SECONDS`."""
    work(call)
    count, begun = 0, clock()
    while (taken := clock() - begun) < SECONDS:
        work(call)
        count += 1
    return taken / count


def normalised() -> Iterator[tuple[int, RMSNormCall]]:
    """Vectors of 512 numbers, from one of them to 512."""
    for rows in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512):
        yield rows * 512, RMSNormCall(torch.randn(rows, 512), torch.ones(512), 1e-6)


def windowed() -> Iterator[tuple[int, AttentionCall]]:
    """A window of 128 keys in rows that grow from one block's keys to ten times as many."""
    band = WINDOW + ROWS
    for steps in (band, band * 3 // 2, band * 2, band * 5 // 2, band * 3, band * 4, band * 6, band * 10):
        x = torch.randn(1, steps, 4, 64)
        span = WHOLE.resolve(None, x)
        yield steps, AttentionCall(x, x, x, 0.125, visible(Rule.of(Window(WINDOW), 4), Keys.of(span.ticks), span))


def biased() -> Iterator[tuple[int, AttentionCall]]:
    """Causal attention of four heads with ALiBi, in rows that grow."""
    scheme = parse_part(("position",), "alibi").build_for_heads(Dims(256), 4, 64)
    for steps in (256, 384, 512, 768, 1024, 1536, 2048):
        x = torch.randn(1, steps, 4, 64, requires_grad=True)
        span = WHOLE.resolve(None, x)
        keys = Keys.of(span.ticks)
        yield steps, AttentionCall(x, x, x, 0.125, visible(Rule.of(Causal(), 4), keys, span),
                                   (PositionTerm(scheme, x, x, span.ticks, keys),))


def short_rows() -> Iterator[tuple[int, AttentionCall]]:
    """Causal attention of four rows and eight heads of 64 features, in rows that grow."""
    for steps in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        x = torch.randn(4, steps, 8, 64, requires_grad=True)
        span = WHOLE.resolve(None, x)
        yield steps, AttentionCall(x, x, x, 0.125, visible(Rule.of(Causal(), 8), Keys.of(span.ticks), span))


def recurrences() -> Iterator[tuple[int, LinearRecurrenceCall]]:
    """One row of eight heads of 64 features with a decay for each token, in rows that grow."""
    for steps in (2, 3, 4, 8, 16, 32, 64, 128):
        x = torch.randn(1, steps, 8, 64)
        yield steps, LinearRecurrenceCall(x, x, x, -torch.rand(1, steps, 8, 1), torch.zeros(1, 8, 64, 64))


def long_kernels() -> Iterator[tuple[int, ConvolutionCall]]:
    """Convolutions of four rows of 128 channels with a kernel as long as the row, as layers give them, in rows that
    grow."""
    for steps in (32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096):
        u = torch.randn(4, steps, 128, requires_grad=True)
        yield steps, ConvolutionCall(u.transpose(1, 2), torch.randn(128, steps, requires_grad=True))


def trained(operation: str, form: str) -> Callable[[Any], None]:
    """A call forward and backward."""
    run = OPERATIONS.get(operation).form(form).run

    @torch.enable_grad()
    def both(call: Any) -> None:
        run(call).sum().backward()

    return both


def band() -> float:
    """How many times the keys of a block there must be; at least one, with fewer nothing was measured."""
    return max(1.0, round(crossing("attention", "sdpa", "banded", windowed()) / (WINDOW + ROWS), 2))


def narrow_maps() -> Iterator[tuple[int, LinearCall]]:
    """A map of 512 to 512 features in bfloat16, of one vector to 256."""
    weight = torch.randn(512, 512).bfloat16()
    for rows in ROWS_OF_A_MAP:
        yield rows, LinearCall(torch.randn(rows, 512).bfloat16(), weight)


def int8_maps() -> Iterator[tuple[int, Int8Call]]:
    """A map of 512 to 512 features by int8 weights in bfloat16, of one vector to 256."""
    values, scale = quantised(torch.randn(512, 512))
    for rows in ROWS_OF_A_MAP:
        yield rows, Int8Call(torch.randn(rows, 512).bfloat16(), values, scale)


def expert(width: int) -> Callable[[Tensor], Tensor]:
    """A gated feed-forward of 12 width^2 weights."""
    up, down = torch.randn(8 * width, width), torch.randn(width, 4 * width)

    def run(rows: Tensor) -> Tensor:
        gate, value = F.linear(rows, up).chunk(2, -1)
        return F.linear(F.silu(gate) * value, down)

    return run


Steps = tuple[dict[str, Session], int]
"""A session for each form, and the rows of a step."""


def stepping(width: int, rows: int) -> Steps:
    """Sessions of a model of experts, whose steps are recorded where the form can be. It has several layers, so that
    weights are read from memory and not from a cache."""
    moe = {"kind": "moe", "n_experts": EXPERTS, "top_k": 2, "expert": {"kind": "glu", "d_ff": 4 * width}}
    blocks = [{"repeat": 4, "of": [{"kind": "pre", "layers": [moe]}]}]
    config = {"kind": "decoder", "vocab_size": 257, "d_model": width, "blocks": blocks}
    model = parse_part(("model",), config).build(None).eval()
    sessions = {form: Session(model, [Row((1 + row % 256,)) for row in range(rows)], max_new_tokens=1 << 20)
                for form in ("reference", "grouped")}
    for form in sessions:
        for _ in range(8):  # the steps in which a tape is recorded and checked
            step("expert_dispatch", form)((sessions, rows))
    return sessions, rows


def decoded() -> Iterator[tuple[int, Steps]]:
    """One token a step, by the bytes of the experts that it does not choose in a layer."""
    for width in (64, 128, 192, 256, 384, 512):
        yield 12 * width * width * (EXPERTS - 2) * 4, stepping(width, 1)


def decoded_together() -> Iterator[tuple[int, Steps]]:
    """Steps of several rows, by their number. Before all experts are chosen, reading the others decides."""
    for rows in (4, 8, 12, 16, 24, 32, 48, 64, 96, 128):
        yield rows, stepping(256, rows)


def step(operation: str, form: str) -> Callable[[Steps], None]:
    """A decoding step by a form of an operation."""

    def run(steps: Steps) -> None:
        sessions, rows = steps
        with forced({operation: form}):
            sessions[form].advance(1 + torch.arange(rows) % 256)

    return run


THRESHOLDS: Mapping[str, Callable[[], float]] = {
    "attention.band": band,
    "attention.bias": lambda: crossing("attention", "sdpa", "banded", biased(), trained),
    **({"attention.native": lambda: 1 + crossing("attention", "sdpa", "native", short_rows(), trained)}
       if why_not() is None else {}),
    **({"linear.native": lambda: crossing("linear", "native", "library", narrow_maps())} if why_not() is None else {}),
    "expert_dispatch.few": lambda: crossing("expert_dispatch", "reference", "grouped", decoded_together(), step),
    "expert_dispatch.spared_bytes": lambda: crossing("expert_dispatch", "reference", "grouped", decoded(), step),
    **({"fft_convolution.native": lambda: crossing("fft_convolution", "native", "operator", long_kernels(), trained)}
       if why_not() is None else {}),
    "int8_linear.few": lambda: crossing("int8_linear", "packed", "reference", int8_maps()),
    **({"linear_recurrence.native": lambda: 1 + crossing("linear_recurrence", "operator", "native", recurrences())}
       if why_not() is None else {}),
    "rms_norm.few": lambda: crossing("rms_norm", "pair", "sweep", normalised()),
    # Elsewhere the form `wide` is never chosen.
    **({"linear.few": lambda: crossing("linear", "library", "wide", narrow_maps())} if lacks_bfloat16() else {}),
}


def entry(names: Sequence[str]) -> dict[str, Any]:
    """This processor's, measured."""
    with torch.no_grad():
        values = {name: THRESHOLDS[name]() for name in names}
    return {"processor": processor_name(), "threads": torch.get_num_threads(), "torch": torch.__version__,
            "date": datetime.date.today().isoformat(), "values": values}


def renewed(content: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The file's text with another entry: lists and entries in one line each. Thresholds of the processor that were
    not measured now stay as they were."""
    others = [each for each in content["measured"] if each["processor"] != new["processor"]]
    before = next((each["values"] for each in content["measured"] if each not in others), {})
    new = {**new, "values": dict(sorted({**before, **new["values"]}.items()))}
    orders = ",\n".join(f"    {json.dumps(name)}: {json.dumps(forms)}" for name, forms in content["orders"].items())
    entries = ",\n".join(f"    {json.dumps(each)}" for each in [*others, new])
    return (f'{{\n  "script": {json.dumps(content["script"])},\n  "orders": {{\n{orders}\n  }},\n'
            f'  "assumed": {json.dumps(content["assumed"])},\n  "measured": [\n{entries}\n  ]\n}}\n')


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--only", nargs="+", choices=sorted(THRESHOLDS), default=sorted(THRESHOLDS))
    options = parser.parse_args()
    content = json.loads(options.file.read_text(encoding="utf-8"))
    options.file.write_text(renewed(content, entry(options.only)), encoding="utf-8")


if __name__ == "__main__":
    main()
