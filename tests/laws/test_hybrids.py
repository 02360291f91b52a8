"""Random hybrids of depth three and more obey the laws. A failing seed is printed in the test's name."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from weft.laws import examine, random_hybrid, subject_of

SEEDS = range(200)
QUICK = ("split", "causality", "ragged", "selection", "packed", "persistence", "bounded", "readout")


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_hold(seed: int) -> None:
    torch.manual_seed(seed)
    config = random_hybrid(seed)
    subject = subject_of(config, f"hybrid {seed}")
    assert subject is not None
    # Depth adds rounding: each block passes on and enlarges what the one before it lost.
    quick = dataclasses.replace(subject, thorough=False, steps=8, bound=1e-9)
    report = examine(quick, seed, QUICK)
    assert report.holds, f"{config.dump()}\n" + "\n".join(str(finding) for finding in report.broken()[:10])
