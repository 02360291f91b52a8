"""Tiny folders in the format of transformers, made without it: names and shapes of tensors are stored, their numbers
come from a generator whose stream is fixed for all time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

STORED = Path(__file__).parent / "stored_logits.json"

STORED_DROPPED = Path(__file__).parent / "stored_transfo_xl.json"
"""Cases of a family that transformers has dropped; see against_transformers/store_transfo_xl.py."""


@cache
def stored() -> Mapping[str, Any]:
    """By case: config.json, the tensors' shapes, a row of tokens and its last logits, as transformers had them."""
    cases: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))["cases"]
    return {**cases, "transfo-xl": stored_dropped()["transfo-xl"]}


@cache
def stored_dropped() -> Mapping[str, Any]:
    """The same of Transformer-XL's cases, whose row was run in segments."""
    cases: dict[str, Any] = json.loads(STORED_DROPPED.read_text(encoding="utf-8"))["cases"]
    return cases


def weights(shapes: Mapping[str, list[int]]) -> dict[str, Tensor]:
    """The tensors' numbers, in the order of their names."""
    stream = np.random.RandomState(7)
    found = {}
    for name in sorted(shapes):
        middle = 1.0 if "norm" in name or ".ln_" in name else 0.0
        found[name] = torch.from_numpy(stream.standard_normal(shapes[name]) * 0.3 + middle).float()
    return found


def write(folder: Path, case: str = "llama") -> dict[str, Tensor]:
    """A case's folder, and its tensors."""
    return write_case(folder, stored()[case])


def write_case(folder: Path, case: Mapping[str, Any]) -> dict[str, Tensor]:
    """The folder of a stored case, and its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case["config"]))
    tensors = weights(case["shapes"])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def change_config(folder: Path, **values: Any) -> None:
    """Other values in config.json; None removes a key."""
    path = folder / "config.json"
    raw = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))
