"""`weft check` of a preset does a bounded amount of work: calls of models and tokens in them, which do not depend on
how busy the machine is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from weft.api import read_model
from weft.core.model import Model
from weft.laws.check import LONGEST, check
from weft.laws.run import LAWS

MOST_CALLS, MOST_TOKENS = 6_000, 500_000
"""Of a whole check of a preset, where 4,600 and 400,000 are found: some 16 seconds of one idle core."""
SHORT = (300, 6_000)
"""Calls and tokens of one law on short rows, where at most 150 and 3,000 are found."""
LONG = {"long rows": (1_000, 40_000), "far": (4_000, 400_000)}
"""Of all laws on long rows of one kind, where 500 and 17,000, 3,400 and 380,000 are found: the second length is
`LONGEST`, and stability takes some thousand steps."""


@contextmanager
def counted(law: list[str]) -> Iterator[tuple[Counter[str], Counter[str], list[int]]]:
    """Calls of models and tokens in them, by subject and law, and the longest row."""
    calls: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    longest = [0]

    def before(module: torch.nn.Module, given: Any) -> None:
        if isinstance(module, Model) and not torch.compiler.is_compiling() and isinstance(given[0], torch.Tensor):
            calls[law[0]] += 1
            tokens[law[0]] += given[0].numel()
            longest[0] = max(longest[0], given[0].shape[-1])

    hook = register_module_forward_pre_hook(before)
    try:
        yield calls, tokens, longest
    finally:
        hook.remove()


def test_a_check_of_a_preset_makes_a_bounded_number_of_calls() -> None:
    law = [""]
    with counted(law) as (calls, tokens, longest):
        found = check(read_model("lstm"), on_law=lambda subject, name: law.__setitem__(0, f"{subject}/{name}"))
    assert found.holds
    assert 0 < sum(calls.values()) < MOST_CALLS and 0 < sum(tokens.values()) < MOST_TOKENS
    assert 2_048 < longest[0] <= LONGEST
    for subject, (most_calls, most_tokens) in LONG.items():
        those = [name for name in calls if name.partition("/")[0] == subject]
        assert 0 < sum(calls[name] for name in those) < most_calls, subject
        assert 0 < sum(tokens[name] for name in those) < most_tokens, subject
    short = {name: (calls[name], tokens[name]) for name in calls if name.partition("/")[0] not in LONG}
    assert {name.partition("/")[2] for name in short if name.startswith("twin/")} >= {"split", "causality", "packed"}
    assert {name.partition("/")[2] for name in short if name} <= set(LAWS)  # twins are built before any law
    assert all(each[0] < SHORT[0] and each[1] < SHORT[1] for each in short.values()), short
