"""Tiny random models of transformers, and the folders they are saved in."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
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
    """Those of every family of language models."""
    return [case for module in _modules() for case in vars(module).get("CASES", ())]


def encoder_cases() -> list[Case]:
    """Those of every family of encoders."""
    return [case for module in _modules() for case in vars(module).get("ENCODERS", ())]


def image_cases() -> list[Case]:
    """Those of every family of models of images."""
    return [case for module in _modules() for case in vars(module).get("IMAGES", ())]


def with_heads(stem: str, changes: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, Any]) -> list[Case]:
    """Cases of a family of encoders; the first has every head, the others that of masked tokens."""
    plain, *others = changes.items()
    made = [Case(f"{stem.lower()}-{plain[0]}-{end}", f"{stem}Config", f"{stem}{end}", {**sizes, **more, **plain[1]})
            for end, more in HEADS.items()]
    return made + [Case(f"{stem.lower()}-{name}", f"{stem}Config", f"{stem}ForMaskedLM", {**sizes, **values})
                   for name, values in others]


HEADS: Mapping[str, Mapping[str, Any]] = {
    "ForMaskedLM": {}, "Model": {}, "ForTokenClassification": {"num_labels": 3},
    "ForSequenceClassification": {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}}


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
            if not parameter.requires_grad:
                continue  # a table of sines and cosines
            normed = "norm" in name or ".ln_" in name  # around what its class starts it at: 1, or Gemma's 0
            middle = float(parameter.mean().round()) if normed else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + middle)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):  # learned, though not by gradients
                buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.2)
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


@contextmanager
def own_modules(folder: Path) -> Iterator[None]:
    """A folder to which transformers copies the code of other folders before it runs it, in place of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setenv("TOKENIZERS_PARALLELISM", "false")  # as a pipeline sets it, for good
        patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
        yield
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        del sys.modules[name]  # which would be looked for in this folder for ever


def opened(folder: Path, **options: Any) -> Any:
    """What the class that the folder's config.json names reads, ready for evaluation."""
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, name).from_pretrained(folder, local_files_only=True, **options)


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
    inputs = {"input_ids": row} if isinstance(row, list) else {"input_ids": row["source"],
                                                               "decoder_input_ids": row["target"]}
    options: dict[str, Any] = {name: torch.tensor([ids]) for name, ids in inputs.items()}
    if type(model).__name__.endswith(("CausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")):
        options["use_cache"] = False
    with torch.no_grad():
        found = model(**options)
    logits: Tensor = (found["logits" if "logits" in found else "last_hidden_state"])[0]
    return logits
