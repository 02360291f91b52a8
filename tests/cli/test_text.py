"""Numbers in words."""

from __future__ import annotations

import pytest

from weft.cli.text import in_bytes, short


@pytest.mark.parametrize(("number", "written"), [
    (0, "0"), (7, "7"), (0.5, "0.500"), (12.25, "12.2"), (999, "999"), (999.7, "1.00 k"), (1000, "1.00 k"),
    (45_600, "45.6 k"), (999_499, "999 k"), (999_981, "1.00 M"), (1e6, "1.00 M"), (-999_981, "-1.00 M"),
    (1.234e20, "123 E"), (4e28, "40,000 Y")])
def test_three_digits_and_never_a_thousand_of_a_prefix(number: float, written: str) -> None:
    assert short(number) == written


def test_the_unit_follows_the_prefix() -> None:
    assert (short(45.6e9, "FLOP/s"), short(12, "B/s")) == ("45.6 GFLOP/s", "12 B/s")


@pytest.mark.parametrize(("number", "written"), [
    (0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (1_048_524, "1,023.9 KiB"), (1_048_575, "1.0 MiB"),
    (1.5 * 2**20, "1.5 MiB"), (3000 * 2**40, "3,000.0 TiB")])
def test_bytes_never_fill_the_next_unit(number: float, written: str) -> None:
    assert in_bytes(number) == written
