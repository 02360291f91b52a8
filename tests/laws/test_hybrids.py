"""Random hybrids of depth three and more obey the laws. A failing seed is printed in the test's name."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

from weft.core.part_config import PartConfig
from weft.laws import Hybrids, Report, examine, examine_long, subject_of
from weft.laws.length import length_past
from weft.laws.long_laws import LONG_LAWS

SEEDS = range(int(os.environ.get("WEFT_HYBRIDS", "40")))
"""Some fifteen seconds of one core; `make hybrids` draws a thousand."""
QUICK = ("split", "causality", "ragged", "selection", "packed", "persistence", "bounded", "readout")
IN_TURN = ("coordinates", "forks", "saving", "reuse", "training", "memory")
"""Of these each hybrid takes one."""
LONG = tuple(law for law in LONG_LAWS if law not in ("precision", "continuation"))
"""On long rows. Values grow without bound through many layers without a norm, to where float32 ends."""


@pytest.fixture(scope="module")
def hybrids() -> Hybrids:
    """Made once: searching the registry takes longer than drawing from it."""
    return Hybrids()


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_hold(hybrids: Hybrids, seed: int) -> None:
    torch.manual_seed(seed)
    config = hybrids.draw(seed)
    subject = subject_of(config, f"hybrid {seed}")
    assert subject is not None
    # Depth adds rounding: each block passes on and enlarges what the one before it lost.
    quick = dataclasses.replace(subject, thorough=False, steps=8, bound=1e-9)
    require(examine(quick, seed, (*QUICK, IN_TURN[seed % len(IN_TURN)])), config)
    if seed % 10 == 0:
        require(examine_long(quick, length_past(quick, 400), seed, LONG), config)


def require(report: Report, config: PartConfig) -> None:
    assert report.holds, f"{config.dump()}\n" + "\n".join(str(finding) for finding in report.broken()[:10])
