"""The presets' depths and learning rates, each tried at two budgets.

    python recipes/presets/run.py              every candidate that is not recorded yet, one thread each
    python recipes/presets/run.py lstm s4d     of these presets alone
    python recipes/presets/run.py --page       the page of result.json anew

A preset is begun from by whoever has no settings of her own, with few tokens or with many. So the depths and rates of
``candidates.yaml`` are tried for every preset at the same two budgets of tokens, on the preset's own text, in its own
batches and with its own schedule, which ends with the budget. A candidate is worse than the best of that budget by so
many nats per held-out token; a preset has the values of the candidate with the least sum of both. A preset whose
candidates have all been run has these values, which a test holds.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import itertools
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

import weft
from weft.api.configs import read_config
from weft.disk.atomic import write_file
from weft.ops.processor import processor_name
from weft.training.overrides import run_overrides

HERE = Path(__file__).parent
STUDY, RESULT, README = HERE / "candidates.yaml", HERE / "result.json", HERE / "README.md"
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->\n"

Candidate = Mapping[str, Any]
"""Values by dotted key of a preset's configuration."""


def study() -> dict[str, Any]:
    """The budgets, the seeds, and the values to try by preset."""
    found: dict[str, Any] = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    return found


def candidates(preset: str) -> list[Candidate]:
    """Every combination of a preset's values to try."""
    values = study()["presets"][preset]
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


def changes(candidate: Candidate) -> list[str]:
    """A candidate as changes to the configuration."""
    return [f"{key}={value}" for key, value in candidate.items()]


def preset_sha256(preset: str) -> str:
    """A hash of what decides a preset's figures: all of it but what is tried and the split, which is that of the
    protocol; the values to try, budgets and seeds."""
    plain = run_overrides(read_config(preset), changes(candidates(preset)[0]))
    plain["data"].pop("split_by", None)
    given = [plain, candidates(preset), study()["tokens"], study()["seeds"]]
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()


def loss(preset: str, candidate: Candidate, tokens: int, seed: int) -> float:
    """Nats per held-out token of one run."""
    with tempfile.TemporaryDirectory() as folder:
        run = weft.train(preset, ["training.seconds=null", f"training.tokens={tokens}", f"seed={seed}",
                                  f"data.order_seed={seed}", "data.split_by=name", "training.compute.matmul=default",
                                  "report.eval_batches=40", f"report.eval_every={tokens}", *changes(candidate)],
                         out=Path(folder) / "run")
    return float(run.validation.loss)


def measured(preset: str) -> list[dict[str, list[float]]]:
    """The losses of every candidate over seeds, by budget."""
    found: list[dict[str, list[float]]] = [{} for _ in candidates(preset)]
    for tokens in study()["tokens"]:
        for candidate, own in zip(candidates(preset), found, strict=True):
            own[str(tokens)] = [loss(preset, candidate, tokens, seed) for seed in study()["seeds"]]
            print(f"{preset}, {tokens:,} tokens, {', '.join(changes(candidate))}: {own[str(tokens)]}", flush=True)
    return found


def worse(runs: list[dict[str, list[float]]]) -> list[list[float]]:
    """By how much each candidate is worse than the best, at each budget."""
    means = [[statistics.fmean(losses) for losses in each.values()] for each in runs]
    best = [min(column) for column in zip(*means, strict=True)]
    return [[mean - least for mean, least in zip(row, best, strict=True)] for row in means]


def chosen(preset: str, runs: list[dict[str, list[float]]]) -> Candidate:
    """The candidate that is least worse in the sum of both budgets."""
    sums = [sum(each) for each in worse(runs)]
    return candidates(preset)[sums.index(min(sums))]


def page(before: str, result: Mapping[str, Any]) -> str:
    """The page with a table of every preset that has been run."""
    lines = []
    for preset, found in result["presets"].items():
        runs = found["runs"]
        budgets, keys = list(runs[0]), list(candidates(preset)[0])
        best = chosen(preset, runs)
        lines += [f"**{preset}**, {found['processor']}, {found['date']}", "",
                  f"| {' | '.join(keys)} | {' | '.join(f'{int(each):,} tokens' for each in budgets)} | worse, both | |",
                  f"|{' ---: |' * (len(keys) + len(budgets) + 1)} --- |"]
        for candidate, own, lost in zip(candidates(preset), runs, worse(runs), strict=True):
            losses = " | ".join(f"{statistics.fmean(own[each]):.3f}" for each in budgets)
            lines.append(f"| {' | '.join(f'{value:g}' for value in candidate.values())} | {losses} | {sum(lost):.3f} | "
                         f"{'preset' if candidate == best else ''} |")
        lines.append("")
    left = [preset for preset in study()["presets"] if preset not in result["presets"]]
    lines += [f"Not run yet: {', '.join(left)}.", ""] * bool(left)
    head, _, rest = before.partition(BEGIN)
    return f"{head}{BEGIN}" + "\n".join(lines) + f"{END}{rest.partition(END)[2]}"


def main() -> None:
    """Run what is not recorded, and write the page."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("presets", nargs="*", default=list(study()["presets"]))
    options.add_argument("--page", action="store_true")
    given = options.parse_args()
    torch.set_num_threads(1)
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {"presets": {}}
    for preset in [] if given.page else given.presets:
        if result["presets"].get(preset, {}).get("preset_sha256") == preset_sha256(preset):
            continue
        result["presets"][preset] = {
            "preset_sha256": preset_sha256(preset), "runs": measured(preset), "processor": processor_name(),
            "torch": torch.__version__, "date": datetime.date.today().isoformat()}
        write_file(RESULT, json.dumps(result, indent=1) + "\n")
    write_file(README, page(README.read_text(encoding="utf-8"), result))


if __name__ == "__main__":
    main()
