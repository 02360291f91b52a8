"""Steps of gradient descent: accumulation, carried states, packing, precision."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from training.tiny_runs import ATTENTION, LSTM, next_token, tiny_run
from weft.core.errors import CheckpointError, ConfigError, TrainingError
from weft.core.model import LanguageModel
from weft.core.span import Loss, Output
from weft.data import Batch
from weft.tasks.text import span_of, text_rows
from weft.training.averages import optimizer_tensors, restore_optimizer
from weft.training.config import RunConfig
from weft.training.gradient import add_gradients
from weft.training.material import prepare
from weft.training.precision import Precision
from weft.training.requirements import require_trainable
from weft.training.run_training import build_model
from weft.training.trainer import Trainer, seed_step


def model_of(folder: Path, config: dict[str, Any]) -> LanguageModel:
    torch.manual_seed(0)
    config = {**config, "embedding": {"dropout": 0.0}}
    return build_model(tiny_run(folder, config)).double()


def trainer_of(run: RunConfig) -> Trainer:
    torch.manual_seed(0)
    return Trainer(run, build_model(run), prepare(run).train, steps=4, device="cpu")


def batch_of(rows: int, steps: int, *, fresh: bool = True, unscored: int = 0, seed: int = 0) -> Batch:
    ids = np.random.default_rng(seed).integers(0, 257, (rows, steps + 1))
    scored = np.ones((rows, steps), dtype=bool)
    scored[:, :unscored] = False
    begins = np.zeros((rows, steps), dtype=bool)
    return Batch(ids[:, :-1], ids[:, 1:], begins, scored, np.ones((rows, steps), dtype=np.int64), fresh)


def rows_of(batch: Batch, rows: slice) -> Batch:
    return Batch(batch.inputs[rows], batch.targets[rows], batch.begins[rows], batch.scored[rows],
                 batch.target_bytes[rows], batch.fresh)


def gradients(model: LanguageModel) -> list[Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def test_the_loss_is_the_mean_over_the_targets_that_count(tmp_path: Path) -> None:
    model, batch = model_of(tmp_path, ATTENTION), batch_of(2, 8, unscored=3)
    sums, state = add_gradients(next_token(), model, [text_rows(batch)], None, device="cpu")
    logits = model(torch.from_numpy(batch.inputs)).y[:, 3:]
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.targets[:, 3:]).flatten())
    assert sums.loss == pytest.approx(wanted.item(), rel=1e-12)
    assert (sums.tokens, sums.bytes, state) == (10, 10, None)
    assert sums.nats == pytest.approx(10 * wanted.item(), rel=1e-12)


def test_accumulated_batches_of_unequal_weight_are_one_large_batch(tmp_path: Path) -> None:
    model, batch = model_of(tmp_path, ATTENTION), batch_of(4, 8)
    batch.scored[3, 1:] = False
    whole, _ = add_gradients(next_token(), model, [text_rows(batch)], None, device="cpu")
    wanted = gradients(model)
    pieces = [rows_of(batch, slice(0, 3)), rows_of(batch, slice(3, 4))]
    parts, _ = add_gradients(next_token(), model, [text_rows(each) for each in pieces], None, device="cpu")
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    for found, want in zip(gradients(model), wanted, strict=True):
        # Sums of the same few hundred terms in another order, in float64.
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)


def test_auxiliary_losses_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of(tmp_path, LSTM), batch_of(2, 8)
    plain, _ = add_gradients(next_token(), model, [text_rows(batch)] * 2, None, device="cpu")
    before, first = gradients(model), next(model.parameters())
    run = model.run

    def with_loss(*args: Any) -> Output[Any]:
        out = run(*args)
        return out._replace(losses=(*out.losses, Loss("size", first.square().sum())))

    monkeypatch.setattr(model, "run", with_loss)
    sums, _ = add_gradients(next_token(), model, [text_rows(batch)] * 2, None, device="cpu")
    assert sums.loss == pytest.approx(plain.loss + first.square().sum().item(), rel=1e-12)
    assert sums.nats == pytest.approx(plain.nats, rel=1e-12)
    torch.testing.assert_close(gradients(model)[0], before[0] + 2 * first.detach(), rtol=1e-9, atol=1e-12)


def test_a_carried_state_gives_the_losses_of_the_whole_row(tmp_path: Path) -> None:
    model, row, carrying = model_of(tmp_path, LSTM), batch_of(2, 12), next_token(carry_state=True)
    pieces = [Batch(*(value[:, i:i + 4] for value in (row.inputs, row.targets, row.begins, row.scored,
                                                      row.target_bytes)), fresh=i == 0) for i in (0, 4, 8)]
    whole, _ = add_gradients(next_token(), model, [text_rows(row)], None, device="cpu")
    full = gradients(model)
    state, nats = None, 0.0
    for piece in pieces:
        sums, state = add_gradients(carrying, model, [text_rows(piece)], state, device="cpu")
        nats += sums.nats
    assert nats == pytest.approx(whole.nats, rel=1e-12)
    cut = gradients(model)
    assert state is not None
    assert all(not tensor.requires_grad for tensor, _ in state.tensors().values())
    # Gradients do not cross the cuts, so those of the recurrent weights are not three times the whole's.
    assert not all(torch.allclose(a, 3 * b, rtol=1e-6) for a, b in zip(cut, full, strict=True))
    again, _ = add_gradients(carrying, model, [text_rows(pieces[0])], state, device="cpu")
    first, _ = add_gradients(carrying, model, [text_rows(pieces[0])], None, device="cpu")
    assert again.nats == first.nats, "a fresh batch leaves the rows before it behind"
    alone = sum(add_gradients(next_token(), model, [text_rows(piece)], None, device="cpu")[0].nats for piece in pieces)
    assert abs(alone - whole.nats) > 1e-6, "without the state the later pieces score otherwise"


def test_only_a_document_that_begins_inside_makes_a_batch_packed() -> None:
    first, later = batch_of(2, 4), batch_of(2, 4)
    first.begins[0, 0] = True
    later.begins[1, 2] = True
    carried = dataclasses.replace(first, fresh=False)
    assert not span_of(first).packed
    assert span_of(first).fresh
    assert span_of(later).packed
    assert span_of(carried).packed
    assert not span_of(carried).fresh


def test_bfloat16_keeps_the_weights_in_float32_and_small_updates(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, LSTM, dtype="bfloat16", optimizer={"lr": 1e-6, "weight_decay": 0.0},
                   schedule={"kind": "constant", "warmup": 0.0})
    torch.manual_seed(0)
    trainer = Trainer(run, build_model(run), prepare(run).train, steps=20, device="cpu")
    before = [p.detach().clone() for p in trainer.model.parameters()]
    trainer.advance()
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
    wide = {name for name, p in trainer.precision.working.named_parameters() if p.dtype != torch.bfloat16}
    assert wide == {name for name, _ in trainer.model.named_parameters() if "norm" in name}
    moved = [(p - old).abs().max().item() for p, old in zip(trainer.model.parameters(), before, strict=True)]
    # Adam's first step moves by lr, far below bfloat16's spacing near one (2^-8).
    assert max(moved) == pytest.approx(1e-6, rel=0.1)
    for weight, copy in zip(trainer.model.parameters(), trainer.precision.working.parameters(), strict=True):
        assert torch.equal(copy, weight.to(copy.dtype))


def test_batches_of_a_step_are_added_up_in_float32(tmp_path: Path) -> None:
    """32 times a 32nd of a gradient is that gradient: powers of two are exact, and sums of them in float32."""
    run = tiny_run(tmp_path, ATTENTION, dtype="bfloat16")
    torch.manual_seed(0)
    precision, batch = Precision(build_model(run), torch.bfloat16), batch_of(2, 8)
    once, often = (gradients_of(precision, [batch] * count) for count in (1, 32))
    for one, other in zip(once, often, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=0)


def gradients_of(precision: Precision, batches: list[Batch]) -> list[Tensor]:
    rows = [text_rows(batch) for batch in batches]
    add_gradients(next_token(), precision.working.eval(), rows, None, device="cpu",
                  collect=precision.collect_gradients)
    return gradients(precision.model)  # type: ignore[arg-type]


def test_bfloat16_moves_running_statistics_to_the_weights() -> None:
    torch.manual_seed(0)
    model = torch.nn.BatchNorm1d(3)
    precision = Precision(model, torch.bfloat16)  # type: ignore[arg-type]
    precision.working(torch.randn(8, 3).bfloat16()).sum().backward()
    precision.collect_gradients()
    assert torch.equal(model.running_mean.bfloat16(), precision.working.running_mean)
    assert float(model.running_mean.abs().sum()) > 0
    assert model.weight.grad.dtype == torch.float32
    model.running_mean.fill_(2.0)
    precision.refresh(buffers=True)
    assert precision.working.running_mean.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_clipping_and_the_learning_rate_are_those_asked_for(tmp_path: Path, accumulation: int) -> None:
    """The limit is of the step's gradient, however many batches it is added up from."""
    run = tiny_run(tmp_path, LSTM, clip_norm=1e-3, accumulation=accumulation, optimizer={"kind": "sgd", "lr": 0.5},
                   schedule={"kind": "linear", "warmup": 0.0, "final": 0.0}, dtype="float64")
    trainer = trainer_of(run)
    trainer.advance()
    before = [p.detach().clone() for p in trainer.model.parameters()]
    report = trainer.advance()
    pairs = zip(trainer.model.parameters(), before, strict=True)
    moved = sum(float((p.detach() - old).square().sum()) for p, old in pairs)
    assert report.lr == 0.5 * 0.75
    assert report.grad_norm > 1e-3
    # torch divides by (norm + 1e-6), a relative 1e-6 of norms of order one.
    assert moved**0.5 == pytest.approx(report.lr * 1e-3, rel=1e-5)


def test_a_step_takes_the_batches_that_follow_those_of_the_step_before(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(tiny_run(tmp_path, LSTM, accumulation=2))
    batch, asked = trainer.batches.batch, list[int]()
    monkeypatch.setattr(trainer.batches, "batch", lambda step, **share: asked.append(step) or batch(step, **share))
    for _ in range(3):
        trainer.advance()
    assert asked == [0, 1, 2, 3, 4, 5]


def test_a_gradient_that_is_not_finite_stops_a_step_whose_loss_is(tmp_path: Path) -> None:
    trainer = trainer_of(tiny_run(tmp_path, LSTM))
    first = next(trainer.model.parameters())
    before = first.detach().clone()
    first.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(TrainingError, match=r"step 0: the loss became \d.* with a gradient of norm (inf|nan)"):
        trainer.advance()
    assert torch.equal(first, before)


def test_every_step_of_every_rank_draws_numbers_of_its_own() -> None:
    def drawn(*numbers: int) -> float:
        seed_step(*numbers, device=torch.device("cpu"))
        return torch.rand(()).item()

    keys = [(0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)]
    state = torch.get_rng_state()
    found = [drawn(*key) for key in keys]
    assert found == [drawn(*key) for key in keys] and len(set(found)) == len(keys)
    torch.set_rng_state(state)


def test_a_context_beyond_the_positions_is_refused(tmp_path: Path) -> None:
    learned = {**LSTM, "position": "learned"}
    run = tiny_run(tmp_path, learned, context=30)
    model = build_model(run)
    assert model.limit() == 8
    with pytest.raises(ConfigError, match=r"training\.context: 30 tokens, and the model's positions end at 8"):
        require_trainable(run, model)
    run = tiny_run(tmp_path, learned, carry_state=True)
    with pytest.raises(ConfigError, match=r"training\.carry_state: the model's positions end at 8 tokens"):
        require_trainable(run, build_model(run))


def test_a_state_that_grows_cannot_be_carried(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, ATTENTION, carry_state=True)
    with pytest.raises(ConfigError, match=r"carry_state: the state of this model grows with every token \(stack"):
        require_trainable(run, build_model(run))


def test_optimizer_state_that_is_no_tensor_cannot_be_saved(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["seen"] = 3
    with pytest.raises(TrainingError, match="keeps a int in 'seen' of weight, which cannot be saved"):
        optimizer_tensors(optimizer, model)
    with pytest.raises(CheckpointError, match="run: optimiser state of 'other', which this run does not train"):
        restore_optimizer(optimizer, model, {"optimizer.other/step": torch.ones(())}, where="run")
