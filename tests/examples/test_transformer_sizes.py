"""The two models of Vaswani et al. 2017, table 3, and their learning rate."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import api
from weft.interop.pooling import count_parameters

EXAMPLES = Path(__file__).parents[2] / "examples"


def by_hand(d_model: int, d_ff: int, vocab_size: int) -> int:
    """Maps of attention have no biases, those of the feed-forward have; a norm has a gain and a bias."""
    attention, feed, norm = 4 * d_model**2, 2 * d_model * d_ff + d_ff + d_model, 2 * d_model
    encoder, decoder = attention + feed + 2 * norm, 2 * attention + feed + 3 * norm
    return vocab_size * d_model + 6 * (encoder + decoder)


@pytest.mark.parametrize(("name", "d_model", "d_ff", "millions"), [("base", 512, 2048, 65), ("big", 1024, 4096, 213)])
def test_parameters_are_those_of_the_architecture_and_about_those_of_the_table(name: str, d_model: int, d_ff: int,
                                                                              millions: int) -> None:
    """Within 3.5 % of the table, whose exact vocabulary is not known: it says about 37,000 pieces."""
    run = api.read_run(EXAMPLES / f"transformer_{name}.yaml")
    found = count_parameters(run.model)
    assert found == by_hand(d_model, d_ff, 37000)
    assert found == pytest.approx(1e6 * millions, rel=0.035)


@pytest.mark.parametrize(("name", "d_model"), [("base", 512), ("big", 1024)])
def test_the_rate_is_that_of_equation_3(name: str, d_model: int) -> None:
    """Up to one step, by which the two count differently: 1/4000 of the warm-up, and 3 digits of the peak."""
    run = api.read_run(EXAMPLES / f"transformer_{name}.yaml")
    training = run.training
    assert training.steps is not None
    for step in (1, 100, 3999, 4000, 5000, 50000):
        wanted = d_model**-0.5 * min(step**-0.5, step * 4000**-1.5)
        found = training.optimizer.lr * training.schedule.factor(step - 1, training.steps)
        assert found == pytest.approx(wanted, rel=4e-3)
