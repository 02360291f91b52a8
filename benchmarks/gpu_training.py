"""Figures of `gpu.py`: steps of training beside other libraries, memory planned and measured, several runs at once."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from multiprocessing.synchronize import Event
from typing import Any, NamedTuple

import torch
from gpu_peers import OfTransformers, PlainModel, Shape, steps_of
from gpu_timing import Figure, Known, device, emptied, in_turns, peak_while, settled, why
from training_weft import stream_of

from weft.analysis.gpu_speed import Work
from weft.core.base_model import built_empty
from weft.gpu.memory import TrainingWork, training_need
from weft.training import RunConfig, parse_run
from weft.training.precision import narrowed
from weft.training.rates import model_flops_per_token
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

PEAK = 989e12
"""Operations per second of dense bfloat16 products that NVIDIA states for an H100 SXM."""
STEPS = 3
"""Steps that are timed together: what a step leaves to the device while the next is prepared belongs to it."""
LIST = 200
"""Steps of a run, more than are taken."""


class Trained(NamedTuple):
    """A model that is trained, and one batch.

    Attributes:
        model: its configuration without vocabulary and context.
        peer: the same model for other libraries; None: none is measured.
    """

    model: Mapping[str, Any]
    vocabulary: int
    rows: int
    tokens: int
    peer: Shape | None = None


def decoder(width: int, layers: int, parts: list[Any], norm: str = "rmsnorm", tied: bool = True,
            **more: Any) -> dict[str, Any]:
    """A decoder of equal blocks."""
    block = [{"kind": "pre", "norm": norm, "layers": parts}]
    return {"kind": "decoder", "d_model": width, "norm": norm, "readout": {"kind": "linear", "tied": tied},
            "embedding": {"std": 0.02}, "blocks": [{"repeat": layers, "of": block}], **more}


def rwkv7_blocks(layers: int, heads: int, d_ff: int) -> list[dict[str, Any]]:
    """RWKV-7's: the first layer gives the values that the others mix in."""
    def block(count: int, residual: bool) -> dict[str, Any]:
        mixing = {"kind": "rwkv7", "n_heads": heads, "value_residual": residual}
        return {"repeat": count, "of": [{"kind": "pre", "norm": "layernorm", "layers": [
            mixing, {"kind": "channel_mix", "d_ff": d_ff}]}]}

    return [block(1, False), *([block(layers - 1, True)] if layers > 1 else [])]


def trained(name: str, tiny: bool) -> Trained:
    """The model of that name."""
    width, vocabulary, layers = (16, 40, 1) if tiny else (768, 50304, 12)
    rows, tokens = (2, 8) if tiny else (32, 1024)
    heads, rope = (2 if tiny else 12), {"kind": "rope", "layout": "half_split"}
    match name:
        case "gpt2":
            parts = [{"kind": "attention", "n_heads": heads, "bias": "all"},
                     {"kind": "mlp", "d_ff": 4 * width, "activation": "gelu_tanh"}]
            return Trained(decoder(width, layers, parts, "layernorm", position="learned"), vocabulary, rows, tokens,
                           Shape(layers, width, heads, heads, 4 * width, vocabulary, rows, tokens))
        case "llama":
            shape = Shape(1, 16, 2, 1, 24, 40, 1, 8, True) if tiny else Shape(16, 2048, 32, 8, 8192, 32000, 8, 2048,
                                                                               True)
            parts = [{"kind": "attention", "n_heads": shape.heads, "n_kv_heads": shape.kv_heads, "position": rope},
                     {"kind": "glu", "d_ff": shape.d_ff}]
            return Trained(decoder(shape.width, shape.layers, parts, tied=False), shape.vocabulary, shape.rows,
                           shape.tokens, shape)
        case "mamba" | "mamba2":
            rows, tokens = (2, 8) if tiny else (16, 2048)
            mixer = {"kind": name} if name == "mamba" else {"kind": name, "d_head": 4 if tiny else 64}
            return Trained(decoder(width, 2 * layers, [mixer]), 40 if tiny else 50280, rows, tokens)
        case "gated_delta_net":
            rows, tokens = (2, 8) if tiny else (16, 2048)
            mixer = {"kind": name, "n_heads": 2 if tiny else 6, "d_head": 4 if tiny else 128}
            return Trained(decoder(width, layers, [mixer, {"kind": "glu", "d_ff": 24 if tiny else 1536}]), vocabulary,
                           rows, tokens)
        case _:
            rows, tokens = (2, 8) if tiny else (16, 2048)
            model = {**decoder(width, layers, [], "layernorm"), "blocks": rwkv7_blocks(
                2 if tiny else layers, heads, 24 if tiny else 3072)}
            return Trained(model, vocabulary, rows, tokens)


def run_of(of: Trained, compute: Mapping[str, Any], steps: int = LIST) -> RunConfig:
    """The run that a user would write, in bfloat16."""
    return parse_run({"model": {**of.model, "vocab_size": of.vocabulary, "context": of.tokens}, "training": {
        "steps": steps, "batch_size": of.rows, "dtype": "bfloat16", "compute": dict(compute),
        "optimizer": {"kind": "adamw", "lr": 3e-4}, "schedule": {"kind": "constant", "warmup": 0.0}}})


class Contender(NamedTuple):
    """A way to train, which `started` has tried.

    Attributes:
        step: takes one step.
        report: the seconds to the end of its first step and the peak of its memory.
    """

    step: Work
    report: dict[str, Any]


def weft_steps(of: Trained, compute: Mapping[str, Any]) -> Work:
    """Steps of Weft's trainer."""
    torch.manual_seed(0)
    config = run_of(of, compute)
    text = stream_of(torch.randint(of.vocabulary, (16 * of.rows * of.tokens + 1,)), of.vocabulary)
    trainer = Trainer(config, build_model(config), text, steps=LIST, device=device())
    return trainer.advance


def started(make: Callable[[], Work]) -> Contender:
    """Make a contender and take two steps of it."""
    begun = time.perf_counter()

    def both() -> tuple[Work, float]:
        step = make()
        step()
        settled()
        first = time.perf_counter() - begun
        step()
        return step, first

    (step, first), peak = peak_while(both)
    return Contender(step, {"seconds to the first step": round(first, 1), "peak GiB": peak})


WAYS: dict[str, dict[str, Any]] = {
    "defaults": {}, "defaults, not repeatable": {"repeatable": False}, "compiled as a whole": {"compile": True},
    "not compiled": {"compile": False}}


def weft_ways(of: Trained, ways: tuple[str, ...]) -> dict[str, Callable[[], Work]]:
    """Weft's contenders; of two that compute alike one is enough."""
    made, seen = {}, list[Any]()
    for way in ways:
        resolved = run_of(of, WAYS[way]).training.compute.model_dump()
        if resolved not in seen:
            seen.append(resolved)
            made[f"Weft, {way}"] = lambda way=way: weft_steps(of, WAYS[way])
    return made


def peers_of(of: Trained, names: tuple[str, ...]) -> dict[str, Callable[[], Work]]:
    """The contenders of other libraries."""
    shape = of.peer
    if shape is None:
        return {}
    made = {"PyTorch's loop, compiled": lambda: steps_of(PlainModel(shape), shape, device(), True),
            "PyTorch's loop": lambda: steps_of(PlainModel(shape), shape, device(), False),
            "transformers, compiled": lambda: steps_of(OfTransformers(shape), shape, device(), True)}
    return {name: make for name, make in made.items() if name in names and (
        "transformers" not in name or find_spec("transformers") is not None)}


def raced(of: Trained, makers: Mapping[str, Callable[[], Work]], flops: float) -> dict[str, Any]:
    """Each contender's steps, in turns."""
    report: dict[str, Any] = {}
    steps: dict[str, Work] = {}
    for name, make in makers.items():
        try:
            steps[name], report[name] = started(make)
        except Exception as error:  # one contender's failure is its figure
            report[name] = {"failed": why(error)}
            emptied()
    taken = in_turns({name: (lambda step=step: several(step)) for name, step in steps.items()}, seconds=4.0, most=6)
    for name, milliseconds in taken.items():
        if isinstance(milliseconds, float):
            rate = 1e3 * STEPS * of.rows * of.tokens / milliseconds
            report[name] |= {"step ms": milliseconds / STEPS, "tokens per second": rate,
                             "share of 989 TFLOP/s": rate * flops / PEAK}
        else:
            report[name]["failed"] = milliseconds
    return report


def several(step: Work) -> None:
    """Some steps in a row."""
    for _ in range(STEPS):
        step()


def training(name: str, ways: tuple[str, ...], peers: tuple[str, ...] = ()) -> Callable[[bool, Known], dict[str, Any]]:
    """The figure of a model."""
    def take(tiny: bool, _: Known) -> dict[str, Any]:
        of = trained(name, tiny)
        model = build_model(run_of(of, {}))
        flops = model_flops_per_token(model, of.tokens)
        parameters = sum(each.numel() for each in model.parameters())
        del model
        report = raced(of, weft_ways(of, ways) | peers_of(of, peers), flops)
        return {"parameters": parameters, "rows": of.rows, "tokens": of.tokens, "FLOPs a token": flops, **report}

    return take


def work_of(of: Trained, compute: Mapping[str, Any]) -> TrainingWork:
    """A run's training as its memory is planned."""
    config = run_of(of, compute)
    return TrainingWork(built_empty(config.model), lambda model: narrowed(model, torch.bfloat16), of.rows, of.tokens,
                        recompute=config.training.compute.checkpoint_activations)


def planned(name: str) -> Callable[[bool, Known], dict[str, Any]]:
    """The figure of the memory that a plan says, against that of the trained model of the figure before it."""
    def take(tiny: bool, known: Known) -> dict[str, Any]:
        measured = known.get(f"training/{name}", {})
        report: dict[str, Any] = {}
        for way in WAYS:
            peak = measured.get(f"Weft, {way}", {}).get("peak GiB")
            if peak is not None or (tiny and way == "defaults"):
                needed = training_need(work_of(trained(name, tiny), WAYS[way])).total / 2**30
                report[way] = {"planned GiB": needed, "measured GiB": peak,
                               "planned over measured": needed / peak if peak else None}
        if not report:
            raise RuntimeError(f"training/{name} was not taken, with whose memory this is compared")
        return report

    return take


CONTESTANTS = ("gpt2", "llama", "mamba2", "gated_delta_net")


def small_run(place: int, tiny: bool, steps: int, where: str, begin: Event, ready: Any) -> None:
    """In a process of its own: a small model's steps, from ``begin`` on."""
    of = trained(CONTESTANTS[place], True)
    if not tiny:
        width = {"gpt2": 256, "llama": 256, "mamba2": 256, "gated_delta_net": 256}[CONTESTANTS[place]]
        of = enlarged(of, width)
    config = run_of(of, {"compile": False})
    torch.manual_seed(place)
    text = stream_of(torch.randint(of.vocabulary, (64 * of.rows * of.tokens + 1,)), of.vocabulary)
    trainer = Trainer(config, build_model(config), text, steps=LIST, device=where)
    for _ in range(3):
        trainer.advance()
    ready.release()
    begin.wait()
    for _ in range(steps):
        trainer.advance()
    if where != "cpu":
        torch.cuda.synchronize()


def enlarged(of: Trained, width: int) -> Trained:
    """The tiny model, with four blocks of that width, on batches of 16 rows of 256 tokens."""
    text = {key: value for key, value in of.model.items() if key != "blocks"} | {"d_model": width}
    block = of.model["blocks"][0]["of"][0]
    layers = [{**each, **({"d_ff": 3 * width} if "d_ff" in each else {}),
               **({"d_head": 64} if "d_head" in each else {}),
               **({"n_heads": 4} if "n_heads" in each else {})} for each in block["layers"]]
    blocks = [{"repeat": 4, "of": [{**block, "layers": layers}]}]
    return Trained({**text, "blocks": blocks}, 1024, 16, 256)


def wall(places: tuple[int, ...], tiny: bool, steps: int, where: str) -> float:
    """Seconds in which the runs of these places take their steps side by side."""
    forking = multiprocessing.get_context("fork")
    begin, ready = forking.Event(), forking.Semaphore(0)
    runs = [forking.Process(target=small_run, args=(place, tiny, steps, where, begin, ready)) for place in places]
    for run in runs:
        run.start()
    for _ in runs:
        if not ready.acquire(timeout=120):
            for run in runs:
                run.kill()
            raise RuntimeError("a run has not come to its first steps in two minutes")
    begun = time.perf_counter()
    begin.set()
    for run in runs:
        run.join()
    return time.perf_counter() - begun


def side_by_side(tiny: bool, _: Known) -> dict[str, Any]:
    """Four small models trained one after another, and side by side; their first steps are not counted.

    CUDA is not called here: the processes are forked.
    """
    where, steps = ("cpu", 2) if tiny else ("cuda", 60)
    alone = {CONTESTANTS[place]: wall((place,), tiny, steps, where) for place in range(len(CONTESTANTS))}
    together = wall(tuple(range(len(CONTESTANTS))), tiny, steps, where)
    return {"steps": steps, "seconds alone": alone, "seconds one after another": sum(alone.values()),
            "seconds side by side": together, "times as fast": sum(alone.values()) / together,
            "processors": len(os.sched_getaffinity(0))}


FIGURES: dict[str, Figure] = {
    "training/gpt2": Figure(110, training("gpt2", tuple(WAYS),
                                          ("PyTorch's loop, compiled", "transformers, compiled"))),
    "training/llama": Figure(70, training("llama", ("defaults", "not compiled"), ("PyTorch's loop, compiled",))),
    "training/mamba": Figure(35, training("mamba", ("defaults", "not compiled"))),
    "training/gated_delta_net": Figure(35, training("gated_delta_net", ("defaults", "not compiled"))),
    "training/rwkv7": Figure(35, training("rwkv7", ("defaults", "not compiled"))),
    "training/mamba2": Figure(35, training("mamba2", ("defaults", "not compiled"))),
    "plan/gpt2": Figure(10, planned("gpt2")), "plan/llama": Figure(15, planned("llama")),
    "compare/side by side": Figure(45, side_by_side)}
