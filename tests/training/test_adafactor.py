"""Both forms of Adafactor against their equations, entry by entry in Python's floats, over several steps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from training.tiny_runs import LSTM
from weft.core.config import parse_part
from weft.core.errors import ConfigError
from weft.training import parse_run
from weft.training.adafactor import AdafactorConfig, UnfactoredAdafactorConfig
from weft.training.optimizers import OptimizerConfig, set_lr
from weft.training.requirements import require_trainable

RATES = (0.3, 2.0, 0.1, 0.7)
"""Of the steps: the second is above 1/sqrt(2), which torch's form never exceeds."""


def descended(config: OptimizerConfig, start: Tensor, gradients: list[Tensor]) -> Tensor:
    """A parameter in float64 after steps with the given gradients at `RATES`."""
    module = nn.Module()
    module.weight = nn.Parameter(start.clone())
    optimizer = config.create(module)
    for gradient, rate in zip(gradients, RATES, strict=True):
        set_lr(optimizer, rate)
        module.weight.grad = gradient.clone()
        optimizer.step()
    found: Tensor = module.weight.detach()
    return found


def rms(rows: list[list[float]]) -> float:
    return math.sqrt(sum(x * x for row in rows for x in row) / sum(map(len, rows)))


def factored(start: list[list[float]], gradients: list[list[list[float]]], e: float, eps: float, d: float,
             decay: float) -> list[list[float]]:
    n, m = len(start), len(start[0])
    w, row, column = [list(each) for each in start], [0.0] * n, [0.0] * m
    for t, (g, lr) in enumerate(zip(gradients, RATES, strict=True), start=1):
        new = t ** -e
        row = [(1 - new) * row[i] + new * sum(x * x for x in g[i]) / m for i in range(n)]
        column = [(1 - new) * column[j] + new * sum(g[i][j] ** 2 for i in range(n)) / n for j in range(m)]
        u = [[g[i][j] / math.sqrt(row[i] * column[j] / (sum(row) / n)) for j in range(m)] for i in range(n)]
        size = min(lr, t ** -0.5) * max(eps, rms(w)) / max(1.0, rms(u) / d)
        w = [[w[i][j] * (1 - lr * decay) - size * u[i][j] for j in range(m)] for i in range(n)]
    return w


def unfactored(start: list[list[float]], gradients: list[list[list[float]]], e: float, beta1: float, eps: float,
               d: float, decay: float) -> list[list[float]]:
    n, m = len(start), len(start[0])
    w = [list(each) for each in start]
    v, momentum = ([[0.0] * m for _ in range(n)] for _ in range(2))
    for k, (g, lr) in enumerate(zip(gradients, RATES, strict=True), start=1):
        beta2 = 1 - k ** -e
        v = [[beta2 * v[i][j] + (1 - beta2) * g[i][j] ** 2 for j in range(m)] for i in range(n)]
        u = [[g[i][j] / math.sqrt(v[i][j]) for j in range(m)] for i in range(n)]
        size = lr * max(eps, rms(w)) / max(1.0, rms(u) / d)
        momentum = [[beta1 * momentum[i][j] + (1 - beta1) * size * u[i][j] for j in range(m)] for i in range(n)]
        w = [[w[i][j] * (1 - decay * lr * lr) - momentum[i][j] for j in range(m)] for i in range(n)]
    return w


@pytest.fixture
def gradients() -> list[Tensor]:
    """The last is ten times as large, so that the update is clipped there."""
    torch.manual_seed(0)
    return [torch.randn(3, 5, dtype=torch.float64) * size for size in (1.0, 0.1, 0.3, 10.0)]


@pytest.mark.parametrize("scale", [1.0, 1e-4])  # at 1e-4 the step is relative to eps, the smallest size
@pytest.mark.parametrize("values", [(0.8, 1e-3, 1.0, 0.0), (0.5, 1e-2, 1.5, 0.1)])
def test_factored_values(gradients: list[Tensor], scale: float, values: tuple[float, float, float, float]) -> None:
    e, eps, d, decay = values
    start = scale * torch.randn(3, 5, dtype=torch.float64)
    config = AdafactorConfig(decay_exponent=e, min_scale=eps, clip_threshold=d, weight_decay=decay)
    found = descended(config, start, gradients)
    wanted = factored(start.tolist(), [g.tolist() for g in gradients], e, eps, d, decay)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("values", [(0.8, 0.9, 1e-3, 1.0, 1.0), (0.5, 0.0, 1e-2, 1.5, 0.1),
                                    (0.8, 0.5, 1e-3, None, 0.0)])
def test_unfactored_values(gradients: list[Tensor], scale: float,
                           values: tuple[float, float, float, float | None, float]) -> None:
    e, beta1, eps, d, decay = values
    start = scale * torch.randn(3, 5, dtype=torch.float64)
    config = UnfactoredAdafactorConfig(decay_exponent=e, beta1=beta1, min_scale=eps, clip_threshold=d,
                                       weight_decay=decay)
    wanted = unfactored(start.tolist(), [g.tolist() for g in gradients], e, beta1, eps, math.inf if d is None else d,
                        decay)
    torch.testing.assert_close(descended(config, start, gradients), torch.tensor(wanted, dtype=torch.float64),
                               rtol=1e-12, atol=0)


def test_a_parameter_ten_times_as_large_takes_steps_ten_times_as_large(gradients: list[Tensor]) -> None:
    """What scaling by the parameter is for; the decay is relative to the parameter as well."""
    start = torch.randn(3, 5, dtype=torch.float64)
    small, large = (descended(UnfactoredAdafactorConfig(), each, gradients) for each in (start, 10 * start))
    torch.testing.assert_close(large, 10 * small, rtol=1e-12, atol=0)


@pytest.mark.parametrize("config", [AdafactorConfig(), UnfactoredAdafactorConfig()])
def test_a_gradient_of_zero_moves_nothing(config: OptimizerConfig) -> None:
    start = torch.ones(4, dtype=torch.float64)  # a vector, which does not decay
    assert torch.equal(descended(config, start, [torch.zeros_like(start)] * 4), start)


@pytest.mark.parametrize("kind", ["adafactor", "adafactor_unfactored"])
def test_complex_parameters_are_refused(kind: str) -> None:
    run = parse_run({"model": LSTM, "training": {"steps": 1, "optimizer": kind}})
    model = run.model.build()
    model.register_parameter("phases", nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    with pytest.raises(ConfigError, match=rf"training\.optimizer\.kind: {kind}, which does not train complex numbers "
                                          r"such as phases\. Use adamw\."):
        require_trainable(run, model)


def test_other_names_and_wrong_values() -> None:
    with pytest.raises(ConfigError, match="adafactor_unfactored"):
        parse_part(("optimizer",), {"kind": "palm"})
    with pytest.raises(ConfigError, match="beta1"):
        parse_part(("optimizer",), {"kind": "adafactor", "beta1": 0.9})
    with pytest.raises(ConfigError, match=r"d: Input should be greater than or equal to 1, got 0\.5"):
        parse_part(("optimizer",), {"kind": "adafactor", "clip_threshold": 0.5})
