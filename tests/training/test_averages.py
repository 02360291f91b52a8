"""Moving averages of weights: their values, and that they are what is evaluated, saved and returned."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training.tiny_runs import ATTENTION, LSTM, same_weights, tiny_run
from weft.checkpoints import load_checkpoint, read_training
from weft.core.errors import CheckpointError, ConfigError
from weft.training import RunConfig, parse_run, train
from weft.training.averages import Average, AverageSettings
from weft.training.material import prepare
from weft.training.run_training import build_model
from weft.training.trainer import Trainer


def trainer_of(run: RunConfig, steps: int) -> Trainer:
    torch.manual_seed(0)
    return Trainer(run, build_model(run), prepare(run).train, steps=steps, device="cpu")


def values(model: nn.Module) -> dict[str, list[float]]:
    return {name: parameter.detach().double().flatten().tolist() for name, parameter in model.named_parameters()}


def test_averages_are_those_of_their_equation(tmp_path: Path) -> None:
    trainer = trainer_of(tiny_run(tmp_path, LSTM, dtype="float64", average={"decay": 0.3}), 8)
    wanted = values(trainer.model)
    for step in range(8):
        trainer.advance()
        d = min(0.3, (1 + step) / (10 + step))  # 0.3 from the fourth step on
        wanted = {name: [d * a + (1 - d) * w for a, w in zip(wanted[name], now, strict=True)]
                  for name, now in values(trainer.model).items()}
    weights = values(trainer.model)
    with trainer.averaged():
        found = values(trainer.model)
    assert values(trainer.model) == weights
    assert all(math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-14) for name in wanted
               for a, b in zip(found[name], wanted[name], strict=True))


def test_training_goes_on_with_the_weights(tmp_path: Path) -> None:
    """Averages change nothing of what the next step computes, whenever they are looked at."""
    plain, averaging = (trainer_of(tiny_run(tmp_path, ATTENTION, dtype="bfloat16", **training), 8)
                        for training in ({}, {"average": {}}))
    for _ in range(4):
        plain.advance()
        averaging.advance()
        with averaging.averaged():
            assert not same_weights(plain.precision.working, averaging.precision.working)
        assert same_weights(plain.model, averaging.model)
        assert same_weights(plain.precision.working, averaging.precision.working)


def test_checkpoints_evaluations_and_results_are_of_the_averages(tmp_path: Path) -> None:
    averaged = train(tiny_run(tmp_path, LSTM, steps=20, average={"decay": 0.9}), tmp_path / "averaged")
    plain = train(tiny_run(tmp_path, LSTM, steps=20), tmp_path / "plain")
    saved = load_checkpoint(averaged.checkpoint).model
    assert same_weights(saved, averaged.model) and not same_weights(saved, plain.model)
    weights = read_training(averaged.checkpoint)
    assert all(torch.equal(weights[f"weights.{name}"], own) for name, own in plain.model.named_parameters())
    run = tiny_run(tmp_path, LSTM, steps=20)
    measured = run.made_task().measure(saved, prepare(run).validation, run.report.eval_batches)
    assert measured.loss == averaged.validation.loss != plain.validation.loss


def test_a_finished_run_resumes_to_its_averages(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM, steps=4, average={})
    first = train(run, tmp_path / "run")
    weights = {name: own.clone() for name, own in first.model.state_dict().items()}
    again = train(run, tmp_path / "run", resume=True)
    assert all(torch.equal(weights[name], own) for name, own in again.model.state_dict().items())


def test_weights_that_do_not_train_have_no_average() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    assert set(Average(model, AverageSettings()).tensors()) == {"weights.weight"}
    assert Average(model, None).tensors() == {}


def test_weights_that_are_missing_are_told() -> None:
    tensors: dict[str, Tensor] = {"weights.weight": torch.zeros(2, 2)}
    with pytest.raises(CheckpointError, match=r"somewhere: there are no weights of 'bias' beside its average\. Resume"):
        Average(nn.Linear(2, 2), AverageSettings()).resume(tensors, where="somewhere")


@pytest.mark.parametrize(("settings", "message"), [
    ({"decay": 1.0}, r"training\.average\.decay: .*less than 1"),
    ({"rate": 0.9}, r"training\.average\.rate"),
])
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_run({"model": LSTM, "training": {"average": settings}})
