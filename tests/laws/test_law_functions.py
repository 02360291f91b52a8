"""The measures that the laws are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from weft.core.errors import InputError
from weft.laws.in_pieces import uneven_plan
from weft.laws.report import Finding, Report, difference, gradient_difference
from weft.laws.run import guarded

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(("found", "expected", "wanted"), [
    ([1.0, 2.0], [1.0, 2.0], 0.0),
    ([0.25, 0.0], [0.0, 0.5], 0.5),  # below one the scale is one
    ([10.0, 4.0], [20.0, 4.0], 0.5),  # relative to the largest expected value
    ([NAN, 0.0], [0.0, 0.0], INF),
    ([0.0, 0.0], [NAN, 0.0], INF),
    ([NAN, 0.0], [NAN, 0.0], INF),  # never a value that a part should give
    ([-INF, 3.0], [-INF, 4.0], 0.25),  # the same infinity agrees and sets no scale
    ([INF, 0.0], [-INF, 0.0], INF),
    ([0.0, 0.0], [-INF, 0.0], INF),
    ([INF, 0.0], [0.0, 0.0], INF),
    ([], [], 0.0),
])
def test_difference(found: list[float], expected: list[float], wanted: float) -> None:
    assert difference(torch.tensor(found), torch.tensor(expected)) == wanted


def test_another_shape_is_infinitely_different_even_where_it_would_broadcast() -> None:
    assert difference(torch.zeros(2, 1), torch.zeros(2, 3)) == INF
    assert difference(torch.zeros(0), torch.zeros(0, 2)) == INF


def test_difference_is_taken_in_float64() -> None:
    expected = torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    assert difference(torch.tensor([1.0]), expected) == pytest.approx(1e-12, 1e-3)


def test_a_missing_gradient_counts_as_zero_and_only_so() -> None:
    one = torch.ones(2)
    assert gradient_difference([None, one], [torch.zeros(2), one]) == 0.0
    assert gradient_difference([None], [None]) == 0.0
    assert gradient_difference([None, one], [one, one]) == 1.0
    assert gradient_difference([one], [None]) == 1.0
    with pytest.raises(ValueError, match="longer"):
        gradient_difference([one], [one, one])


def test_a_report_names_what_is_broken_worst_first_and_what_came_closest() -> None:
    good, close = Finding("split", "a", 1e-12, 1e-10), Finding("split", "b", 1e-10, 1e-10)
    bad, worse = Finding("packed", "c", 0.5, 0.1), Finding("ragged", "d", INF, 1e-10)
    report = Report("subject", (good, bad, close, worse))
    assert not report.holds and Report("subject", (good, close)).holds
    assert report.broken() == [worse, bad]
    assert report.worst() == {"split": close, "packed": bad, "ragged": worse}
    assert not Finding("split", "e", NAN, 1.0).holds


@pytest.mark.parametrize("seed", range(5))
def test_uneven_rows_all_arrive_and_start_with_what_must_come_first(seed: int) -> None:
    plan = uneven_plan(3, 11, 3, torch.Generator().manual_seed(seed))
    for row in zip(*plan, strict=True):
        assert sum(row) == 11 and row[0] >= 3
    assert any(len(set(counts)) > 1 for counts in plan)


def _raising(error: Exception) -> Iterator[Finding]:
    raise error
    yield


@pytest.mark.parametrize("error", [
    MemoryError("for the rows"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried for the rows")])
def test_a_lack_of_memory_is_no_defect_of_the_part(error: Exception) -> None:
    """`weft check --length 1e8` under a limit of memory had told of two defects."""
    subject: Any = SimpleNamespace(name="some model", bound=1e-8)
    with pytest.raises(InputError, match=r"length: memory does not suffice for the law split on some model \(.*for the "
                                         r"rows\)\. Give a smaller --length, or a smaller model"):
        list(guarded("split", subject, lambda: _raising(error)))
    finding, = guarded("split", subject, lambda: _raising(ValueError("no state")))
    assert (finding.law, finding.difference) == ("split", INF) and "raised ValueError: no state" in finding.case


def test_an_error_of_a_plugin_names_the_line_of_its_file() -> None:
    code = compile("def run():\n    helper()\n    yield\n\n\ndef helper():\n    raise ValueError('no state')\n",
                   "my_mixer.py", "exec")
    plugin: dict[str, Any] = {"__name__": "weft_plugin_my_mixer"}
    exec(code, plugin)
    finding, = guarded("split", SimpleNamespace(name="some model", bound=1e-8), plugin["run"])  # type: ignore[arg-type]
    assert finding.case == "raised ValueError: no state (my_mixer.py, line 7)"
