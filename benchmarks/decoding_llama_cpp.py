"""llama.cpp's side of `decoding.py`: the model in files of its format, and greedy decoding of a batch through its C
interface.

`llama_cpp` is imported inside the functions: without it the benchmark runs without llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from training_weft import model_of, names

from weft.api import load
from weft.checkpoints import save_checkpoint
from weft.interop.convert import convert

Tokens = list[list[int]]
FILES = {"float32": "float32.gguf", "bfloat16": "bfloat16.gguf", "int8": "q8_0.gguf", "int4": "q4_0.gguf"}


def write_files(job: dict[str, Any], weights: dict[str, Tensor], folder: Path) -> None:
    """The model in float32, bfloat16, q8_0 and q4_0."""
    import llama_cpp

    model = model_of({**job, "compile": False, "route": "default", "dtype": "float32"})
    model.load_state_dict({own: weights[neutral] for neutral, own in names(job["shape"]["layers"])})
    save_checkpoint(folder / "checkpoint", model, None)
    for name in ("float32", "bfloat16"):
        convert(load(folder / "checkpoint"), folder / FILES[name], to="gguf", dtype=getattr(torch, name))
    for name, kind in (("int8", llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0), ("int4", llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0)):
        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype, options.pure = kind, True
        failed = llama_cpp.llama_model_quantize(str(folder / FILES["float32"]).encode(),
                                                str(folder / FILES[name]).encode(), options)
        if failed:
            raise SystemExit(f"llama.cpp cannot quantise the model: {failed}")


def llama_generate(job: dict[str, Any], folder: Path) -> Callable[..., Tokens]:
    """Greedy decoding of all rows together, each a sequence of one context."""
    import llama_cpp

    llama_cpp.llama_backend_init()
    batch, length = job["batch"], job["prompt"] + job["new"]
    model = llama_cpp.llama_model_load_from_file(str(folder / FILES[job["dtype"]]).encode(),
                                                 llama_cpp.llama_model_default_params())
    options = llama_cpp.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_seq_max = batch * length, batch * job["prompt"], batch
    options.n_threads = options.n_threads_batch = job["threads"]
    context = llama_cpp.llama_init_from_model(model, options)
    held = llama_cpp.llama_batch_init(batch * job["prompt"], 0, batch)
    vocabulary = job["shape"]["vocabulary"]

    def step(rows: Tokens, before: int) -> list[int]:
        """The most probable token after each row's new ones, of which there are as many in every row."""
        held.n_tokens = 0
        last = []
        for row, new in enumerate(rows):
            for place, token in enumerate(new):
                at = held.n_tokens
                held.token[at], held.pos[at], held.n_seq_id[at], held.seq_id[at][0] = token, before + place, 1, row
                held.logits[at] = place == len(new) - 1
                held.n_tokens += 1
            last.append(held.n_tokens - 1)
        if llama_cpp.llama_decode(context, held):
            raise SystemExit("llama.cpp cannot decode this batch")
        return [int(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, at), shape=(vocabulary,)).argmax())
                for at in last]

    def run(prompts: Tokens, count: int) -> Tokens:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        found = [[token] for token in step(prompts, 0)]
        for place in range(count - 1):
            for row, token in zip(found, step([row[-1:] for row in found], len(prompts[0]) + place), strict=True):
                row.append(token)
        return found

    return run
