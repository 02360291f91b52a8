"""What training minimises, under linear readouts and others, over accumulated batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training.test_gradient import batch_of, gradients, model_of, rows_of
from training.tiny_runs import ATTENTION, next_token
from weft.core.model import Readout
from weft.ops.linear_log_prob import linear_log_prob
from weft.tasks.objective import PIECE_TOKENS, ObjectiveSettings, cross_entropy
from weft.tasks.text import text_rows
from weft.training.gradient import add_gradients

ALL = ObjectiveSettings(label_smoothing=0.2, z_loss=0.1)
V, D = 11, 4


class Mixture(Readout):
    """A mixture of two softmaxes (Yang et al. 2018), whose logits are not linear in h."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(2, V, D, generator=generator, dtype=torch.float64))
        self.most = 0

    def logits(self, h: Tensor) -> Tensor:
        self.most = max(self.most, h.shape[0] * h.shape[1])
        z = torch.einsum("btd,nvd->nbtv", h, self.weight)
        return 3 * z.log_softmax(-1).exp().mean(0)

    def log_prob(self, h: Tensor, targets: Tensor) -> Tensor:
        return self.logits(h).log_softmax(-1).gather(-1, targets[..., None])[..., 0]


def wanted(logits: Tensor, targets: Tensor, scored: Tensor, settings: ObjectiveSettings) -> Tensor:
    z = logits[scored]
    summed = nn.functional.cross_entropy(z, targets[scored], label_smoothing=settings.label_smoothing, reduction="sum")
    return summed + settings.z_loss * z.logsumexp(-1).square().sum()


@pytest.mark.parametrize("settings", [ObjectiveSettings(), ALL, ObjectiveSettings(label_smoothing=0.2),
                                      ObjectiveSettings(z_loss=0.1)], ids=["plain", "all", "smoothed", "z"])
def test_a_readout_that_is_not_linear_gives_the_same_loss_a_piece_at_a_time(settings: ObjectiveSettings) -> None:
    generator = torch.Generator().manual_seed(1)
    shape = (2, PIECE_TOKENS)
    h = torch.randn(*shape, D, generator=generator, dtype=torch.float64, requires_grad=True)
    targets, scored = torch.randint(V, shape, generator=generator), torch.rand(shape, generator=generator) < 0.7
    readout = Mixture()
    found = cross_entropy(readout, h, targets, scored, settings)
    if not settings.plain:
        assert readout.most == PIECE_TOKENS
    whole = wanted(readout.logits(h), targets, scored, settings)
    torch.testing.assert_close(found.loss, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.nats, wanted(readout.logits(h), targets, scored, ObjectiveSettings()).detach(),
                               rtol=1e-12, atol=0)
    learned = [h, readout.weight]
    for mine, other in zip(torch.autograd.grad(found.loss, learned), torch.autograd.grad(whole, learned), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def objective_of(model: Any, *batches: Any) -> tuple[Any, list[Tensor]]:
    sums, _ = add_gradients(next_token(objective=ALL), model, [text_rows(each) for each in batches], None, device="cpu")
    return sums, gradients(model)


def test_smoothing_and_z_loss_are_means_over_the_step_and_nats_stay_plain(tmp_path: Path) -> None:
    model, batch = model_of(tmp_path, ATTENTION), batch_of(4, 8, unscored=2)
    batch.scored[3, 3:] = False
    whole, full = objective_of(model, batch)
    logits, targets = model(torch.from_numpy(batch.inputs)).y, torch.from_numpy(batch.targets)
    scored = torch.from_numpy(batch.scored)
    assert whole.loss == pytest.approx(wanted(logits, targets, scored, ALL).item() / whole.tokens, rel=1e-12)
    assert whole.nats == pytest.approx(wanted(logits, targets, scored, ObjectiveSettings()).item(), rel=1e-12)
    assert whole.loss != pytest.approx(whole.nats / whole.tokens, rel=1e-3)
    parts, summed = objective_of(model, rows_of(batch, slice(0, 3)), rows_of(batch, slice(3, 4)))
    assert parts.loss == pytest.approx(whole.loss, rel=1e-12)
    assert parts.nats == pytest.approx(whole.nats, rel=1e-12)
    for found, want in zip(summed, full, strict=True):
        # Sums of the same few hundred terms in another order, in float64.
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)


def test_the_fused_loss_has_the_gradients_of_the_log_probabilities(tmp_path: Path) -> None:
    model, batch = model_of(tmp_path, ATTENTION), batch_of(3, 8, unscored=1)
    add_gradients(next_token(), model, [text_rows(batch)], None, device="cpu")
    fused = gradients(model)
    h, targets = model.hidden(torch.from_numpy(batch.inputs)).y, torch.from_numpy(batch.targets)
    readout: Any = model.readout
    log_prob = linear_log_prob(h, readout.weight, readout.bias, targets)
    (-log_prob[:, 1:].mean()).backward()
    for found, want in zip(fused, gradients(model), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-12)
