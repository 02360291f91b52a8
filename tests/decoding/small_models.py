"""Tiny language models for the tests of decoding and evaluation."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from weft.core.clock import Clock
from weft.core.config import parse_part
from weft.core.model import Counted, LanguageModel, ModelConfig, ModelState, Readout
from weft.core.registry import REGISTRY
from weft.core.span import Memory, Output, Span

VOCAB = 11
ROPE = {"kind": "attention", "n_heads": 2, "position": "rope"}
MLP = {"kind": "mlp", "d_ff": 12}
LONGROPE = {"kind": "rope", "scaling": {"kind": "longrope", "short_factor": [1.0, 1.5], "long_factor": [3.0, 7.0],
                                        "original_length": 8, "extended_length": 32}}

DYNAMIC = {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 2.0, "original_length": 8}}


def decoder(*layers: Any, **options: Any) -> LanguageModel:
    """A decoder of two blocks in float64, with weights large enough for decided predictions."""
    return build({"kind": "decoder", "vocab_size": VOCAB, "context": 64, "d_model": 8, "norm": "layernorm",
                  "embedding": {"std": 1.0}, "readout": {"kind": "linear", "tied": False},
                  "blocks": [{"repeat": 2, "of": [{"kind": "pre", "layers": list(layers)}]}], **options})


def translator(vocab_size: int, d_model: int = 8) -> LanguageModel:
    """An encoder-decoder in float64, whose sources have seven ids."""
    bidirectional = {"kind": "attention", "n_heads": 2, "mask": "bidirectional"}
    encoder = {"kind": "encoder", "vocab_size": 7, "d_model": d_model, "position": "sinusoidal",
               "blocks": [{"kind": "pre", "layers": [bidirectional, MLP]}]}
    return decoder(ROPE, {"kind": "cross_attention", "n_heads": 2}, MLP, kind="encoder_decoder", encoder=encoder,
                   vocab_size=vocab_size, d_model=d_model)


def build(config: Any, seed: int = 0) -> LanguageModel:
    """Any registered model in float64; one that is counted has counted random tokens."""
    torch.manual_seed(seed)
    model = parse_part(("model",), config).build(None).double()
    assert isinstance(model, LanguageModel)
    if isinstance(model, Counted):
        model.fit(torch.randint(model.vocab_size, (200,)))
    return model


def kinds() -> dict[str, LanguageModel]:
    """Decoders with the parts whose states differ, and every registered model's examples, in evaluation mode. Several
    files share them, which need as long to build as to test: a test that changes a model makes its own."""
    return dict(_kinds())


@cache
def _kinds() -> dict[str, LanguageModel]:
    window = {**ROPE, "mask": "causal & window(4)", "n_kv_heads": 1}
    models = {
        "rope": decoder(ROPE, MLP), "window": decoder(window, MLP), "lstm": decoder("lstm"),
        "s4d": decoder({"kind": "s4d"}, MLP), "longrope": decoder({**ROPE, "position": LONGROPE}, MLP),
        "dynamic": decoder({**ROPE, "position": DYNAMIC}, MLP),
        "alibi": decoder({**ROPE, "position": "alibi"}, MLP), "hybrid": decoder("gru", window, MLP),
        "learned": decoder({"kind": "attention", "n_heads": 2}, MLP, position={"kind": "learned", "std": 1.0}),
        "moe": decoder("gru", {"kind": "moe", "n_experts": 3, "top_k": 2, "expert": MLP}),
        "channel_mix": decoder("gated_convolution", "channel_mix"),
        "rwkv": decoder("rwkv4", {"kind": "rwkv6", "n_heads": 2, "shift_rank": 2, "decay_rank": 2}, "channel_mix"),
    }
    for part in REGISTRY.parts("model"):
        for index, example in enumerate(part.examples()):
            models[f"{part.kind}-{index}"] = build(example)
    return {name: model.eval() for name, model in models.items()}


def reseeded(seed: int) -> torch.Generator:
    """A generator for test data."""
    return torch.Generator().manual_seed(seed)


class BigramConfig(ModelConfig):
    """Next-token probabilities that depend on the last token alone, written down."""

    kind: ClassVar[str] = "test_bigram"
    vocab_size: int = 3


class TableReadout(Readout):
    """h is the id of the last token; its row of the table holds the logits."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def logits(self, h: Tensor) -> Tensor:
        return self.table[h]

    def log_prob(self, h: Tensor, targets: Tensor) -> Tensor:
        return self.table.log_softmax(-1)[h, targets]


class Bigram(LanguageModel):
    """A table of probabilities [V,V], rows the last token."""

    def __init__(self, probabilities: list[list[float]]) -> None:
        super().__init__(BigramConfig(vocab_size=len(probabilities)))
        self.readout = TableReadout(torch.tensor(probabilities, dtype=torch.float64).log())
        self.calls: list[int] = []
        self.spans: list[Span] = []

    def start(self, clock: Clock, *, capacity: int | None, dtype: torch.dtype, memory: Memory | None) -> ModelState:
        return ModelState(clock, self.fingerprint)

    def run(self, tokens: Tensor, state: ModelState | None, span: Span) -> Output[ModelState]:
        self.calls.append(tokens.shape[0])
        self.spans.append(span)
        return Output(tokens, None if state is None else state.replace(clock=span.after))
