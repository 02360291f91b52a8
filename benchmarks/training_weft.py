"""Weft's side of `training.py`: the Llama-shaped model, its weights under neutral names, and its trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.core.model import LanguageModel
from weft.data import TokenStream
from weft.training import RunConfig, parse_run
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

PARTS = {"qkv": "layers.0.qkv", "output": "layers.0.output", "gate": "layers.1.gate", "up": "layers.1.up",
         "down": "layers.1.down", "norm_1": "norms.0", "norm_2": "norms.1"}


def run_of(job: dict[str, Any], steps: int) -> RunConfig:
    """The run that a user would write for this model."""
    shape = job["shape"]
    attention = {"kind": "attention", "n_heads": shape["heads"], "n_kv_heads": shape["kv_heads"],
                 "position": {"kind": "rope", "layout": "half_split"}}
    block = {"kind": "pre", "norm": "rmsnorm", "layers": [attention, {"kind": "glu", "d_ff": shape["d_ff"]}]}
    model = {"kind": "decoder", "vocab_size": shape["vocabulary"], "context": shape["context"],
             "d_model": shape["width"], "norm": "rmsnorm", "readout": {"kind": "linear", "tied": False},
             "blocks": [{"repeat": shape["layers"], "of": [block]}]}
    return parse_run({"model": model, "training": {
        "steps": steps, "batch_size": shape["batch"], "dtype": job["dtype"],
        "optimizer": {"kind": "adamw", "lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1},
        "schedule": {"kind": "constant", "warmup": 0.0}, "clip_norm": 1.0,
        "compute": {"compile": job["compile"], "matmul": job["route"]}}})


def names(layers: int) -> Iterator[tuple[str, str]]:
    """Neutral names and Weft's."""
    yield from (("embedding", "embedding.tokens.weight"), ("norm", "norm.weight"), ("head", "readout.weight"))
    for i in range(layers):
        yield from ((f"{i}.{neutral}", f"stack.layers.{i}.{own}.weight") for neutral, own in PARTS.items())


def model_of(job: dict[str, Any]) -> LanguageModel:
    """The model with Weft's own initial weights, drawn from seed 0."""
    torch.manual_seed(0)
    return build_model(run_of(job, 1))


def weights_of(model: LanguageModel, layers: int) -> dict[str, Tensor]:
    """Its weights under neutral names."""
    state = model.state_dict()
    return {neutral: state[own] for neutral, own in names(layers)}


def stream_of(tokens: Tensor, vocabulary: int) -> TokenStream:
    """Tokens of one document that stand for a byte each."""
    ids = tokens.numpy().astype(np.uint32)
    return TokenStream(ids, np.zeros(len(ids), dtype=bool), np.ones(len(ids), dtype=np.uint8), begins_scored=True,
                       vocab_size=vocabulary, corpus="made up", corpus_sha256="", tokenizer_sha256="")


def trainer_on(job: dict[str, Any], weights: dict[str, Tensor], batches: dict[str, Tensor]) -> Trainer:
    """A trainer that starts from ``weights``; its order of ``batches["tokens"]`` is that of the batches."""
    steps, shape = len(batches["inputs"]), job["shape"]
    model = model_of(job)
    model.load_state_dict({own: weights[neutral] for neutral, own in names(shape["layers"])})
    stream = stream_of(batches["tokens"], shape["vocabulary"])
    return Trainer(run_of(job, steps), model, stream, steps=steps, device="cpu")
