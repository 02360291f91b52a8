"""Which form computes each operation of every kind of model on this machine, and what the disputed ones are worth.

    python benchmarks/forms.py                   # five minutes of one core; other processes may run

Weft's presets, GPT-2 and a small model of every kind of layer are planned on tensors without data
(`weft.plan`): in training, in prompts and in steps of one token, in float32 and bfloat16, in short and in long rows.
``results/forms.json`` gives for every form in how many of these it was chosen, with the first of them. A form that was
chosen nowhere has a reason in ``KEPT``, or is one too many: the script ends with an error that names it. Where two
forms are close, or the limit between them is a number in the code, both are timed in turns, by the processor time of
one thread, which other processes do not take from; ``ratios`` are medians, in units of the first form's time.
"""

from __future__ import annotations

import datetime
import json
import statistics
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import weft
from weft.core.clock import Keys
from weft.core.errors import WeftError
from weft.core.span import WHOLE
from weft.masks import Causal
from weft.masks.visible import MaskFacts, visible
from weft.ops.attention import AttentionCall
from weft.ops.delta_rule import DeltaRuleCall
from weft.ops.forms import OPERATIONS
from weft.ops.int8_linear import Int8Call, quantised
from weft.ops.linear import LinearCall
from weft.ops.linear_recurrence import LinearRecurrenceCall
from weft.ops.norms import RMSNormCall
from weft.ops.processor import processor_name
from weft.ops.rotary import Layout, RotaryCall, turns
from weft.ops.wkv import WKVCall, empty_state

RESULTS = Path(__file__).parent / "results" / "forms.json"
PRESETS = ("transformer", "lstm", "s4d", "convolution", "encoder", "encoder_decoder", "gpt2")
ATTENTION = {"kind": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope"}
GLU = {"kind": "glu", "d_ff": 512}
LAYERS: Mapping[str, list[Mapping[str, Any]]] = {
    "window": [ATTENTION | {"mask": "causal & window(128)"}, GLU],
    "alibi": [{"kind": "attention", "n_heads": 4, "position": "alibi"}, GLU],
    "learned bias": [{"kind": "attention", "n_heads": 4, "position": "t5"}, GLU],
    "softcap": [ATTENTION | {"softcap": 20.0}, GLU],
    "latent attention": [{"kind": "latent_attention", "n_heads": 4}, GLU],
    "experts": [ATTENTION, {"kind": "moe", "n_experts": 8, "top_k": 2, "expert": GLU}],
    **{kind: [{"kind": kind}, GLU] for kind in ("elman", "gru", "mamba", "s4", "linear_ssm", "rg_lru", "rwkv4")},
    **{kind: [{"kind": kind, "n_heads": 4}, GLU] for kind in (
        "mamba2", "linear_attention", "performer", "retention", "gated_linear_attention", "rwkv6", "rwkv7",
        "gated_delta_net", "kimi_delta", "fast_weights")},
}
REWRITES: Mapping[str, Mapping[str, Any]] = {"int8": {"kind": "int8", "maps": ["*"]},
                                             "int4": {"kind": "int4", "maps": ["*"]}}
PORTABLE = "what serves where there is no C compiler, on other devices and in float64"
GPU, COMPILED = "what serves on an NVIDIA GPU", "what torch.compile takes for a step of one token"
KEPT: Mapping[str, str] = {
    **{f"{operation}.operator": PORTABLE for operation in (
        "linear_recurrence", "delta_rule", "wkv", "diagonal_recurrence", "selective_scan", "packed_convolution")},
    **dict.fromkeys((
        "s4d_kernel.blocks", "short_convolution.token", "selective_scan.step", "attention.grouped_rows",
        "attention.banded", "int8_linear.packed", "rms_norm.library", "layer_norm.library",
        "linear.library"), PORTABLE),
    "linear_recurrence.triton": GPU, "selective_scan.triton": GPU, "dropout.library": GPU, "clusters.grouped":
        "frequent and rare ids in training (adaptive softmax)", "log_prob.pieces": "scoring of long rows",
    **{f"{operation}.one_token": COMPILED for operation in ("linear", "int8_linear", "int4_linear")},
    **{f"product.{route}": "measured on each machine, and on some the fastest" for route in (
        "onednn", "switched", "wide")}, "linear.routed": "what takes these routes",
    "attention.wide_sdpa": "short rows in bfloat16 on processors without its instructions",
    "linear.wide": "bfloat16 on processors without its instructions", "s4.cauchy": "the published formula, by name",
    "linear_ssm.convolution": "backend: convolution", "dropout.lots": "training with dropout",
    "cross_entropy.pieces": "the loss of every training run, which a plan does not call",
    "gated_feed_forward.native": "steps of gated units, which a plan counts map by map",
    "gated_feed_forward.parts": "the same for more rows", "latent_attention.absorbed": "steps after many tokens",
    "rotary.halves": "the layout of pairs in Hugging Face's files", "embedding.wide_sums": "bfloat16",
    "packed_convolution.native": "packed documents", "s4d.documents": "the same"}
TURNS, SECONDS = 9, 0.003


def sources() -> Iterator[tuple[str, Any]]:
    """Names and configurations of models."""
    yield from ((name, name) for name in PRESETS if name in weft.presets())
    for name, layers in LAYERS.items():
        block = {"kind": "pre", "norm": "rmsnorm", "layers": [dict(each) for each in layers]}
        for rewrite in (None, *(REWRITES if name == "window" else ())):
            config = {"kind": "decoder", "vocab_size": 1024, "d_model": 256, "context": 8192, "norm": "rmsnorm",
                      "blocks": [block], "rewrites": [] if rewrite is None else [dict(REWRITES[rewrite])]}
            yield name if rewrite is None else f"{name}, {rewrite}", {"model": config}


def chosen() -> dict[str, dict[str, Any]]:
    """Of every operation every form: in how many models and phases it is taken, and the first of them."""
    found: dict[str, dict[str, Any]] = {operation.name: {form.name: {"chosen": 0} for form in operation.forms()}
                                        for operation in OPERATIONS.all()}
    for name, source in sources():
        for dtype in ("float32", "bfloat16"):
            for context in (48, 4096):
                try:
                    forms = weft.plan(source, context=context, batch=2, dtype=dtype).forms
                except WeftError:  # beyond the model's positions, or a dtype that it does not take
                    continue
                print(name, dtype, context, flush=True)
                for each in forms:
                    row = found[each.operation][each.form]
                    row["chosen"] += 1
                    row.setdefault("first", f"{name}, {each.phases[0]}, {dtype}, {context} tokens")
    return found


def timed(operation: str, forms: tuple[str, ...], call: Any, gradients: bool = False) -> dict[str, float]:
    """The processor time of each form, forward or forward and backward, in units of the first form's."""
    def once(name: str, count: int) -> float:
        form = OPERATIONS.get(operation).form(name)
        run = form.run if gradients or form.kernel is None else form.kernel.run
        with torch.set_grad_enabled(gradients):
            begun = time.thread_time()
            for _ in range(count):
                y = run(call)
                if gradients:
                    y.backward(torch.ones_like(y))
            return (time.thread_time() - begun) / count

    counts = {name: 1 + int(SECONDS / max(min(once(name, 1) for _ in range(3)), 1e-7)) for name in forms}
    turns_of = {name: list[float]() for name in forms}
    for _ in range(TURNS):
        for name in forms:
            turns_of[name].append(once(name, counts[name]))
    middle = {name: statistics.median(each) for name, each in turns_of.items()}
    return {name: round(each / middle[forms[0]], 2) for name, each in middle.items()}


def attention(steps: int) -> AttentionCall:
    """Causal attention of four rows and eight heads of 64 features."""
    x = torch.randn(4, steps, 8, 64, requires_grad=True)
    span = WHOLE.resolve(None, x)
    return AttentionCall(x, x, x, 0.125, visible(MaskFacts.of(Causal(), 8), Keys.of(span.ticks), span))


def rotary(steps: int, layout: Layout) -> RotaryCall:
    """Four rows of eight heads of 64 features."""
    angles = torch.rand(1, steps, 32)
    return RotaryCall(torch.randn(4, steps, 8, 64), turns(angles.cos(), angles.sin(), layout))


def one_token(rows: int, heads: int) -> Iterator[tuple[str, Any]]:
    """Calls of one token, with states of heads of 64 features."""
    x, state = torch.randn(rows, 1, heads, 64), torch.randn(rows, heads, 64, 64)
    k: Tensor = torch.randn(rows, 1, heads * 64)
    yield "linear_recurrence", LinearRecurrenceCall(x, x, x, -torch.rand(rows, 1, heads, 1), state)
    yield "delta_rule", DeltaRuleCall(x, x, x, x, x, -torch.rand(rows, 1, heads, 1), state)
    yield "wkv", WKVCall(k, k, -torch.rand(heads * 64), torch.rand(heads * 64), empty_state(k), None, None)


def ratios() -> Iterator[tuple[str, dict[str, float]]]:
    """The disputed forms in turns."""
    for steps in (32, 48, 64, 96):
        yield (f"attention, training, {steps} queries", timed("attention", ("native", "sdpa"), attention(steps), True))
    for dtype in (torch.float32, torch.bfloat16):
        short = str(dtype).removeprefix("torch.")
        for outputs in (512, 2048):
            weight = torch.randn(outputs, 512).to(dtype)
            for rows in (8, 16, 24, 32, 48):
                yield f"linear, {short}, {outputs} x 512, {rows} rows", timed(
                    "linear", ("native", "library", "wide"), LinearCall(torch.randn(rows, 512).to(dtype), weight))
        for rows in (64, 2048):
            yield f"rms_norm, {short}, {rows} rows of 512", timed("rms_norm", (
                "sweep", "library"), RMSNormCall(torch.randn(rows, 512).to(dtype), torch.ones(512), 1e-6))
    for steps in (1, 512):
        yield f"rotary, half-split, {steps} tokens", timed(
            "rotary", ("halves", "reference"), rotary(steps, "half_split"))
        yield f"rotary, interleaved, {steps} tokens", timed(
            "rotary", ("complex", "reference"), rotary(steps, "interleaved"))
    values, scale = quantised(torch.randn(512, 512))
    for rows in (1, 16, 64):
        yield f"int8_linear, bfloat16, {rows} rows", timed("int8_linear", (
            "native", "packed", "reference"), Int8Call(torch.randn(rows, 512).bfloat16(), values, scale))
    for rows, heads in ((1, 4), (8, 16)):
        for operation, call in one_token(rows, heads):
            forms = ("reference", "native") if operation == "wkv" else ("step", "native", "reference")
            yield f"{operation}, one token, {rows} rows, {heads} heads", timed(operation, forms, call)


def main() -> None:
    """Look, measure and write."""
    torch.set_num_threads(1)
    forms, measured = chosen(), dict(ratios())
    RESULTS.write_text(json.dumps({
        "date": datetime.date.today().isoformat(), "processor": processor_name(), "torch": torch.__version__,
        "forms": {operation: {name: row | ({"kept": KEPT[f"{operation}.{name}"]} if f"{operation}.{name}" in KEPT
                                          else {}) for name, row in rows.items()} for operation, rows in forms.items()},
        "ratios": measured}, indent=1) + "\n", encoding="utf-8")
    left = [f"{operation}.{name}" for operation, rows in forms.items() for name, row in rows.items()
            if not row["chosen"] and name != "reference" and f"{operation}.{name}" not in KEPT]
    if left:
        raise SystemExit(f"chosen nowhere: {', '.join(left)}. Delete them, or say in KEPT who needs them.")


if __name__ == "__main__":
    main()
