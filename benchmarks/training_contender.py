"""One contender of `training.py`, in a process of its own: trains a few steps and prints what it measured as JSON.

Every contender starts from the same weights, sees the same batches, and has the same optimiser: AdamW (fused), matrices
decayed, gradients clipped to a norm of one.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

LR, BETAS, DECAY, CLIP = 3e-4, (0.9, 0.95), 0.1, 1.0
Weights = dict[str, Tensor]
Step = Callable[[int], float]
"""Trains on the batch of that number and gives its loss."""


def transformers_model(shape: dict[str, int], weights: Weights) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=shape["vocabulary"], hidden_size=shape["width"], intermediate_size=shape["d_ff"],
        num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
        max_position_embeddings=shape["context"], rms_norm_eps=1e-6, tie_word_embeddings=False, use_cache=False))
    head = shape["width"] // shape["heads"]
    cuts = [shape["heads"] * head, shape["kv_heads"] * head, shape["kv_heads"] * head]
    named = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["norm"],
             "lm_head.weight": weights["head"]}
    for i in range(shape["layers"]):
        to, of = f"model.layers.{i}.", f"{i}."
        for name, part in zip("qkv", weights[of + "qkv"].split(cuts), strict=True):
            named[f"{to}self_attn.{name}_proj.weight"] = part
        named |= {f"{to}{mine}.weight": weights[of + theirs] for mine, theirs in (
            ("self_attn.o_proj", "output"), ("mlp.gate_proj", "gate"), ("mlp.up_proj", "up"), ("mlp.down_proj", "down"),
            ("input_layernorm", "norm_1"), ("post_attention_layernorm", "norm_2"))}
    model.load_state_dict(named)
    return model


def litgpt_model(shape: dict[str, int], weights: Weights) -> nn.Module:
    from litgpt import GPT, Config

    model = GPT(Config(
        name="llama", block_size=shape["context"], n_layer=shape["layers"], n_head=shape["heads"],
        n_query_groups=shape["kv_heads"], n_embd=shape["width"], vocab_size=shape["vocabulary"],
        padded_vocab_size=shape["vocabulary"], rotary_percentage=1.0, parallel_residual=False, bias=False,
        norm_class_name="RMSNorm", norm_eps=1e-6, mlp_class_name="LLaMAMLP", intermediate_size=shape["d_ff"]))
    named = {"transformer.wte.weight": weights["embedding"], "transformer.ln_f.weight": weights["norm"],
             "lm_head.weight": weights["head"]}
    for i in range(shape["layers"]):
        named |= {f"transformer.h.{i}.{mine}.weight": weights[f"{i}.{theirs}"] for mine, theirs in (
            ("attn.qkv", "qkv"), ("attn.proj", "output"), ("mlp.fc_1", "gate"), ("mlp.fc_2", "up"),
            ("mlp.proj", "down"), ("norm_1", "norm_1"), ("norm_2", "norm_2"))}
    model.load_state_dict(named)
    return model


def peer(job: dict[str, Any], weights: Weights, batches: Weights) -> Step:
    """The plain loop of a peer's users: bfloat16 by autocast over float32 weights, its own loss function."""
    if job["library"] == "transformers":
        model = transformers_model(job["shape"], weights)

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            found: Tensor = model(input_ids=x, labels=y, shift_labels=y).loss
            return found
    else:
        from litgpt.utils import chunked_cross_entropy

        model = litgpt_model(job["shape"], weights)

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            return chunked_cross_entropy(model(x), y)

    groups = [{"params": [p for p in model.parameters() if (p.dim() >= 2) == matrix], "weight_decay": decay}
              for matrix, decay in ((True, DECAY), (False, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, fused=True)
    loss_fast = torch.compile(loss_of) if job["compile"] else loss_of
    narrow = job["dtype"] == "bfloat16"

    def step(index: int) -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16) if narrow else nullcontext():
            loss = loss_fast(batches["inputs"][index], batches["targets"][index])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def weft(job: dict[str, Any], weights: Weights, batches: Weights) -> Step:
    """Weft's own trainer, as `weft train` uses it, fed with the given batches."""
    from training_weft import trainer_on

    trainer = trainer_on(job, weights, batches)
    return lambda _: trainer.advance().sums.loss


def main(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    torch.set_num_threads(job["threads"])
    if job["route"] == "onednn" and job["library"] != "weft":
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined]
    weights, batches = load_file(folder / "weights.safetensors"), load_file(folder / "batches.safetensors")
    step = (weft if job["library"] == "weft" else peer)(job, weights, batches)
    del weights
    begun = time.perf_counter()
    losses, seconds = [step(0)], []
    first = time.perf_counter() - begun
    for index in range(1, len(batches["inputs"])):
        begun = time.perf_counter()
        losses.append(step(index))
        seconds.append(time.perf_counter() - begun)
    tokens = batches["inputs"][0].numel()
    return {"tokens_per_second": tokens / statistics.median(seconds), "first_step_seconds": first, "losses": losses,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]), Path(sys.argv[2]))))
