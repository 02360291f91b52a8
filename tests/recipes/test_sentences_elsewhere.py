"""What the README and the pages under docs say of results is what the records of recipes and benchmarks hold."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def record(path: str) -> Any:
    return json.loads((ROOT / path).read_text("utf-8"))


def page(path: str) -> str:
    return " ".join((ROOT / path).read_text("utf-8").split())


def ratios(path: str) -> list[float]:
    """Weft's tokens a second over those of llama.cpp's server, by number of clients."""
    found: dict[int, dict[str, float]] = {}
    for row in record(path)["rows"]:
        found.setdefault(row["clients"], {})[row["name"]] = row["tokens_per_second"]
    return [each["weft"] / each["llama.cpp"] for each in found.values()]


def test_the_servers_speeds_of_the_readme_are_those_measured() -> None:
    tiles, plain = (sorted(ratios(f"benchmarks/results/serving_http{name}.json")) for name in ("", "_epyc"))
    text = page("README.md")
    assert f"it makes [{tiles[0]:.1f} to {tiles[-1]:.1f} times the tokens](benchmarks/results/serving_http.md)" in text
    assert (f"made [{plain[0]:.2f} to {plain[-1]:.2f} times as many](benchmarks/results/serving_http_epyc.md)" in text)


def test_what_docs_say_of_mixtures_and_of_documents_is_simulated() -> None:
    """A difference of five deviations, over shares of the rate of 5 to 50 %; documents of unequal size."""
    told = {runs: [each["told_of_mixed"] for each in record("recipes/tuning/result.json")["mixtures"]
                   if each["runs"] == runs and each["gap"] == 5] for runs in (3, 5)}
    assert {round(4 * share) for share in told[3]} == {1} and 0.845 < min(told[5]) < 0.855
    text = page("docs/compare.md")
    assert "of five deviations is told of in a quarter of the studies with three runs, and in 85 % with five" in text
    rates = record("recipes/error_rates/result.json")
    assert f"{rates['sizes']} documents of unequal size may say no more than {math.floor(rates['effective'])}" in text


def test_what_docs_say_of_looks_is_simulated() -> None:
    """The most that is found by looking at what was not planned, rounded to five percent."""
    found = max(each["uncounted"] for each in record("recipes/error_rates/result.json")["growing"])
    (most,) = re.findall(r"finds one that is not there in (?:10 to|up to) (\d+) % of studies, where 5 % are",
                         page("docs/compare.md"))
    assert abs(100 * found - int(most)) < 0.5
