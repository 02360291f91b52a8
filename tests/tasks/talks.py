"""Small conversations, runs and models for the tests of tasks on conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tasks.task_runs import records_file
from weft.checkpoints import save_checkpoint
from weft.core.model import LanguageModel, Model, parse_model
from weft.tokenizers import ByteTokenizer

DECODER: dict[str, Any] = {
    "kind": "decoder", "d_model": 8, "context": 64, "vocab_size": 257,
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"},
                                          {"kind": "mlp", "d_ff": 16}]}]}
TALKS = [{"messages": [{"role": "user", "content": f"{'ab' * (i % 4)}c?"}, {"role": "assistant", "content": f"n{i}."},
                       *([{"role": "user", "content": "and"}, {"role": "assistant", "content": "é"}] * (i % 3 == 0))]}
         for i in range(30)]
PAIRS = [{"prompt": f"{'ab' * (i % 4)}c?", "chosen": f"yes {i}", "rejected": f"no {i}" + "o" * (i % 3)}
         for i in range(24)]
END = 256


def written(talk: dict[str, Any]) -> tuple[list[int], list[bool]]:
    """A conversation as the style llama2 writes it, byte by byte, and which tokens are an answer's."""
    ids: list[int] = []
    scored: list[bool] = []
    for message in talk["messages"]:
        answers = message["role"] == "assistant"
        text = f" {message['content']} " if answers else f"[INST] {message['content']} [/INST]"
        found = [*text.encode(), END] if answers else [END, *text.encode()]
        ids += found
        scored += [answers] * len(found)
    return ids, scored


def as_talk(pair: dict[str, str], side: str) -> dict[str, Any]:
    """One answer of a pair, as a conversation."""
    return {"messages": [{"role": "user", "content": pair["prompt"]}, {"role": "assistant", "content": pair[side]}]}


def model_of(seed: int = 0) -> LanguageModel:
    """A model in float64, with weights large enough for decided predictions."""
    torch.manual_seed(seed)
    found: Model = parse_model({**DECODER, "embedding": {"std": 1.0}}).build(None).double()
    assert isinstance(found, LanguageModel)
    return found


def naive(model: LanguageModel, talk: dict[str, Any]) -> torch.Tensor:
    """The log-probability of a conversation's answers, alone, token by token from the logits."""
    ids, scored = written(talk)
    total, logits = torch.zeros((), dtype=torch.float64), model(torch.tensor([ids])).y[0]
    for place in range(1, len(ids)):
        if scored[place]:
            z = logits[place - 1]
            total = total + z[ids[place]] - torch.logsumexp(z, 0)
    return total


def start_of(folder: Path) -> Path:
    """A checkpoint to start from."""
    torch.manual_seed(1)
    model = parse_model({**DECODER, "embedding": {"std": 0.3}}).build(None)
    return folder / "start" if (folder / "start").exists() else save_checkpoint(folder / "start", model,
                                                                                   ByteTokenizer())


def run_fields(folder: Path, task: Any, rows: list[dict[str, Any]], **data: Any) -> dict[str, Any]:
    """A run of a few steps from a checkpoint, with checkpoints on the way."""
    return {"start": str(start_of(folder)), "task": task, "data": {"path": str(records_file(folder, rows)), **data},
            "training": {"steps": 6, "batch_size": 3, "optimizer": {"lr": 1e-2}, "compute": {"matmul": "default"}},
            "report": {"eval_every": 3, "eval_batches": 2}}
