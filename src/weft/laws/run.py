"""Running the laws."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn

from weft.core.layer import Layer
from weft.core.model import LanguageModel
from weft.laws.causality import causality
from weft.laws.compiling import compile_whole
from weft.laws.continuation import continuation
from weft.laws.coordinates import coordinates
from weft.laws.forks import forks
from weft.laws.inference import inference
from weft.laws.inputs import inputs
from weft.laws.memory import memory
from weft.laws.packed import packed
from weft.laws.precision import precision, readout
from weft.laws.report import Finding, Report
from weft.laws.reuse import reuse
from weft.laws.rows import bounded, persistence, ragged, selection
from weft.laws.saving import saving
from weft.laws.seeds import seeds
from weft.laws.split import split
from weft.laws.subject import Subject, layer_subject, model_subject
from weft.laws.training import training

LAWS: dict[str, Callable[[Subject, torch.Generator], Iterator[Finding]]] = {
    "split": split,
    "causality": causality,
    "ragged": ragged,
    "selection": selection,
    "packed": packed,
    "persistence": persistence,
    "precision": precision,
    "bounded": bounded,
    "readout": readout,
    "inference": inference,
    "continuation": continuation,
    "coordinates": coordinates,
    "forks": forks,
    "saving": saving,
    "reuse": reuse,
    "training": training,
    "seeds": seeds,
    "memory": memory,
    "inputs": inputs,
    "compile": compile_whole,
}


def examine(subject: Subject, seed: int = 0, laws: tuple[str, ...] = tuple(LAWS)) -> Report:
    """Run the named laws, each with a generator of the given seed."""
    findings: list[Finding] = []
    for name in laws:
        generator = torch.Generator().manual_seed(seed)
        findings += LAWS[name](subject, generator)
    return Report(subject.name, tuple(findings))


def check_module(module: nn.Module, name: str, *, d_model: int = 0, seed: int = 0, steps: int = 11,
                 bound: float = 1e-10) -> Report:
    """All laws on a layer (of width ``d_model``) or a language model."""
    if isinstance(module, LanguageModel):
        return examine(model_subject(name, module, steps=steps, bound=bound), seed)
    assert isinstance(module, Layer), "laws run on layers and language models"
    return examine(layer_subject(name, module, d_model, steps=steps, bound=bound), seed)
