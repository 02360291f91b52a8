"""Tiny runs and models for the tests of training and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from weft.core.clock import Clock
from weft.core.config import Dims
from weft.core.model import LanguageModel, ModelConfig, ModelState, Readout, Resizable
from weft.core.output import Output
from weft.core.span import Memory, Span
from weft.core.traits import Trait
from weft.training import RunConfig, parse_run

LSTM: dict[str, Any] = {"kind": "decoder", "d_model": 12, "context": 8,
                        "blocks": [{"kind": "pre", "layers": ["lstm"]}]}
ATTENTION: dict[str, Any] = {
    "kind": "decoder", "d_model": 12, "context": 8, "embedding": {"dropout": 0.1},
    "blocks": [{"kind": "pre", "layers": [{"kind": "attention", "n_heads": 2, "position": "rope"}, "mlp"]}]}


def write_text(folder: Path, size: int = 6000) -> Path:
    """A file of lines that repeat with small changes, so that there is something to learn."""
    path = folder / "text.txt"
    lines = (f"line {i % 17}: the sum of {i % 7} and {i % 5} is {i % 7 + i % 5}\n" for i in range(size))
    text = "".join(line for line, _ in zip(lines, range(size // 33 + 1), strict=False))
    path.write_text(text[:size], encoding="utf-8")
    return path


def tiny_run(folder: Path, model: dict[str, Any], *, steps: int = 20, **training: Any) -> RunConfig:
    """A run of a few steps on a text file."""
    settings = {"steps": steps, "batch_size": 4, "optimizer": {"lr": 1e-2}, **training}
    report = {"log_every": 5, "eval_every": 10, "eval_batches": 2}
    return parse_run({"model": model, "data": {"path": str(write_text(folder))}, "training": settings,
                      "report": report})


class UnigramConfig(ModelConfig):
    """Relative frequencies of tokens, plus one for the unseen."""

    kind: ClassVar[str] = "test_unigram"

    def build(self, dims: Dims | None = None) -> Unigram:
        return Unigram(self)


class Table(Readout):
    """Log-probabilities, kept only for the tokens that occur: as many as the text has, which no configuration says."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.ids: Tensor
        self.counts: Tensor
        self.register_buffer("ids", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("counts", torch.zeros(0, dtype=torch.int64))

    def log_table(self) -> Tensor:
        counts = torch.ones(self.vocab_size, dtype=torch.float64)
        counts[self.ids] += self.counts
        return (counts / counts.sum()).log()

    def logits(self, h: Tensor) -> Tensor:
        return self.log_table().expand(*h.shape[:2], -1)

    def log_prob(self, h: Tensor, targets: Tensor) -> Tensor:
        return self.log_table()[targets]


class Unigram(LanguageModel, Resizable):
    """A model that is fitted by counting."""

    def __init__(self, config: UnigramConfig) -> None:
        super().__init__(config)
        self.readout: Table = Table(config.vocab_size)

    def own_traits(self) -> frozenset[Trait]:
        return frozenset({Trait.NOT_DIFFERENTIABLE})

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> ModelState:
        return ModelState(clock, self.fingerprint)

    def run(self, tokens: Tensor, state: ModelState | None, span: Span) -> Output[ModelState]:
        return Output(tokens, None if state is None else state.replace(clock=span.after))

    def fit(self, tokens: Tensor, begins: Tensor) -> None:
        self.readout.ids, self.readout.counts = tokens.unique(return_counts=True)

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.readout.ids = torch.zeros(shapes["readout.ids"], dtype=torch.int64)
        self.readout.counts = torch.zeros(shapes["readout.counts"], dtype=torch.int64)


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Whether all tensors are equal bit for bit."""
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)
