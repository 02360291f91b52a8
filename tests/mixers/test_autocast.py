"""Every mixer runs under autocast with gradients, near what it computes in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.core.part_config import PartConfig
from weft.core.registry import REGISTRY
from weft.laws.discovery import subject_of
from weft.mixers.base import MixerConfig

EXAMPLES = [pytest.param(config, id=f"{part.kind}-{index}") for part in REGISTRY.parts("mixer")
            for index, config in enumerate(part.examples()) if issubclass(part, MixerConfig)]
CLOSE = {"output": 0.05, "gradient": 0.15}
"""Of the norm. bfloat16 rounds to 2^-9; the norm over a head's two features, which four examples have, divides its
gradient by numbers of which some are near zero: 0.04 and 0.13 are the largest of all, 0.02 and 0.03 elsewhere."""


def run(config: PartConfig, narrow: bool) -> tuple[Tensor, Tensor]:
    """The output for seven tokens, and the gradient of a weighted sum of it for the input."""
    subject = subject_of(config, config.kind)
    assert subject is not None
    subject, generator = subject.remake(subject.module.float()), torch.Generator().manual_seed(0)
    x = subject.inputs(2, 7, generator).float().requires_grad_()
    memory = subject.memory(2, generator)
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        y = subject.whole(x, memory).y
    weights = torch.randn(y.shape, generator=generator)
    gradient, = torch.autograd.grad((y.float() * weights).sum(), x)
    return y.detach().float(), gradient


@pytest.mark.parametrize("config", EXAMPLES)
def test_every_mixer_runs_under_autocast_with_gradients(config: PartConfig) -> None:
    torch.manual_seed(0)
    wide = run(config, False)
    torch.manual_seed(0)
    for name, expected, found in zip(CLOSE, wide, run(config, True), strict=True):
        assert (found - expected).norm() <= CLOSE[name] * expected.norm(), name
