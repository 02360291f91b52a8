"""Folders of families that Weft does not read, judged through `transformers` in a process of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from weft import api
from weft.core.errors import CheckpointError
from weft.judge.questions import FileLimits

TINY: dict[str, Any] = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
FAMILIES = {
    "codegen": ("CodeGen", {"n_positions": 48, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}),
    "biogpt": ("BioGpt", {"max_position_embeddings": 48, "hidden_size": 32, "num_hidden_layers": 2,
                          "num_attention_heads": 4, "intermediate_size": 64})}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_that_weft_does_not_read_is_judged_and_not_accused(family: str, tmp_path: Path) -> None:
    name, fields = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**TINY, **fields)
    getattr(transformers, f"{name}ForCausalLM")(config).eval().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError):
        api.load(tmp_path)
    found = api.verdict(tmp_path, limits=FileLimits(seconds=600, answer=120))
    assert (found.verdict, found.thing.kind) == ("lawful", "folder"), found.model_dump_json(indent=1)
    held = {law.name for law in found.laws if law.outcome == "held"}
    assert {"sums-to-one", "causality", "separate-rows", "repeats", "pieces"} <= held
