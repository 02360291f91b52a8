"""How often `weft judge` says that a model has read a text, of models that have and of models that have not.

    python recipes/seen_text/run.py

A model is an n-gram model of bytes, estimated from documents that are drawn for it alone. *Canaries*: a file of random
words is drawn for each model; sound models have read another file of the same form, and others a part of this one,
each line once. *A fresh text*: the documents of a test text, of a fresh one and of the training text are divided by
chance; sound models have read the last alone, others a part of the test text as well.

A sound model for which the p-value is at most a level is a false alarm of a referee with that level; the referee's own
is 0.001. The intervals are exact ones of a share (Clopper and Pearson 1934).
"""

from __future__ import annotations

import json
import math
import platform
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import weft
from weft.data import embedded_corpus
from weft.judge.canaries import LEVEL, Bits, ranked
from weft.judge.fresh_text import LONGEST, compared
from weft.ngram import count_ngrams, modified_kneser_ney

HERE = Path(__file__).parent
RESULT, README = HERE / "result.json", HERE / "README.md"
BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->\n"
LEVELS, ORDER, TRAINING = (0.05, 0.01, LEVEL), 5, 40
"""Levels that false alarms are counted at; the order of a model; documents that each is estimated from."""
CANARIES, READ = 20, {0: 400, 2: 100, 5: 100, 10: 100, 20: 100}
"""Canaries of a file; how many of them a model has read, and so many models."""
DOCUMENTS, SHARES = 20, {0.0: 200, 0.5: 40, 1.0: 40}
"""Documents of the test text, and of the fresh one; the share of the test text that a model has read, and models."""


def model(texts: Sequence[str]) -> Bits:
    """The bits of texts by a modified Kneser-Ney model of others."""
    ids = [np.frombuffer(each.encode(), np.uint8).astype(np.int64) for each in texts]
    begins = np.concatenate([np.arange(len(each)) == 0 for each in ids])
    table = modified_kneser_ney(count_ngrams(np.concatenate(ids), begins, order=ORDER, vocab_size=256))

    def bits(asked: Sequence[str]) -> list[float]:
        rows = [np.frombuffer(each.encode(), np.uint8).astype(np.int64) for each in asked]
        contexts = np.concatenate([np.lib.stride_tricks.sliding_window_view(
            np.concatenate([np.full(ORDER - 1, 256), row]), ORDER - 1)[:-1] for row in rows])
        nats = table.log_prob(contexts, np.concatenate(rows))
        ends = np.cumsum([len(row) for row in rows])
        return [-float(part.sum()) / math.log(2) for part in np.split(nats, ends[:-1])]

    return bits


def documents() -> list[str]:
    """The beginnings of the documents of the text that comes with Weft."""
    return [each.text.encode()[:LONGEST].decode(errors="ignore") for each in embedded_corpus().documents
            if len(each.text.encode()) >= 400]


def canary_file(draw: random.Random) -> list[str]:
    """Lines that end in a random word."""
    return [f"canary {draw.getrandbits(64):016x}" for _ in range(CANARIES)]


def by_canaries(found: Sequence[str], read: int, place: int) -> float:
    """The p-value of a model that has read so many of the canaries it is asked about."""
    draw = random.Random(f"canaries {read} {place}")
    lines, others = canary_file(draw), canary_file(draw)
    shown = "\n".join(lines[:read] + others[read:])
    return ranked(model([*draw.sample(found, TRAINING), shown]), lines, draw).figures["p"]


def by_fresh_text(found: Sequence[str], share: float, place: int) -> float:
    """The p-value of a model that has read a share of the test text; 1 where the texts are not of one kind."""
    drawn = random.Random(f"fresh text {share} {place}").sample(found, TRAINING + 2 * DOCUMENTS)
    test, fresh, train = drawn[:DOCUMENTS], drawn[DOCUMENTS : 2 * DOCUMENTS], drawn[2 * DOCUMENTS :]
    return compared(model(train + test[: int(share * DOCUMENTS)]), test, fresh).figures.get("p", 1.0)


def record() -> dict[str, Any]:
    """How many p-values are at most each level."""
    found, result = documents(), dict[str, Any]()
    for name, ask, doses in (("canaries", by_canaries, READ), ("fresh text", by_fresh_text, SHARES)):
        result[name] = {}
        for dose, models in doses.items():
            p = np.array([ask(found, dose, place) for place in range(models)])  # type: ignore[operator]
            result[name][f"{dose:g}"] = {"models": models, "found": {f"{level:g}": int((p <= level).sum())
                                                                     for level in LEVELS}}
            print(name, dose, result[name][f"{dose:g}"], flush=True)
    return {**result, "weft": weft.__version__, "python": platform.python_version()}


def tables(result: Mapping[str, Any]) -> str:
    """The tables of the page."""
    lines = []
    for name, read in (("canaries", "canaries read, of 20"), ("fresh text", "share of the test text read")):
        lines += [f"| {read} | models | " + " | ".join(f"p at most {level:g}" for level in LEVELS) + " |",
                  "| ---: | ---: |" + " ---: |" * len(LEVELS)]
        for dose, row in result[name].items():
            shares = []
            for count in row["found"].values():
                low, high = stats.binomtest(count, row["models"]).proportion_ci()
                shares.append(f"{count / row['models']:.1%} ({low:.1%} to {high:.1%})")
            lines.append(f"| {dose} | {row['models']} | " + " | ".join(shares) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Write the result and the page."""
    result = record()
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    README.write_text(f"{before}{BEGIN}{tables(result)}{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
