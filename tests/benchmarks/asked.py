"""Tiny models that benchmarks ask, in float64 on bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from decoding.small_models import MLP, ROPE, build, decoder
from weft.benchmarks import TextModel
from weft.checkpoints import Loaded
from weft.core.model import LanguageModel, Model
from weft.tokenizers import ByteTokenizer, Tokenizer

END, V = 256, 257


def asked(model: Model, *, tokenizer: Tokenizer | None = None, **options: Any) -> TextModel:
    """A model with a tokenizer, in evaluation mode."""
    loaded = Loaded(model.eval(), tokenizer or ByteTokenizer(), model.config, None, {}, Path("tiny"))
    return TextModel(loaded, **options)


def transformer(sharper: float = 1.0) -> LanguageModel:
    """Attention with rotary positions, random weights, bytes; logits ``sharper`` times as large."""
    model = decoder(ROPE, MLP, vocab_size=V, context=1024)
    with torch.no_grad():
        for parameter in model.readout.parameters():
            parameter.mul_(sharper)
    return model


def counted(text: str, order: int = 4, **fields: Any) -> LanguageModel:
    """An n-gram model that has counted a text."""
    model = build({"kind": "ngram", "vocab_size": V, "context": 2048, "order": order, "end": END, **fields})
    model.fit(torch.tensor([END, *text.encode(), END]), torch.tensor([True, *[False] * len(text.encode()), True]))  # type: ignore[operator]
    return model


@torch.no_grad()
def by_hand(model: LanguageModel, prompt: str, completion: str) -> tuple[float, bool]:
    """Log-probability of a completion's bytes after a prompt's, and whether each is the most probable, in one call."""
    ids, size = [END, *(prompt + completion).encode()], len(completion.encode())
    y = model(torch.tensor([ids[:-1]])).y[0, -size:].log_softmax(-1)
    targets = torch.tensor(ids[-size:])
    return float(y.gather(1, targets[:, None]).sum()), bool((y.argmax(-1) == targets).all())
