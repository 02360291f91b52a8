"""Digits, units and signs."""

from __future__ import annotations

import math

import pytest

from weft.drawing import numbers


@pytest.mark.parametrize(("half", "decimals"), [
    (0.013, 3), (0.0048, 4), (0.2, 2), (3.0, 2), (0.0996, 3), (0.00001, 4), (0.0, 4), (None, 3), (math.nan, 3)])
def test_the_interval_decides_the_digits(half: float | None, decimals: int) -> None:
    assert numbers.decimals_of(half) == decimals


@pytest.mark.parametrize(("value", "shown"), [
    (0, "0"), (512, "512"), (999.6, "1,000"), (1_602_000, "1.60 M"), (999_999, "1.00 M"), (9.6e6, "9.60 M"),
    (1.18e14, "118 T"),
    (3e21, "3.00 Z"), (3e25, "30,000 Z"), (None, "–"), (math.inf, "–"), (math.nan, "–"), (0.5, "0.500")])
def test_si(value: float | None, shown: str) -> None:
    assert numbers.si(value).replace(numbers.THIN, " ") == shown


def test_units() -> None:
    plain = [text.replace(numbers.THIN, " ") for text in (
        numbers.octets(64), numbers.octets(131_072), numbers.duration(347.4), numbers.duration(1_234.5),
        numbers.duration(0.00073),
        numbers.duration(0), numbers.percent(0.0018), numbers.confidence(0.95), numbers.ratio(0.32),
        numbers.ratio(3.1))]
    assert plain == ["64 B", "131 kB", "347 s", "1,234 s", "730 µs", "0 s", "0.18 %", "95 %", "32 %", "4.1×"]


@pytest.mark.parametrize(("value", "shown"), [
    (0.0117, "+0.012"), (-0.0117, "−0.012"), (0.0, "0.000"), (-0.0001, "0.000"), (math.nan, "–"), (None, "–"),
    (1234.5, "+1,234.500")])
def test_signs(value: float | None, shown: str) -> None:
    assert numbers.signed(value, 3) == shown


@pytest.mark.parametrize(("value", "shown"), [(0.0004, "< 0.001"), (0.0058, "0.006"), (0.53, "0.53"), (1.0, "1.00"),
                                              (None, "–")])
def test_p_values(value: float | None, shown: str) -> None:
    assert numbers.p_value(value) == shown


def test_brief_drops_only_zeros_behind_a_point() -> None:
    write = numbers.brief(numbers.si)
    assert [write(value).replace(numbers.THIN, " ") for value in (1e6, 2.5e6, 100, 1e8, 1.05e3)] == ["1 M", "2.5 M",
                                                                                                     "100", "100 M",
                                                                                                     "1.05 k"]


def test_moments() -> None:
    assert numbers.moment("2026-11-20T23:41:55Z") == "20 November 2026, 23:41 UTC"
    assert numbers.moment("2026-11-21T01:41:55+02:00") == "20 November 2026, 23:41 UTC"
    assert numbers.moment("yesterday") == "yesterday"
