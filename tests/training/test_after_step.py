"""What training changes otherwise than by gradients: the correction of a router, moved once after every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from training.tiny_runs import tiny_run
from weft.core.layer import Chooser
from weft.training.material import prepare
from weft.training.run_training import build_model
from weft.training.trainer import Trainer

RATE = 0.01
MODEL: dict[str, Any] = {"kind": "decoder", "d_model": 12, "context": 8, "blocks": [{"kind": "pre", "layers": [
    {"kind": "moe", "n_experts": 5, "top_k": 2, "expert": {"kind": "glu", "d_ff": 4},
     "routing": {"score_function": "sigmoid", "correction": True, "correction_rate": RATE}}]}]}


@pytest.mark.parametrize("options", [{}, {"accumulation": 2}, {"dtype": "bfloat16"},
                                     {"compute": {"matmul": "default", "checkpoint_activations": True}}],
                         ids=["plain", "accumulated", "bfloat16", "computed-again"])
def test_the_correction_moves_by_the_rate_in_the_model_and_in_its_copy(tmp_path: Path, options: dict[str, Any]) -> None:
    run = tiny_run(tmp_path, MODEL, **options)
    trainer = Trainer(run, build_model(run), prepare(run).train, steps=20, device="cpu")
    layer, working = (next(part for part in model.modules() if isinstance(part, Chooser))
                      for model in (trainer.model, trainer.precision.working))
    for step in range(1, 4):
        trainer.advance()
        moved = layer.get_buffer("correction") / RATE
        assert torch.allclose(moved, moved.round(), atol=1e-4) and float(moved.abs().max()) <= step + 1e-4
        assert torch.equal(layer.get_buffer("correction"), working.get_buffer("correction"))
        assert not layer.get_buffer("tally.numbers").any() and not working.get_buffer("tally.numbers").any()
    assert moved.any() and float(moved.max()) > 0 > float(moved.min())


def test_experts_are_used_more_alike_than_without_it(tmp_path: Path) -> None:
    """Of two runs from the same weights, one with a rate of zero; neither has a loss that asks for balance."""
    spread = {}
    for rate in (0.0, 0.02):
        moe = {**MODEL["blocks"][0]["layers"][0], "balance_loss": 0.0, "z_loss": 0.0,
               "routing": {"score_function": "sigmoid", "correction": True, "correction_rate": rate}}
        run = tiny_run(tmp_path, {**MODEL, "blocks": [{"kind": "pre", "layers": [moe]}]}, steps=40)
        torch.manual_seed(3)
        model = build_model(run)
        trainer = Trainer(run, model, prepare(run).train, steps=40, device="cpu")
        layer: Any = next(part for part in trainer.model.modules() if isinstance(part, Chooser))
        loads = torch.zeros(5)

        def count(module: Any, inputs: tuple[Any, ...], loads: torch.Tensor = loads) -> None:
            loads.add_(torch.bincount(module.choose(inputs[0]).chosen.flatten(), minlength=5))

        for step in range(40):
            if step == 30:
                layer.register_forward_pre_hook(count)
            trainer.advance()
        spread[rate] = float(loads.std() / loads.mean())
    assert spread[0.02] < 0.7 * spread[0.0], spread
