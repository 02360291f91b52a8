"""Every registered part, found by discovery, obeys the laws. There is no skip list."""

from __future__ import annotations

import pytest
import torch

from weft.core.config import PartConfig
from weft.laws import every_example, examine, subject_of

LAWLESS_GROUPS = {"tokenizer", "optimizer", "schedule"}
"""Groups that no law is about; a test below pins that everything else has a subject."""

EXAMPLES = [pytest.param(name, config, id=name) for name, config in every_example()]


@pytest.mark.parametrize(("name", "config"), EXAMPLES)
def test_laws_hold(name: str, config: PartConfig) -> None:
    torch.manual_seed(0)
    subject = subject_of(config, name)
    if subject is None:
        assert config.group in LAWLESS_GROUPS, f"{name} has no subject for the laws"
        return
    report = examine(subject)
    assert report.findings
    assert report.holds, "\n".join(str(finding) for finding in report.broken()[:10])
