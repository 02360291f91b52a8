"""Train and test the models of this recipe: ``python recipes/penn_treebank/run.py DATA [ngram lstm ...]``.

DATA is the folder of ``ptb.train.txt``, ``ptb.valid.txt`` and ``ptb.test.txt``. Each model is trained into
``runs/penn_treebank`` (a run that was interrupted goes on), tested on the checkpoint that was best on the validation
text, and kept in ``result.json`` beside this file, from which the table of the README is made. The Transformer is tuned
first: a tenth of its tokens with each of three learning rates, whichever is best on the validation text.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch
import yaml

from weft import api
from weft.core.model import LanguageModel, parameter_count
from weft.disk.atomic import write_file
from weft.training import TrainResult, print_event
from weft.training.compute import processor_name

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
RESULT, README = HERE / "result.json", HERE / "README.md"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->\n"
MODELS = ("ngram", "feedforward", "lstm", "transformer")
PROTOCOL: dict[str, dict[str, Any]] = {
    "ngram": {"mode": "documents"}, "lstm": {"mode": "documents", "batch_size": 1},
    "feedforward": {"context": 64, "stride": 58}, "transformer": {"context": 70, "stride": 35}}
"""How each is tested: the n-gram sentence by sentence, the LSTM with its state carried through the whole text, the
others in windows that overlap by what they see."""

RATES = {"transformer": (0.0005, 0.001, 0.002)}
"""Learning rates that are tried; the other models have those of their configurations."""
WORDS = 929_590
"""Of the training text, each line's end among them."""
TRIAL_SHARE = 0.1
"""Of the tokens of a run."""


def trial(name: str, rate: float, runs: Path) -> float:
    """Validation perplexity after a short run with this learning rate."""
    whole = api.read_run(HERE / f"{name}.yaml").training.tokens
    assert whole is not None, "the length of a tuned model stands in tokens"
    found = train(name, runs / f"{name}-lr-{rate:g}",
                  [f"training.optimizer.lr={rate}", f"training.tokens={TRIAL_SHARE * whole:g}"])
    return api.evaluate(found.best, part="validation", **PROTOCOL[name]).perplexity


def train(name: str, out: Path, overrides: Sequence[str] = ()) -> TrainResult:
    """A run, begun or gone on with."""
    return api.train(HERE / f"{name}.yaml", overrides, out=out, resume=(out / "run.json").exists(),
                     on_event=print_event)


def run(name: str, runs: Path, *, threads: int) -> dict[str, Any]:
    """Tune one model, where it is tuned, train it, or go on, and test it."""
    torch.set_num_threads(threads)
    trials = {rate: trial(name, rate, runs) for rate in RATES.get(name, ())}
    best = [f"training.optimizer.lr={min(trials, key=lambda rate: trials[rate])}"] if trials else []
    found = train(name, runs / name, best)
    tested = {part: api.evaluate(found.best, part=part, **PROTOCOL[name]) for part in ("validation", "test")}
    return {"config": yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8")),
            "protocol": tested["test"].protocol.describe(),
            "numbers": numbers(found.model), "training_tokens": found.config.training.tokens,
            "test_tokens": tested["test"].tokens, "threads": threads,
            "trials": {f"{rate:g}": perplexity for rate, perplexity in trials.items()},
            **{f"{part}_perplexity": each.perplexity for part, each in tested.items()},
            "date": date.today().isoformat(), "processor": processor_name(), "torch": torch.__version__}


def numbers(model: LanguageModel) -> int:
    """What was learned or counted."""
    return parameter_count(model) or sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point())


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of one run each as Markdown."""
    lines = ["| model | numbers | training tokens | validation perplexity | test perplexity |",
             "| --- | ---: | ---: | ---: | ---: |"]
    lines += [f"| [{name}]({name}.yaml) | {found['numbers']:,} | {_read(found['training_tokens'])} | "
              f"{found['validation_perplexity']:.2f} | {found['test_perplexity']:.2f} |"
              for name in MODELS if (found := results.get(name)) is not None]
    return "\n".join(lines) + "\n"


def _read(tokens: float | None) -> str:
    return "each once" if tokens is None else f"{tokens:,.0f}, the text {tokens / WORDS:.0f} times"


def with_table(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the table of these results."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{table(results)}{END}{rest.partition(END)[2]}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("data", type=Path, help="the folder of the three texts")
    options.add_argument("models", nargs="*", default=MODELS, help=f"of {', '.join(MODELS)}")
    options.add_argument("--runs", type=Path, default=ROOT / "runs/penn_treebank")
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = options.parse_args()
    runs = given.runs.resolve()
    os.chdir(given.data)  # the configurations name the texts alone
    for name in given.models:
        found = run(name, runs, threads=given.threads)
        results = {**(json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}), name: found}
        write_file(RESULT, json.dumps(results, indent=1, sort_keys=True) + "\n")
        write_file(README, with_table(README.read_text(encoding="utf-8"), results))
        print(f"{name}: test perplexity {found['test_perplexity']:.2f}", flush=True)


if __name__ == "__main__":
    main()
