"""One contender of `decoding.py`, in a process of its own: continues prompts greedily and prints what it measured."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from decoding_llama_cpp import llama_generate
from safetensors.torch import load_file
from training_contender import transformers_model
from training_weft import model_of, names

from weft.comparison.measures import peak_memory_bytes
from weft.core.model import LanguageModel
from weft.decoding import CompiledStep, Row, generate
from weft.decoding.session import Session
from weft.linear import rewritten
from weft.linear.quantised import Int4Config, Int8Config

Tokens = list[list[int]]
SWEEP_STEPS = 24
REWRITES = {"int8": Int8Config(maps=["*"]), "int4": Int4Config(maps=["*"])}
BEFORE = 8
"""Steps that are not timed, among them the one that is recorded."""


def weft_model(job: dict[str, Any], weights: dict[str, torch.Tensor]) -> LanguageModel:
    model = model_of({**job, "compile": False, "route": "default", "dtype": "float32"})
    model.load_state_dict({own: weights[neutral] for neutral, own in names(job["shape"]["layers"])})
    if job["dtype"] not in REWRITES:
        return model.to(getattr(torch, job["dtype"])).eval()
    return rewritten(model.to(torch.bfloat16), [REWRITES[job["dtype"]]]).eval()


def weft_generate(job: dict[str, Any], weights: dict[str, torch.Tensor]) -> Callable[..., Tokens]:
    """Weft as its users decode: as it is, or compiled."""
    model = weft_model(job, weights)
    compiled = CompiledStep(model) if job["form"] == "compiled" else None

    def run(prompts: Tokens, count: int) -> Tokens:
        done = generate(model, prompts, max_new_tokens=count, compiled=compiled)
        return [list(row.tokens) for row in done.rows]

    return run


def transformers_generate(job: dict[str, Any], weights: dict[str, torch.Tensor]) -> Callable[..., Tokens]:
    """`generate` with its dynamic cache, or its static cache and a compiled forward pass."""
    model: Any = transformers_model(job["shape"], weights).to(getattr(torch, job["dtype"])).eval()
    model.config.use_cache = model.generation_config.use_cache = True
    options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    if job["form"] == "compiled":
        model.forward = torch.compile(model.forward)
        options["cache_implementation"] = "static"

    def run(prompts: Tokens, count: int) -> Tokens:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **options)
        return [row[len(prompts[0]):] for row in out.tolist()]

    return run


def sweep(job: dict[str, Any], weights: dict[str, torch.Tensor]) -> dict[str, float]:
    """Seconds of a step by the tokens before it, medians; contexts in turns."""
    model = weft_model(job, weights)
    contexts = [c for c in (32, 64, 128, 256, 480) if c + SWEEP_STEPS <= job["shape"]["context"]]
    sessions = {c: Session(model, [Row(tuple(range(1, c + 1)))], max_new_tokens=2 * SWEEP_STEPS + BEFORE)
                for c in contexts}
    seconds: dict[int, list[float]] = {c: [] for c in contexts}
    for session in sessions.values():
        for _ in range(BEFORE):
            session.advance(session.likeliest({0: 0})[0])
    for _ in range(SWEEP_STEPS):
        for context, session in sessions.items():
            begun = time.perf_counter()
            session.advance(session.likeliest({0: 0})[0])
            seconds[context].append(time.perf_counter() - begun)
    return {str(context): statistics.median(times) for context, times in seconds.items()}


def main() -> None:
    job, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(job["threads"])
    weights = load_file(folder / "weights.safetensors")
    if job["form"] == "sweep":
        print(json.dumps({"sweep": sweep(job, weights)}))
        return
    found: dict[str, Any] = {}
    rivals: dict[str, Callable[[], Callable[..., Tokens]]] = {}
    if job["beside"]:
        rivals[job["beside"]] = partial(llama_generate, job, folder)
    run = (weft_generate(job, weights) if job["library"] == "weft" else llama_generate(job, folder)
           if job["library"] == "llama.cpp" else transformers_generate(job, weights))
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(job["shape"]["vocabulary"], (job["batch"], job["prompt"]), generator=generator).tolist()
    found["first"] = timed(run, prompts, job["new"])  # compiles where it does
    found["peak_bytes"] = peak_memory_bytes()  # without rivals
    others = {name: make() for name, make in rivals.items()}
    for other in others.values():
        other(prompts, job["new"])
    seconds, turns = list[float](), dict[str, list[float]]((name, []) for name in others)
    for _ in range(job["repeats"]):
        seconds.append(timed(run, prompts, job["new"]))
        for name, other in others.items():
            turns[name].append(timed(other, prompts, job["new"]) / seconds[-1])
    found["turns"] = {name: statistics.median(times) for name, times in turns.items()}
    print(json.dumps({**found, "seconds": statistics.median(seconds), "tokens": run(prompts, job["new"])}))


def timed(run: Callable[..., Tokens], prompts: Tokens, count: int) -> float:
    """Seconds of a call."""
    begun = time.perf_counter()
    run(prompts, count)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
