"""muP against the package of its authors (`mup` 1.0): initial values, multipliers, rates and decays of every parameter.

The package is given the model in the usual parametrization, and its base; it changes biases of linear maps itself. Its
readout is a class of its own, so of ours its shapes are compared."""

from __future__ import annotations

from typing import Any

import mup
import pytest
import torch

from models.test_width_transfer import BASE, built, config
from weft.training.optimizers import AdamWConfig


@pytest.mark.parametrize("width", [BASE, 2 * BASE, 8 * BASE])
@pytest.mark.parametrize("changes", [{}, {"readout": {"kind": "linear"}}, {"position": "learned"}])
def test_every_parameter_is_as_in_the_package(width: int, changes: dict[str, Any]) -> None:
    ours, theirs = built(config(width, **changes)), built(config(width, mup=False, **changes))
    base, delta = (built(config(size, mup=False, **changes)) for size in (BASE, 3 * BASE))
    mup.set_base_shapes(theirs, base, delta=delta)
    rates = {id(p): group for group in mup.MuAdamW(theirs.parameters(), lr=1.0, weight_decay=0.1).param_groups
             for p in group["params"]}
    mine = {id(p): group for group in AdamWConfig(lr=1.0).parameter_groups(ours, 0.1) for p in group["params"]}
    multiple = width / BASE
    for name, parameter in theirs.named_parameters():
        own = ours.get_parameter(name)
        assert mine[id(own)]["factor"] == pytest.approx(rates[id(parameter)]["lr"]), name
        if own.dim() > 1:  # here vectors do not decay
            assert mine[id(own)]["weight_decay"] == pytest.approx(rates[id(parameter)]["weight_decay"]), name
        wanted = parameter * multiple ** 0.5 if name == "readout.weight" else parameter
        torch.testing.assert_close(own, wanted, rtol=1e-6, atol=0)
    assert ours.readout.scale == pytest.approx(1 / theirs.readout.weight.infshape.width_mult())
