"""A folder of a family that Weft does not read is judged through transformers itself, in the confined process."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import CodeGenConfig, CodeGenForCausalLM

import weft
from weft.judge.questions import FileLimits


def test_a_folder_of_a_family_that_weft_does_not_read_is_judged(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = CodeGenConfig(vocab_size=64, n_positions=32, n_ctx=32, n_embd=16, n_layer=1, n_head=2, rotary_dim=4,
                           bos_token_id=0, eos_token_id=0)
    CodeGenForCausalLM(config).save_pretrained(tmp_path)
    found = weft.verdict(tmp_path, limits=FileLimits(threads=1))
    assert (found.verdict, found.thing.kind, found.thing.gives) == ("lawful", "folder", "logits"), found
    outcomes = {law.name: law.outcome for law in found.laws}
    assert outcomes["pieces"] == "held" and outcomes["bytes"] == "not tried"
