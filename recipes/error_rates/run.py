"""How often `weft compare` tells equal models apart, by three rules, and calls different ones as good as each other, on
simulated studies.

    python recipes/error_rates/run.py

A model's figure is what it has on each document of a test text and in each run. The models of a study are equal: what
they have on documents, and what their runs add, are drawn from the same normal distributions. So a pair that is told
apart is an error, and a study with any such pair is a wrong study, of which Holm's correction promises at most 5 %.
`RATIOS` is the standard error of a model's mean from run to run over the one from document to document.

* *larger*: the larger of the p-values of both sources, the rule until it was found here to be none;
* *Satterthwaite*: the sum of both variances with Satterthwaite's degrees of freedom;
* *shares*: that sum, with the tail of each source by its share of it, which is the rule (`combined_test`).

A study that grows is looked at again and again, and is wrong if any look tells a pair apart. `GROWING` says at how many
runs of each model, by three rules (`weft.comparison.looks`):

* *uncounted*: every look as if it were the only one;
* *planned*: the most runs are stated before the first, and looks share the level in proportion to their runs;
* *counted*: nothing is stated, the first look has the whole level, and each later one an ever smaller addition.

Models are called as good as each other where two one-sided tests say that they differ by less than a margin
(`equivalence_p`, Holm's correction over all pairs). In those studies every other model is worse by exactly the margin,
which is some standard errors of a difference wide (`MARGINS`): a study that calls two such models as good as each other
is a wrong study. Where the margin is narrow few studies call any models so; where it is wide the test is at its worst.

A last table takes the documents of a recorded study, whose sizes differ, and counts how often the interval over
documents covers the truth with their number and with their effective number.
"""

from __future__ import annotations

import itertools
import json
import math
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from weft.comparison.folder import read_result
from weft.comparison.looks import Look, share_of
from weft.comparison.statistics import bootstrap_test, effective_clusters, resampled

HERE = Path(__file__).parent
RESULT, README = HERE / "result.json", HERE / "README.md"
SIZES = HERE.parent / "six_ages"
DOCUMENTS, LEVEL = 50, 0.05
MODELS, RUNS, RATIOS = {2: 20_000, 6: 4_000, 12: 1_500}, (3, 5, 10, 20), (0.25, 0.5, 1.0, 2.0, 4.0)
"""Simulated studies by number of models; runs of each model; ratios of the two standard errors."""
RULES = ("larger", "satterthwaite", "shares")
GROWING = {"3, 5 and 10": (3, 5, 10), "each from 3 to 20": tuple(range(3, 21))}
"""Runs of each model at which a growing study is looked at."""
LOOKED = ("uncounted", "planned", "counted")
EQUIVALENT, MARGINS = {2: 20_000, 4: 8_000, 6: 4_000}, (3.0, 30.0)
"""Simulated studies by number of models, and margins in standard errors of a difference, over both sources."""
REPETITIONS, RESAMPLES = 2_000, 400
BEGIN, END = "<!-- table -->\n", "<!-- /table -->\n"


def p_values(difference: np.ndarray, seeds: np.ndarray, documents: np.ndarray, freedom: np.ndarray,
             others: float) -> dict[str, np.ndarray]:
    """Two-sided p-values by each rule.

    Args:
        difference: of two means, [R].
        seeds: its variance from run to run, [R].
        documents: its variance from document to document, [R].
        freedom: degrees of freedom of the first, [R].
        others: of the second.
    """
    share = seeds / (seeds + documents)
    far = np.abs(difference) / np.sqrt(seeds + documents)
    alone = [2 * stats.t.sf(np.abs(difference) / np.sqrt(seeds), freedom),
             2 * stats.t.sf(np.abs(difference) / np.sqrt(documents), others)]
    whole = 1 / (share**2 / freedom + (1 - share) ** 2 / others)
    return {"larger": np.maximum(*alone), "satterthwaite": 2 * stats.t.sf(far, whole),
            "shares": share * 2 * stats.t.sf(far, freedom) + (1 - share) * 2 * stats.t.sf(far, others)}


def drawn(models: int, runs: int, ratio: float, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What equal models have on documents, [R, models, documents], and what their runs add, [R, models, runs]."""
    draws = np.random.default_rng(seed)
    return (draws.normal(0, math.sqrt(DOCUMENTS), (count, models, DOCUMENTS)),
            draws.normal(0, ratio * math.sqrt(runs), (count, models, runs)))


def wrong_studies(models: int, runs: int, ratio: float, test: str, count: int, seed: int) -> dict[str, float]:
    """The share of studies of equal models in which some pair is told apart after Holm's correction, by rule."""
    least = least_p(*drawn(models, runs, ratio, count, seed), test)
    return {rule: float((found <= LEVEL).mean()) for rule, found in least.items()}


def wrong_growing(models: int, looks: Sequence[int], ratio: float, test: str, count: int,
                  seed: int) -> dict[str, float]:
    """The share of growing studies of equal models in which some look tells some pair apart, by how looks are counted.
    The ratio is that of the last look."""
    on, own = drawn(models, looks[-1], ratio, count, seed)
    least = [least_p(on, own[..., :runs], test)["shares"] for runs in looks]
    shares = {"uncounted": [1.0] * len(looks), "planned": shares_of(looks, looks[-1]),
              "counted": shares_of(looks, looks[0])}
    return {rule: float(np.any([p <= LEVEL * share for p, share in zip(least, found, strict=True)], axis=0).mean())
            for rule, found in shares.items()}


def shares_of(looks: Sequence[int], planned: int) -> list[float]:
    """Of the level, that each look has."""
    made: list[Look] = []
    for runs in looks:
        made.append(Look("", runs, 0, share_of(made, runs, planned)))
    return [look.share for look in made]


def wrong_equivalences(models: int, runs: int, ratio: float, test: str, count: int, seed: int) -> dict[str, float]:
    """The share of studies in which two models that differ by exactly the margin are called as good as each other, by
    margin."""
    on, own = drawn(models, runs, ratio, count, seed)
    found = list(compared(on, own, test))
    worse = np.array([(b - a) % 2 == 1 for a, b in itertools.combinations(range(models), 2)])
    rates = {}
    for errors in MARGINS:
        margin = errors * math.sqrt(2) * math.hypot(1, ratio)
        # Models are drawn equal: of each pair that differs, the second is worse by the margin.
        p = np.stack([p_equivalent(difference - margin * apart, *rest, margin)
                      for apart, (difference, *rest) in zip(worse, found, strict=True)], axis=1)
        rates[f"{errors:g}"] = float((rejected(p) & worse).any(axis=1).mean())
    return rates


def p_equivalent(difference: np.ndarray, seeds: np.ndarray, documents: np.ndarray, freedom: np.ndarray,
                 margin: float) -> np.ndarray:
    """P-values of differences as large as the margin, either way, by the rule; see `p_values`."""
    far = margin - np.abs(difference)
    half = p_values(far, seeds, documents, freedom, DOCUMENTS - 1.0)["shares"] / 2
    return np.where(far > 0, half, 1 - half)


def rejected(p: np.ndarray) -> np.ndarray:
    """Whether Holm's correction over the pairs of a study rejects each, [R, pairs]."""
    order, pairs = p.argsort(axis=1), p.shape[1]
    below = np.take_along_axis(p, order, axis=1) * (pairs - np.arange(pairs)) <= LEVEL
    found = np.empty_like(below)
    np.put_along_axis(found, order, np.logical_and.accumulate(below, axis=1), axis=1)
    return found


def least_p(on: np.ndarray, own: np.ndarray, test: str) -> dict[str, np.ndarray]:
    """The least p-value of all pairs after Holm's correction, [R], by rule."""
    found = [p_values(*each, DOCUMENTS - 1.0) for each in compared(on, own, test)]
    return {rule: len(found) * np.minimum(1, np.min([each[rule] for each in found], axis=0)) for rule in RULES}


def compared(on: np.ndarray, own: np.ndarray, test: str) -> Iterator[tuple[np.ndarray, ...]]:
    """Of every pair the difference of the means, its variances from run to run and from document to document, and the
    degrees of freedom of the first."""
    count, models, runs = own.shape
    means, over = on.mean(axis=2), own.mean(axis=2)
    apart = on - means[..., None]
    shared = np.einsum("rad,rbd->rab", apart, apart) / (DOCUMENTS - 1) / DOCUMENTS
    variances = own.var(axis=2, ddof=1) / runs
    for a, b in itertools.combinations(range(models), 2):
        if test == "paired":
            seeds = (own[:, a] - own[:, b]).var(axis=1, ddof=1) / runs
            freedom = np.full(count, runs - 1.0)
        else:
            seeds = variances[:, a] + variances[:, b]
            freedom = seeds**2 / ((variances[:, a] ** 2 + variances[:, b] ** 2) / (runs - 1))
        documents = shared[:, a, a] + shared[:, b, b] - 2 * shared[:, a, b]
        yield means[:, a] - means[:, b] + over[:, a] - over[:, b], seeds, documents, freedom


def covered(sizes: Sequence[int], clusters: float, repetitions: int) -> float:
    """How often the 95 % interval over documents of these sizes, in bytes, holds the truth, where each has bits per
    byte of its own, with that number of clusters."""
    draws, inside, weights = np.random.default_rng(0), 0, np.array(sizes)
    for seed in range(repetitions):
        nats = weights * draws.normal(1.0, 0.1, len(sizes))
        mean = float(nats.sum() / weights.sum()) / math.log(2)
        drawn = resampled([nats.tolist()], sizes, seed=seed, resamples=RESAMPLES)[0]
        interval = bootstrap_test(mean, drawn, clusters, 1 - LEVEL).interval
        assert interval.low is not None and interval.high is not None
        inside += interval.low <= 1 / math.log(2) <= interval.high
    return inside / repetitions


def measured() -> dict[str, Any]:
    """Every figure of the page."""
    cells = [{"test": test, "models": models, "runs": runs, "ratio": ratio,
              **wrong_studies(models, runs, ratio, test, count, seed)}
             for seed, (test, (models, count), runs, ratio) in enumerate(itertools.product(
                 ("welch", "paired"), MODELS.items(), RUNS, RATIOS))]
    growing = [{"test": test, "models": models, "looks": looks, "ratio": ratio,
                **wrong_growing(models, GROWING[looks], ratio, test, count, seed)}
               for seed, (test, (models, count), looks, ratio) in enumerate(itertools.product(
                   ("welch", "paired"), MODELS.items(), GROWING, RATIOS))]
    equivalent = [{"test": test, "models": models, "runs": runs, "ratio": ratio,
                   **wrong_equivalences(models, runs, ratio, test, count, seed)}
                  for seed, (test, (models, count), runs, ratio) in enumerate(itertools.product(
                      ("welch", "paired"), EQUIVALENT.items(), RUNS, RATIOS))]
    sizes = read_result(SIZES).corpus.document_bytes
    effective = effective_clusters(sizes)
    return {"studies": MODELS, "documents": DOCUMENTS, "cells": cells, "growing": growing, "equivalent": equivalent,
            "sizes": len(sizes), "effective": effective,
            "covered": {"number": covered(sizes, len(sizes), REPETITIONS),
                        "effective": covered(sizes, effective, REPETITIONS)},
            "repetitions": REPETITIONS, "numpy": np.__version__, "python": platform.python_version()}


def table(result: dict[str, Any]) -> str:
    """The page's tables: for each number of runs and models the lowest and highest share over all ratios."""
    lines = ["| test | models | runs | larger p | Satterthwaite | shares, the rule |", "| --- | ---: | ---: | ---: | "
             "---: | ---: |"]
    for test, models, runs in itertools.product(("welch", "paired"), MODELS, RUNS):
        cells = [each for each in result["cells"]
                 if (each["test"], each["models"], each["runs"]) == (test, models, runs)]
        spans = [f"{min(each[rule] for each in cells):.1%} to {max(each[rule] for each in cells):.1%}"
                 for rule in RULES]
        lines.append(f"| {test} | {models} | {runs} | {' | '.join(spans)} |")
    worst = {rule: max(each[rule] for each in result["cells"]) for rule in RULES}
    found = result["covered"]
    studies = ", ".join(f"{count:,} studies of {models} models" for models, count in result["studies"].items())
    return "\n".join([
        *lines, "", f"Test texts of {result['documents']} documents; for every ratio {studies}. "
        f"At the worst the larger p-value tells equal models apart in {worst['larger']:.0%} of the studies, "
        f"Satterthwaite's degrees of freedom in {worst['satterthwaite']:.0%}, and the rule in {worst['shares']:.1%}.",
        "", *growing_table(result), "", *equivalent_table(result), "",
        f"The {result['sizes']} documents of the test text of `recipes/six_ages` count as {result['effective']:.0f} of "
        f"equal size. In {result['repetitions']:,} simulations the 95 % interval over them held the truth in "
        f"{found['effective']:.1%}, and with {result['sizes']} for their number in {found['number']:.1%}.", ""])


def growing_table(result: dict[str, Any]) -> list[str]:
    """For each kind of growth the lowest and highest share over all ratios."""
    lines = ["| test | models | looks, at runs of each | uncounted | planned | counted |",
             "| --- | ---: | --- | ---: | ---: | ---: |"]
    for test, models, looks in itertools.product(("welch", "paired"), MODELS, GROWING):
        cells = [each for each in result["growing"]
                 if (each["test"], each["models"], each["looks"]) == (test, models, looks)]
        spans = [f"{min(each[rule] for each in cells):.1%} to {max(each[rule] for each in cells):.1%}"
                 for rule in LOOKED]
        lines.append(f"| {test} | {models} | {looks} | {' | '.join(spans)} |")
    worst = {rule: max(each[rule] for each in result["growing"]) for rule in LOOKED}
    return [*lines, "", f"Growing studies, of which some look tells equal models apart: at the worst "
            f"{worst['uncounted']:.0%} with looks uncounted, {worst['planned']:.1%} with planned looks, "
            f"{worst['counted']:.1%} with looks that were not planned."]


def equivalent_table(result: dict[str, Any]) -> list[str]:
    """For each number of runs and models the lowest and highest share over all ratios."""
    lines = [f"| test | models | runs | {' | '.join(f'margin of {each:g} errors' for each in MARGINS)} |",
             f"| --- | ---: | ---: |{' ---: |' * len(MARGINS)}"]
    for test, models, runs in itertools.product(("welch", "paired"), EQUIVALENT, RUNS):
        cells = [each for each in result["equivalent"]
                 if (each["test"], each["models"], each["runs"]) == (test, models, runs)]
        shares = [[each[f"{margin:g}"] for each in cells] for margin in MARGINS]
        spans = [f"{min(each):.1%} to {max(each):.1%}" for each in shares]
        lines.append(f"| {test} | {models} | {runs} | {' | '.join(spans)} |")
    worst = max(each[f"{MARGINS[-1]:g}"] for each in result["equivalent"])
    studies = ", ".join(f"{count:,} studies of {models} models" for models, count in EQUIVALENT.items())
    return [*lines, "", "Studies in which every other model is worse by exactly the margin, and two of those are "
            f"called as good as each other: for every ratio {studies}. At the worst it is {worst:.1%}."]


def main() -> None:
    """Simulate, and write the result and the page."""
    RESULT.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    README.write_text(f"{before}{BEGIN}{table(json.loads(RESULT.read_text(encoding='utf-8')))}{END}{after}",
                      encoding="utf-8")


if __name__ == "__main__":
    main()
