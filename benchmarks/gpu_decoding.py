"""Figures of `gpu.py`: steps of decoding with models of a billion weights, and `transformers` beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from gpu_timing import Figure, Known, device, emptied, settled, why
from torch import Tensor

from weft.core.model import LanguageModel
from weft.decoding import CompiledStep, Row
from weft.decoding.session import Session
from weft.training import parse_run
from weft.training.run_training import build_model

MEMORY_RATE = 3.35e12
"""Bytes a second that NVIDIA states for an H100 SXM; the measured copy rate is taken where it is known."""
Step = Callable[[], Any]


class Sizes:
    """Of the models and texts that are decoded."""

    def __init__(self, tiny: bool) -> None:
        self.vocabulary, self.width, self.layers, self.d_ff = (64, 32, 2, 48) if tiny else (128256, 2048, 16, 8192)
        self.heads, self.kv_heads, self.mamba_layers = (4, 2, 2) if tiny else (32, 8, 48)
        self.prompt, self.new = (5, 40) if tiny else (128, 128)


def model_of(kind: str, sizes: Sizes) -> LanguageModel:
    """A model in bfloat16 on a GPU, with its first weights."""
    attention = {"kind": "attention", "n_heads": sizes.heads, "n_kv_heads": sizes.kv_heads, "position": "rope"}
    layers, count = ([attention, {"kind": "glu", "d_ff": sizes.d_ff}], sizes.layers) if kind == "llama" else (
        [{"kind": "mamba"}], sizes.mamba_layers)
    run = parse_run({"model": {"kind": "decoder", "vocab_size": sizes.vocabulary, "d_model": sizes.width,
                               "context": 4096, "norm": "rmsnorm", "readout": {"kind": "linear", "tied": True},
                               "blocks": [{"repeat": count, "of": [{"kind": "pre", "layers": layers}]}]},
                     "training": {"steps": 1}})
    torch.manual_seed(0)
    with device():
        model = build_model(run)
    assert isinstance(model, LanguageModel), "a decoder is one"
    dtype = torch.bfloat16 if device().type == "cuda" else torch.float32
    return model.to(device(), dtype).eval().requires_grad_(False)


def bytes_of(tensors: Any) -> int:
    """Of tensors, those that are shared once."""
    return sum(each.nbytes for each in {each.data_ptr(): each for each in tensors}.values())


def milliseconds(step: Step, count: int) -> float:
    """Of one step, the median of four series of ``count``."""
    taken = []
    for _ in range(4):
        settled()
        begun = time.perf_counter()
        for _ in range(count):
            step()
        settled()
        taken.append(1e3 * (time.perf_counter() - begun) / count)
    return statistics.median(taken)


def of_weft(model: LanguageModel, rows: int, sizes: Sizes, **how: Any) -> tuple[Step, Session]:
    """A step that takes the likeliest tokens."""
    drawn = torch.Generator().manual_seed(1)
    prompts = [Row(tuple(torch.randint(sizes.vocabulary, (sizes.prompt,), generator=drawn).tolist()))
               for _ in range(rows)]
    session = Session(model, prompts, max_new_tokens=sizes.new, **how)
    return (lambda: session.advance(session.logits.argmax(-1))), session


def of_transformers(rows: int, sizes: Sizes) -> tuple[Step, Any]:
    """The same of a Llama, with a static cache, compiled with CUDA graphs."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=sizes.vocabulary, hidden_size=sizes.width, intermediate_size=sizes.d_ff,
        num_hidden_layers=sizes.layers, num_attention_heads=sizes.heads, num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=4096, tie_word_embeddings=True)
    with device():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    graphs = "reduce-overhead" if device().type == "cuda" else None
    call: Any = torch.compile(model.forward, mode=graphs, fullgraph=True, dynamic=False)
    cache = transformers.StaticCache(config=config, max_cache_len=sizes.prompt + sizes.new)
    ids = torch.randint(sizes.vocabulary, (rows, sizes.prompt), device=device())
    first = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)
    held: list[Tensor] = [first[:, None]]
    place = torch.full((rows, 1), sizes.prompt, device=device())

    def step() -> None:
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        logits = call(input_ids=held[0], past_key_values=cache, position_ids=place, use_cache=True).logits
        place.add_(1)
        held[0] = logits[:, -1].argmax(-1)[:, None].clone()

    return step, model


def report_of(make: Callable[[], tuple[Step, Any]], rows: int, read: int, rate: float, sizes: Sizes) -> dict[str, Any]:
    """Of one way to decode: ``read`` is the bytes of weights that every step reads; the state comes on top."""
    begun = time.perf_counter()
    try:
        with torch.inference_mode():
            step, kept = make()
            for _ in range(6):
                step()
            settled()
            first = time.perf_counter() - begun
            taken = milliseconds(step, (sizes.new - 16) // 4)
    except Exception as error:  # one way's failure is its figure
        return {"failed": why(error)}
    finally:
        emptied()
    found = {"seconds to the seventh step": round(first, 1), "step ms": taken, "tokens per second": 1e3 * rows / taken,
             "share of the memory rate, weights alone": read / (taken / 1e3) / rate}
    for name in ("by_tape", "without_graph"):
        if hasattr(kept, name):
            found[name] = str(getattr(kept, name))
    return found


def ways(model: LanguageModel, kind: str, rows: int, sizes: Sizes, whole: bool) -> dict[str, Any]:
    """What makes each way to decode so many texts; ``whole``: also those that compile a whole step."""
    made: dict[str, Any] = {"Weft": lambda: of_weft(model, rows, sizes)}
    if kind == "llama" and whole:
        fast = CompiledStep(model)
        made["Weft compiled"] = lambda: of_weft(model, rows, sizes, compiled=fast)
        if find_spec("transformers") is not None:
            made["transformers compiled"] = lambda: of_transformers(rows, sizes)
    return made


def decoding(kind: str) -> Callable[[bool, Known], dict[str, Any]]:
    """The figure of a model: for one text and for 64."""
    def take(tiny: bool, known: Known) -> dict[str, Any]:
        sizes, model = Sizes(tiny), model_of(kind, Sizes(tiny))
        rate, read = known.get("card/speed", {}).get("copy", MEMORY_RATE), bytes_of(model.parameters())
        report: dict[str, Any] = {"weights GiB": read / 2**30, "memory rate": rate}
        for rows in (1, 2) if tiny else (1, 64):
            for way, make in ways(model, kind, rows, sizes, not tiny).items():
                report[f"{rows} rows, {way}"] = report_of(make, rows, read, rate, sizes)
        return report

    return take


FIGURES: dict[str, Figure] = {"decoding/llama": Figure(90, decoding("llama")),
                              "decoding/mamba": Figure(30, decoding("mamba"))}
