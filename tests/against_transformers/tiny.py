"""Tiny random models of transformers, and the folders they are saved in."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from against_transformers import cases

TOLERANCE = 5e-5
"""On float32 logits of the size 5 that these weights give: 1e-6 of rounding in each of some dozen products."""

LENGTHS = (3, 8, 9, 1, 23)
"""Prompts of one batch: around the windows and original lengths of the cases, and beyond both."""

SHAPES = {"vocab_size": 67, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3,
          "num_attention_heads": 6, "max_position_embeddings": 64}


@dataclass(frozen=True)
class Case:
    """One tiny model: its name, the names of its classes, and the values of its configuration."""

    name: str
    config: str
    model: str
    values: Mapping[str, Any] = field(default_factory=dict)


def relatives(stem: str, changes: Mapping[str, Mapping[str, Any]]) -> list[Case]:
    """Cases of classes that spell their sizes as Llama does."""
    return [Case(f"{stem.lower()}-{name}", f"{stem}Config", f"{stem}ForCausalLM", {**SHAPES, **values})
            for name, values in changes.items()]


def all_cases() -> list[Case]:
    """Those of every family."""
    return [case for module in _modules() for case in module.CASES]


def gradient_cases() -> list[Case]:
    """One of each kind of attention."""
    return [vars(module)["GRADIENTS"] for module in _modules() if "GRADIENTS" in vars(module)]


def _modules() -> list[Any]:
    return [importlib.import_module(f"{cases.__name__}.{info.name}") for info in pkgutil.iter_modules(cases.__path__)]


def build(case: Case, seed: int = 0) -> Any:
    """The random model: weights large enough that every part of it shows in the logits."""
    given = {key: dict(value) if isinstance(value, dict) else value for key, value in case.values.items()}
    config = getattr(transformers, case.config)(**given)
    model: Any = getattr(transformers, case.model)(config)
    if case.values.get("tie_word_embeddings") is False and config.is_encoder_decoder:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())  # T5's class ties it
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:  # Marian's fixed positions
                continue
            normed = "norm" in name or ".ln_" in name  # around what its class starts it at: 1, or Gemma's 0
            middle = float(parameter.mean().round()) if normed else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + middle)
    return model


def saved(case: Case, folder: Path, **options: Any) -> Any:
    """The model, saved in ``folder``."""
    model = build(case)
    model.save_pretrained(folder, **options)
    return model


def given(case: Case, lengths: tuple[int, ...] = LENGTHS) -> list[Any]:
    """Prompts of a case: `rows`, each behind a source of another length for an encoder-decoder."""
    made = rows(67, lengths)
    if not getattr(transformers, case.config)().is_encoder_decoder:
        return made
    sources = rows(67, tuple(1 + (5 * length) % 24 for length in lengths))
    return [{"source": source, "target": target} for source, target in zip(sources, made, strict=True)]


def opened(folder: Path, **options: Any) -> Any:
    """What the class of a folder reads."""
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    kind: Any = (transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else
                 transformers.AutoModelForCausalLM)
    return kind.from_pretrained(folder, local_files_only=True, **options)


def logits_of(model: Any, tokens: Tensor) -> Tensor:
    """Logits [B,T,V], of an encoder-decoder with the tokens as its source too."""
    more = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    logits: Tensor = model(tokens, **more).logits
    return logits


def rows(vocab_size: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Prompts of different lengths."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths]


def alone(folder: Path, row: list[int] | Mapping[str, list[int]]) -> Tensor:
    """Logits [T,V] of one row by itself, in a model that has seen no other: dynamic scalings keep what they saw."""
    model = opened(folder)
    model.eval()
    inputs = {"input_ids": row} if isinstance(row, list) else {"input_ids": row["source"],
                                                               "decoder_input_ids": row["target"]}
    with torch.no_grad():
        logits: Tensor = model(**{name: torch.tensor([ids]) for name, ids in inputs.items()}, use_cache=False).logits[0]
    return logits
