"""What ways of choosing a learning rate cost and give, and how often runs that are a mixture are told to be one.

    python recipes/tuning/run.py --work runs/tuning

Three rates are run at two models from many seeds, planned for a quarter, a half and the whole of the steps: a schedule
falls to the end of what is planned, so a short trial is no part of a long run. On this table every way of choosing a
rate can be played: a study of n attempts is n seeds drawn from those of the table, with all that is known of them. The
truth of a way is the mean of what it gives over all seeds. A call that was interrupted is gone on with.

* *trials of a share*: every rate is tried for it, the best is run; with the whole, the best trial is the run;
* *the best two again*: of the trials the best two are run to the end, and the better is taken;
* *halving*: of trials of a quarter the best two are tried for a half, and the better is run;
* *carried over*: the trials of all attempts of a study choose one rate together, and all its runs have it.

Choices are made by the tuning text, and figures are of the test text. The mixtures are drawn: normal runs, of which a
share lies so many of their standard deviations higher.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy import stats

import weft
from weft.api.configs import config_path
from weft.comparison.jobs import Options
from weft.comparison.mixtures import LEVEL
from weft.comparison.study import read_study
from weft.comparison.study_runner import run_study
from weft.comparison.study_settings import TrialSettings

HERE = Path(__file__).parent
STUDY, RESULT, README = HERE / "study.yaml", HERE / "result.json", HERE / "README.md"
QUARTER, HALF, WHOLE = 0.25, 0.5, 1.0
CONFIDENCE, ATTEMPTS, STUDIES = 0.95, 5, 20_000
"""Of every interval; of a study that has trials of a quarter; played for every way."""
GAPS, SHARES, RUNS, MODELS = (0, 3, 5, 8, 15), (0.05, 0.1, 0.2, 0.5), (3, 5, 10), (1, 3, 6)
MIXTURES = ("How often Student's interval of the mean holds the truth, where a share of the runs lies so many standard "
            "deviations higher than the others; and how often studies that have runs of both kinds are told so:")
ALARMS = ("How often a study is told so of some model, where the two rates of every model are worth the same and are "
          "chosen alike often, and models spread differently:")
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->\n"

Table = Mapping[float, np.ndarray]
"""Bits per byte of the tuning text by share of the steps: [rates, attempts]."""


def study_sha256() -> str:
    """A hash of the study; comments are not among it."""
    plain = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def measured(work: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Of every model its rates, and for each share of the steps what every rate and attempt came to: bits per byte of
    the tuning text, and with the whole of them of the test text."""
    found: dict[str, Any] = {}
    whole = int(read_study(study=STUDY, given=given).training_budget[1])
    for share in (WHOLE, HALF, QUARTER):
        steps = round(share * whole)
        study = read_study(study=STUDY, given={**given, "length": {"steps": steps}})
        result = run_study(study, work / str(steps), config_path, Options(threads=1, own_processes=False),
                           lambda progress: print(progress.line(), flush=True))
        for entry in result.entries:
            model = found.setdefault(entry.name, {"parameters": entry.parameters, "tuning": {},
                                                  "rates": [trial.lr for trial in entry.runs[0].trials]})
            model["tuning"][f"{share:g}"] = [[run.trials[place].bits_per_byte for run in entry.runs]
                                             for place in range(len(model["rates"]))]
            if share == WHOLE:
                model["test"] = [[_test(work / str(steps) / "trials" / entry.name / str(run.index) / f"{rate:g}")
                                  for run in entry.runs] for rate in model["rates"]]
    return found


def _test(folder: Path) -> float:
    return float(json.loads((folder / "result.json").read_text(encoding="utf-8"))["bits_per_byte"])


@dataclass(frozen=True)
class Way:
    """A way of choosing a rate.

    Attributes:
        cost: of an attempt, in whole runs, by the number of rates.
        choose: the places of the rates that attempts choose, [studies, attempts], from the seeds that were drawn for
            them, of the same shape.
    """

    name: str
    cost: Callable[[int], float]
    choose: Callable[[Table, np.ndarray], np.ndarray]


def best(tuning: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Every attempt its own."""
    return np.asarray(tuning.argmin(axis=0)[drawn])


def best_of_two(first: np.ndarray, then: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Of the best two by one share, the better by another."""
    two = np.argsort(first, axis=0, kind="stable")[:2]
    better = np.take_along_axis(then, two, axis=0).argmin(axis=0)
    return np.asarray(np.take_along_axis(two, better[None], axis=0)[0][drawn])


def together(tuning: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The best in the mean over a study's attempts, for all of them."""
    chosen = tuning[:, drawn].mean(axis=2).argmin(axis=0)
    return np.repeat(chosen[:, None], drawn.shape[1], axis=1)


WAYS = (
    Way("trials of a quarter", lambda rates: rates * QUARTER + 1, lambda known, drawn: best(known[QUARTER], drawn)),
    Way("trials of a half", lambda rates: rates * HALF + 1, lambda known, drawn: best(known[HALF], drawn)),
    Way("trials of the whole", lambda rates: rates * WHOLE, lambda known, drawn: best(known[WHOLE], drawn)),
    Way("a quarter, the best two again", lambda rates: rates * QUARTER + 2,
        lambda known, drawn: best_of_two(known[QUARTER], known[WHOLE], drawn)),
    Way("a half, the best two again", lambda rates: rates * HALF + 2,
        lambda known, drawn: best_of_two(known[HALF], known[WHOLE], drawn)),
    Way("halving", lambda rates: rates * QUARTER + 2 * HALF + 1,
        lambda known, drawn: best_of_two(known[QUARTER], known[HALF], drawn)),
    Way("a quarter, carried over", lambda rates: rates * QUARTER + 1,
        lambda known, drawn: together(known[QUARTER], drawn)),
    Way("a half, carried over", lambda rates: rates * HALF + 1, lambda known, drawn: together(known[HALF], drawn)))


def played(model: Mapping[str, Any], way: Way, studies: int = STUDIES) -> dict[str, float]:
    """What a way costs and gives at a model: with five attempts, and with as many as cost what five with trials of a
    quarter do. A study's mean lies ``away`` from the mean of the best rate by what its choices lose and by chance."""
    known = {float(share): np.array(values) for share, values in model["tuning"].items()}
    test, rates = np.array(model["test"]), len(model["rates"])
    cost, draws = way.cost(rates), np.random.default_rng(0)
    as_dear = max(2, round(ATTEMPTS * WAYS[0].cost(rates) / cost))
    least = float(test.mean(axis=1).min())
    found: dict[str, float] = {"cost": cost, "attempts": as_dear}
    for attempts, ending in ((ATTEMPTS, ""), (as_dear, "_as_dear")):
        drawn = draws.integers(test.shape[1], size=(studies, attempts))
        chosen = way.choose(known, drawn)
        figures = test[chosen, drawn]
        means, truth = figures.mean(axis=1), float(figures.mean())
        half = stats.t.ppf((1 + CONFIDENCE) / 2, attempts - 1) * figures.std(axis=1, ddof=1) / math.sqrt(attempts)
        found[f"covered{ending}"] = float((np.abs(means - truth) <= half).mean())
        found[f"half_width{ending}"] = float(half.mean())
        found[f"away{ending}"] = float(np.sqrt(((means - least) ** 2).mean()))
        if not ending:
            found["lost"] = truth - least
            found["other"] = float((chosen != test.mean(axis=1).argmin()).mean())
    return found


def mixture(gap: float, share: float, runs: int, count: int = STUDIES) -> dict[str, float]:
    """Of runs of which a share lies a gap of standard deviations higher: how often the interval of their mean holds the
    truth, and how often they are told to be a mixture where the study has no other model."""
    draws = np.random.default_rng(0)
    high = draws.random((count, runs)) < share
    values = draws.normal(size=(count, runs)) + gap * high
    half = stats.t.ppf((1 + CONFIDENCE) / 2, runs - 1) * values.std(axis=1, ddof=1) / math.sqrt(runs)
    p = p_values(values, high)
    mixed = high.any(axis=1) & ~high.all(axis=1)
    return {"covered": float((np.abs(values.mean(axis=1) - share * gap) <= half).mean()),
            "told": float((p <= LEVEL).mean()), "mixed": float(mixed.mean()), "told_of_mixed": float(
                (p[mixed] <= LEVEL).mean())}


def p_values(values: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Of the analysis of variance of two rates, for studies [R, runs]; 1 where all runs have one rate."""
    runs = values.shape[1]
    many = np.stack([(~high).sum(axis=1), high.sum(axis=1)])
    means = np.stack([(values * mask).sum(axis=1) for mask in (~high, high)]) / np.maximum(many, 1)
    between = many.prod(axis=0) / runs * (means[1] - means[0]) ** 2
    within = ((values - np.where(high, means[1][:, None], means[0][:, None])) ** 2).sum(axis=1)
    p = stats.f.sf(between / within * (runs - 2), 1, runs - 2)
    return np.where(many.min(axis=0) == 0, 1.0, p)


def false_alarms(models: int, runs: int, count: int = STUDIES) -> float:
    """The share of studies with a model that is told to be a mixture where the two rates of all are worth the same and
    are chosen alike often; every model's runs spread as far as they will."""
    draws = np.random.default_rng(1)
    high = draws.random((count, models, runs)) < 0.5
    values = draws.normal(size=(count, models, runs)) * draws.uniform(1, 10, (1, models, 1))
    p = p_values(values.reshape(-1, runs), high.reshape(-1, runs)).reshape(count, models)
    tested = (p < 1).sum(axis=1)
    return float((p.min(axis=1) * np.maximum(tested, 1) <= LEVEL).mean())


def record(models: Mapping[str, Any]) -> dict[str, Any]:
    """Every figure of the page, with the table that they are from."""
    return {"study_sha256": study_sha256(), "models": models,
            "ways": {name: {way.name: played(model, way) for way in WAYS} for name, model in models.items()},
            "mixtures": [{"runs": runs, "share": share, "gap": gap, **mixture(gap, share, runs)}
                         for runs, share, gap in itertools.product(RUNS, SHARES, GAPS)],
            "false_alarms": [{"models": models, "runs": runs, "share": false_alarms(models, runs)}
                             for models, runs in itertools.product(MODELS, RUNS)],
            "weft": weft.__version__, "torch": torch.__version__, "numpy": np.__version__,
            "python": platform.python_version()}


def tables(result: Mapping[str, Any]) -> str:
    """What stands between the marks of the page."""
    return "\n".join([*_rates(result), "", *_ways(result), "", *_said(result), "", MIXTURES, "", *_mixtures(result), "",
                      ALARMS, "", *_alarms(result), ""])


def _rates(result: Mapping[str, Any]) -> list[str]:
    lines = ["| model | parameters | rate | bits per byte, whole | ± between seeds | best of a quarter | of a half "
             "| of the whole |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name, model in result["models"].items():
        test = np.array(model["test"])
        chosen = [np.array(model["tuning"][f"{share:g}"]).argmin(axis=0) for share in (QUARTER, HALF, WHOLE)]
        lines += [f"| {name} | {model['parameters']:,} | {rate:g} | {test[place].mean():.3f} | "
                  f"{test[place].std(ddof=1):.3f} | "
                  + " | ".join(f"{(each == place).sum()} of {test.shape[1]}" for each in chosen) + " |"
                  for place, rate in enumerate(model["rates"])]
    return lines


def _ways(result: Mapping[str, Any]) -> list[str]:
    lines = ["| model | way | whole runs an attempt | not the best rate | bits lost | 5 attempts: covered | ± | away "
             "| as dear: attempts | covered | ± | away |",
             "| --- | --- |" + " ---: |" * 10]
    for name, ways in result["ways"].items():
        lines += [f"| {name} | {way} | {found['cost']:.2f} | {found['other']:.0%} | {found['lost']:.4f} | "
                  f"{found['covered']:.1%} | {found['half_width']:.3f} | {found['away']:.3f} | {found['attempts']} | "
                  f"{found['covered_as_dear']:.1%} | {found['half_width_as_dear']:.3f} | {found['away_as_dear']:.3f} |"
                  for way, found in ways.items()]
    return lines


def _said(result: Mapping[str, Any]) -> list[str]:
    """What follows from the ways, in sentences."""
    said = []
    for name, ways in result["ways"].items():
        short, half = ways[WAYS[0].name], ways[WAYS[1].name]
        said.append(f"* {name}: with {WAYS[0].name} {short['other']:.0%} of attempts run another rate than the best "
                    f"and {round(short['lost'], 3) + 0.0:.3f} bits per byte are lost; the intervals of {ATTEMPTS} "
                    f"attempts hold their mean in {short['covered']:.0%} of the studies. With "
                    f"{WAYS[1].name} it is {half['other']:.0%}, "
                    f"{round(half['lost'], 3) + 0.0:.3f} and {half['covered']:.0%}.")
    away = {way.name: float(np.mean([ways[way.name]["away_as_dear"] for ways in result["ways"].values()]))
            for way in WAYS}
    nearest = ", ".join(f"{name} {away[name]:.3f}" for name in sorted(away, key=lambda name: away[name]))
    return [*said, f"* With as many attempts as cost what {ATTEMPTS} with {WAYS[0].name} do, a study's mean lies so "
            f"many bits per byte from the mean of the best rate, averaged over the models: {nearest}.",
            f"* The default of `weft compare` is `trials.share: {TrialSettings().share:g}`."]


def _mixtures(result: Mapping[str, Any]) -> list[str]:
    lines = ["| runs | share of the rate | " + " | ".join(f"{gap} deviations" for gap in GAPS) + " |",
             "| ---: | ---: |" + " ---: |" * len(GAPS)]
    for runs, share in itertools.product(RUNS, SHARES):
        cells = [each for each in result["mixtures"] if (each["runs"], each["share"]) == (runs, share)]
        lines.append(f"| {runs} | {share:.0%} | " + " | ".join(
            f"{each['covered']:.0%}, {each['told_of_mixed']:.0%}" for each in cells) + " |")
    return lines


def _alarms(result: Mapping[str, Any]) -> list[str]:
    lines = ["| models | " + " | ".join(f"{runs} runs" for runs in RUNS) + " |", "| ---: |" + " ---: |" * len(RUNS)]
    for models in MODELS:
        cells = [each["share"] for each in result["false_alarms"] if each["models"] == models]
        lines.append(f"| {models} | " + " | ".join(f"{share:.1%}" for share in cells) + " |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, play, and write the result and the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, default=Path("runs/tuning"), help="where the runs are kept")
    options.add_argument("--again", action="store_true", help="play on the table of the record, without a run")
    chosen = options.parse_args(arguments)
    models = (json.loads(RESULT.read_text(encoding="utf-8"))["models"] if chosen.again else measured(chosen.work, {}))
    RESULT.write_text(json.dumps(record(models), indent=1) + "\n", encoding="utf-8")
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    README.write_text(f"{before}{BEGIN}{tables(result)}{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
