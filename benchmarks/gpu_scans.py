"""Scans on a GPU: the form in Triton, the plain form, and the kernels of other libraries; and steps of training.

    python benchmarks/gpu_scans.py [--rounds 20] [--only scans plans recurrences tiles models] [--out FILE]   # idle GPU

Contenders of a shape run in turns, each between two events on the device, after two turns that compile and are not
counted; figures are medians. ``selective_scan_fn`` of `mamba_ssm` and the recurrences of `fla` are measured where they
can be imported. ``plans`` are the ways to cut the work of a kernel. A step of training is that of Weft's own trainer,
in bfloat16 with AdamW, of a Mamba of 130 million parameters, by both forms, and of a Transformer of 125 million, in
tokens a second. With ``--tiny`` everything is small enough for the interpreter on a processor.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import statistics
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from training_weft import stream_of

from weft.ops.forms import forced
from weft.ops.gated_scan import SELECTIVE_SCAN
from weft.ops.linear_recurrence import LINEAR_RECURRENCE, LinearRecurrenceCall
from weft.ops.selective_scan_chunks import SelectiveScanCall
from weft.ops.triton import linear_recurrence as chunked
from weft.ops.triton.library import describe
from weft.ops.triton.linear_recurrence import Tiles
from weft.ops.triton.selective_scan import ScanPlan, run_backward, run_forward
from weft.training import parse_run
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "gpu_scans.json"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Work = Callable[[], object]


class Scan(NamedTuple):
    """Rows, tokens, channels and states of a channel."""

    rows: int
    steps: int
    channels: int
    states: int


SCANS = {"mamba, 130M, eight rows": Scan(8, 4096, 1536, 16), "mamba, 130M, one row": Scan(1, 4096, 1536, 16),
         "mamba, 2.8B, one row": Scan(1, 2048, 5120, 16)}
TINY_SCANS = {"tiny": Scan(1, 4, 3, 2)}
PLANS = tuple(ScanPlan(16, tile, programs=programs) for tile in (8, 4) for programs in (1, 1056, 2112, 4224))


class Recurrence(NamedTuple):
    """Rows, tokens, key heads, states, features of a key and of a value, and of what a decay is a function."""

    rows: int
    steps: int
    keys: int
    states: int
    e: int
    f: int
    decay: str


RECURRENCES = {"mamba-2, 130M": Recurrence(8, 2048, 1, 24, 128, 64, "token"),
               "retention": Recurrence(8, 2048, 4, 4, 128, 256, "constant"),
               "linear attention": Recurrence(8, 2048, 12, 12, 64, 64, "none")}
TINY_RECURRENCES = {"tiny": Recurrence(1, 3, 1, 2, 3, 4, "token")}
TILES = (Tiles(64, 4), Tiles(32, 4), Tiles(64, 4, "tf32"), Tiles(32, 4, "tf32"))


def once(work: Work) -> float:
    """Milliseconds."""
    if DEVICE == "cpu":
        begun = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - begun)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def in_turns(contenders: Mapping[str, Work], rounds: int, slow: frozenset[str] = frozenset()) -> dict[str, float]:
    """Milliseconds of each, the median; three turns are enough for those that are ``slow``."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 2):
        for name, work in contenders.items():
            if name not in slow or turn < 5:
                taken[name].append(once(work))
    return {name: statistics.median(each[2:]) for name, each in taken.items()}


def scan_call(shape: Scan) -> SelectiveScanCall:
    """Random tensors, with the rates that Mamba begins with and steps around 0.03."""
    torch.manual_seed(0)
    rows, steps, channels, states = shape
    a = -torch.arange(1.0, states + 1)[:, None].expand(-1, channels)
    tensors = (torch.randn(rows, steps, channels), 0.1 * torch.rand(rows, steps, channels), a,
               torch.randn(rows, steps, states), torch.randn(rows, steps, states), torch.zeros(rows, states, channels))
    return SelectiveScanCall(*(x.to(DEVICE).contiguous().requires_grad_() for x in tensors), None)


def both_ways(run: Callable[[], Tensor], leaves: list[Tensor]) -> Work:
    """Forward and backward."""
    def work() -> object:
        y = run()
        return torch.autograd.grad(y, leaves, torch.ones_like(y))

    return work


def without_gradients(run: Callable[[], Tensor]) -> Work:
    def work() -> object:
        with torch.no_grad():
            return run()

    return work


def scan_by(form: str, call: SelectiveScanCall) -> Callable[[], Tensor]:
    return lambda: SELECTIVE_SCAN(call, form)[0]


def scan_of_peer(call: SelectiveScanCall) -> dict[str, tuple[Callable[[], Tensor], list[Tensor]]]:
    """`mamba_ssm`'s kernel, in float32 and in bfloat16, and what it differentiates."""
    if find_spec("mamba_ssm") is None:
        return {}
    scan = importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        u, dt, b, c = (x.detach().mT.to(dtype).contiguous().requires_grad_() for x in (call.u, call.dt, call.b, call.c))
        a = call.a.detach().t().contiguous().requires_grad_()
        leaves = [u, dt, a, b, c]
        found[f"mamba_ssm {str(dtype)[6:]}"] = (lambda leaves=leaves: scan(*leaves)), leaves
    return found


def scans(tiny: bool, rounds: int) -> dict[str, Any]:
    """The selective scan, forward alone and with its gradients."""
    report = {}
    for name, shape in (TINY_SCANS if tiny else SCANS).items():
        call = scan_call(shape)
        runs = {form: (scan_by(form, call), list(call[:5])) for form in ("triton", "operator")} | scan_of_peer(call)
        forward = {each: without_gradients(run) for each, (run, _) in runs.items()}
        both = {each: both_ways(run, leaves) for each, (run, leaves) in runs.items()}
        report[name] = {"forward ms": in_turns(forward, rounds, frozenset({"operator"})),
                        "forward and backward ms": in_turns(both, rounds, frozenset({"operator"}))}
    return report


def plans(tiny: bool, rounds: int) -> dict[str, Any]:
    """The kernels of the selective scan, forward with states kept and backward, by plan."""
    report = {}
    for name, shape in (TINY_SCANS if tiny else SCANS).items():
        u, dt, a, b, c, before, _ = (x if x is None else x.detach() for x in scan_call(shape))
        y, after, kept = run_forward(u, dt, a, b, c, before, None, True, PLANS[0])

        def forward(plan: ScanPlan, given: tuple[Tensor, ...] = (u, dt, a, b, c, before)) -> Work:
            return lambda: run_forward(*given, None, True, plan)

        def backward(plan: ScanPlan, given: tuple[Tensor, ...] = (y, after, u, dt, a, b, c, kept)) -> Work:
            return lambda: run_backward(*given, None, plan)

        taken = PLANS[:1] if tiny else PLANS
        report[name] = {"forward ms": in_turns({str(tuple(plan)): forward(plan) for plan in taken}, rounds),
                        "backward ms": in_turns({str(tuple(plan)): backward(plan) for plan in taken}, rounds)}
    return report


def recurrence_call(shape: Recurrence) -> LinearRecurrenceCall:
    """Random tensors; keys of length near 1, decays between exp(-0.3) and 1."""
    torch.manual_seed(0)
    rows, steps, keys, states, e, f, decay = shape
    sizes = {"constant": (1, 1, states, 1), "token": (rows, steps, states, 1)}
    tensors = (torch.randn(rows, steps, keys, e) / e**0.5, torch.randn(rows, steps, keys, e) / e**0.5,
               torch.randn(rows, steps, states, f), -0.3 * torch.rand(sizes[decay]) if decay in sizes else None,
               torch.zeros(rows, states, e, f))
    return LinearRecurrenceCall(*(None if x is None else x.to(DEVICE).requires_grad_() for x in tensors))


def recurrence_by(form: str, call: LinearRecurrenceCall) -> Callable[[], Tensor]:
    return lambda: LINEAR_RECURRENCE(call, form)[0]


def recurrence_of_peer(call: LinearRecurrenceCall) -> dict[str, tuple[Callable[[], Tensor], list[Tensor]]]:
    """`fla`'s chunks for one decay a head and token, in bfloat16, where every state has a key head of its own."""
    if find_spec("fla") is None or call.log_decay is None:
        return {}
    recurrence = importlib.import_module("fla.ops.simple_gla").chunk_simple_gla
    heads = call.v.shape[2]
    q, k, v = (x.detach().expand(-1, -1, heads, -1).bfloat16().contiguous().requires_grad_()
               for x in (call.q, call.k, call.v))
    g = call.log_decay.detach().expand(*v.shape[:3], 1)[..., 0].contiguous().requires_grad_()
    return {"fla bfloat16": (lambda: recurrence(q, k, v, g, scale=1.0)[0], [q, k, v, g])}


def recurrences(tiny: bool, rounds: int) -> dict[str, Any]:
    """The linear recurrence, forward alone and with its gradients."""
    report = {}
    for name, shape in (TINY_RECURRENCES if tiny else RECURRENCES).items():
        call = recurrence_call(shape)
        leaves = [x for x in call[:4] if x is not None]
        runs = {form: (recurrence_by(form, call), leaves) for form in ("triton", "operator")} | recurrence_of_peer(call)
        report[name] = {
            "forward ms": in_turns({each: without_gradients(run) for each, (run, _) in runs.items()}, rounds),
            "forward and backward ms": in_turns({each: both_ways(*run) for each, run in runs.items()}, rounds)}
    return report


def fits(work: Work) -> bool:
    """Whether the GPU has the shared memory that the kernel needs."""
    from triton.runtime.errors import OutOfResources

    try:
        work()
    except OutOfResources:
        return False
    return True


def tiles(tiny: bool, rounds: int) -> dict[str, Any]:
    """The kernels of the linear recurrence, by tiles, and the largest error of an output."""
    report = {}
    for name, shape in (TINY_RECURRENCES if tiny else RECURRENCES).items():
        given = LinearRecurrenceCall(*(None if x is None else x.detach() for x in recurrence_call(shape)))
        exact = LINEAR_RECURRENCE(LinearRecurrenceCall(*(None if x is None else x.double() for x in given)))[0]
        y, after = chunked.run_forward(*given, Tiles())

        def forward(each: Tiles, given: LinearRecurrenceCall = given) -> Work:
            return lambda: chunked.run_forward(*given, each)

        def backward(each: Tiles, given: tuple[Any, ...] = (y, after, *given)) -> Work:
            return lambda: chunked.run_backward(*given, each)

        taken = [each for each in (TILES[:1] if tiny else TILES) if fits(forward(each)) and fits(backward(each))]
        report[name] = {
            "forward ms": in_turns({str(tuple(each)): forward(each) for each in taken}, rounds),
            "backward ms": in_turns({str(tuple(each)): backward(each) for each in taken}, rounds),
            "error": {str(tuple(each)): float((chunked.run_forward(*given, each)[0] - exact).abs().max()
                                              / exact.abs().max()) for each in taken}}
    return report


MAMBA = {"of": [{"kind": "pre", "norm": "rmsnorm", "layers": [{"kind": "mamba"}]}], "repeat": 24}
ATTENTION = {"kind": "attention", "n_heads": 12, "position": {"kind": "rope", "layout": "half_split"}}
TRANSFORMER = {"of": [{"kind": "pre", "norm": "rmsnorm", "layers": [ATTENTION, {"kind": "glu", "d_ff": 2048}]}],
               "repeat": 12}
MAMBA_2 = {"of": [{"kind": "pre", "norm": "rmsnorm", "layers": [{"kind": "mamba2"}]}], "repeat": 24}
MODELS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "mamba, 130M, triton": (MAMBA, {"selective_scan": "triton"}),
    "mamba, 130M, operator": (MAMBA, {"selective_scan": "operator"}),
    "mamba-2, triton": (MAMBA_2, {"linear_recurrence": "triton"}),
    "mamba-2, operator": (MAMBA_2, {"linear_recurrence": "operator"}), "transformer, 125M": (TRANSFORMER, {})}


def models(tiny: bool, rounds: int) -> dict[str, Any]:
    """Tokens a second of training steps."""
    rows, length, width, vocabulary = (1, 4, 192, 40) if tiny else (8, 2048, 768, 50280)
    report, turns = {}, min(rounds, 8) + 2
    for name, (block, kernels) in MODELS.items():
        used = {**block, "repeat": 1} if tiny else block
        run = parse_run({"kernels": kernels, "model": {
            "kind": "decoder", "vocab_size": vocabulary, "context": length, "d_model": width, "norm": "rmsnorm",
            "readout": {"kind": "linear", "tied": True}, "blocks": [used]}, "training": {
                "steps": turns, "batch_size": rows, "dtype": "bfloat16", "optimizer": {"kind": "adamw", "lr": 1e-3},
                "schedule": {"kind": "constant", "warmup": 0.0}, "clip_norm": 1.0, "compute": {"matmul": "default"}}})
        torch.manual_seed(0)
        model = build_model(run)
        tokens = torch.randint(vocabulary, (turns * rows * length + 1,))
        trainer = Trainer(run, model, stream_of(tokens, vocabulary), steps=turns, device=DEVICE)
        with forced(kernels):
            taken = [once(trainer.advance) for _ in range(3 if kernels.get("selective_scan") == "operator" else turns)]
        milliseconds = statistics.median(taken[2:])
        report[name] = {"parameters": sum(each.numel() for each in model.parameters()), "step ms": milliseconds,
                        "tokens per second": 1e3 * rows * length / milliseconds}
        if DEVICE == "cuda":
            report[name]["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
            del trainer, model
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return report


PARTS: dict[str, Callable[[bool, int], dict[str, Any]]] = {
    "scans": scans, "plans": plans, "recurrences": recurrences, "tiles": tiles, "models": models}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--tiny", action="store_true", help="to try it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--note", default="", help="written into the results")
    given = parser.parse_args()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu", "torch": torch.__version__,
        "triton": describe(), "date": datetime.date.today().isoformat(), "note": given.note,
        "peers": {name: find_spec(name) is not None for name in ("mamba_ssm", "fla")}}
    for name in given.only:
        report[name] = PARTS[name](given.tiny, given.rounds)
        print(json.dumps({name: report[name]}, indent=1), flush=True)
        given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
