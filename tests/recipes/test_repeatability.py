"""The recorded repetitions of a small study: of this study, counted right, and as often within as intervals promise."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

RECIPE = Path(__file__).parents[2] / "recipes" / "repeatability"
MAKE: dict[str, Any] = runpy.run_path(str(RECIPE / "run.py"))
RECORD: dict[str, Any] = json.loads((RECIPE / "result.json").read_text(encoding="utf-8"))


def test_the_record_is_of_the_study_that_stands_here() -> None:
    assert RECORD["study_sha256"] == MAKE["study_sha256"](), "the study has changed; run recipes/repeatability/run.py"
    assert len(RECORD["repetitions"]) == MAKE["REPETITIONS"] == 20
    assert [each["threads"] for each in RECORD["repetitions"]] == [1, 2] * 10


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested mappings, by their place."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, f"{path}/{name}")
    else:
        yield path, value


def test_what_is_expected_is_what_students_t_says() -> None:
    """Drawn, not derived: intervals of five normal values, and means of other five."""
    draws = np.random.default_rng(0).normal(size=(20_000, 20, 5))
    means, error = draws.mean(axis=2), draws.std(axis=2, ddof=1) / np.sqrt(5)
    half = stats.t.ppf(0.975, 4) * error
    expected = MAKE["expected"](5, 20, 0.95)
    assert expected == pytest.approx(RECORD["expected"])  # to rounding: logarithms are a library's
    # 400,000 draws of a share near 0.9, of which twenty belong together: a standard error of at most 0.0021.
    others = np.roll(means, 1, axis=1)
    assert np.mean(np.abs(means - others) < half) == pytest.approx(expected["another_mean"], abs=0.006)
    grand = means.mean(axis=1, keepdims=True)
    assert np.mean(np.abs(means - grand) < half) == pytest.approx(expected["grand_mean"], abs=0.006)


def test_the_counts_are_those_of_the_figures() -> None:
    found = MAKE["counted"](RECORD["repetitions"], RECORD["confidence"])
    again, recorded = dict(leaves(found)), dict(leaves(RECORD["counted"]))
    assert again.keys() == recorded.keys()
    assert again == pytest.approx(recorded)  # to rounding: whole numbers are whole
    name, *_ = RECORD["counted"]["models"]
    values = np.array([each["bits_per_byte"][name] for each in RECORD["repetitions"]])
    low, high = stats.t.interval(0.95, 4, values.mean(axis=1), values.std(axis=1, ddof=1) / np.sqrt(5))
    inside = sum(int(low[a] <= values[b].mean() <= high[a]) for a in range(20) for b in range(20) if a != b)
    assert RECORD["counted"]["models"][name]["another_mean"] == pytest.approx(inside / 380)


def test_intervals_hold_what_they_promise() -> None:
    """As often as chance lets a promise that is kept look broken in one of a thousand records, and not more."""
    draws = np.random.default_rng(1).normal(size=(4000, 20, 5))
    means, error = draws.mean(axis=2), draws.std(axis=2, ddof=1) / np.sqrt(5)
    low, high = means - stats.t.ppf(0.975, 4) * error, means + stats.t.ppf(0.975, 4) * error
    inside = (low[:, :, None] <= means[:, None]) & (means[:, None] <= high[:, :, None])
    shares = (inside.sum(axis=(1, 2)) - 20) / 380
    fewest = stats.binom.ppf(0.001, 20, RECORD["expected"]["grand_mean"])
    for name, found in RECORD["counted"]["models"].items():
        assert found["another_mean"] >= np.quantile(shares, 0.001), name
        assert found["grand_mean_inside"] >= fewest, name
    assert RECORD["counted"]["twins_beside_zero"] <= stats.binom.ppf(0.999, 20, 0.05)


def test_the_page_says_what_the_record_says() -> None:
    page = (RECIPE / "README.md").read_text(encoding="utf-8")
    for name, found in RECORD["counted"]["models"].items():
        assert (f"| {name} | {found['another_mean']:.0%} | {found['another_mean_other_threads']:.0%} | "
                f"{found['grand_mean_inside']} of 20 |") in page
    assert f"expected | {RECORD['expected']['another_mean']:.0%} | " in page
