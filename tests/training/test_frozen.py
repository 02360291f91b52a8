"""Weights that no step changes: bfloat16's copy of them is made once, and a resumed run has it."""

from __future__ import annotations

from pathlib import Path

import torch

from linear.small import described, model
from training.tiny_runs import same_weights, tiny_run
from weft.checkpoints import load_checkpoint
from weft.training import train
from weft.training.precision import Precision

LAYERS = [{"kind": "attention", "n_heads": 2}, {"kind": "mlp", "d_ff": 12}]
LORA = {"kind": "lora", "rank": 2, "maps": ["qkv.q", "up"], "dora": True}


def test_frozen_weights_are_not_copied_again() -> None:
    precision = Precision(model([LORA], LAYERS).float(), torch.bfloat16)
    frozen = precision.working.norm.weight
    trained = precision.working.get_parameter("stack.layers.0.layers.1.up.b.weight")
    with torch.no_grad():
        frozen.zero_()
        trained.zero_()
    precision.refresh()
    assert not frozen.any() and trained.any()
    precision.refresh(frozen=True)
    assert frozen.any()


def test_lengths_stay_wide_in_training() -> None:
    working = Precision(model([LORA], LAYERS).float(), torch.bfloat16).working
    assert {p.dtype for name, p in working.named_parameters() if name.endswith("magnitude")} == {torch.float32}


def test_a_run_in_bfloat16_goes_on_where_it_stopped(tmp_path: Path) -> None:
    plain = {**described([LORA], LAYERS), "vocab_size": 300}
    config = tiny_run(tmp_path, plain, steps=4)
    narrow = config.model_copy(update={"training": config.training.model_copy(update={"dtype": "bfloat16"}),
                                       "report": config.report.model_copy(update={"checkpoint_every": 2, "keep": 9})})
    whole = train(narrow, tmp_path / "whole")
    train(narrow, tmp_path / "part")
    for path in sorted((tmp_path / "part/checkpoints").iterdir())[-1:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    again = train(narrow, tmp_path / "part", resume=True)
    assert same_weights(whole.model, again.model)
    assert same_weights(load_checkpoint(tmp_path / "part").model, whole.model)
