"""Bytes of keys and values, and milliseconds a token, against the context: five kinds of attention, one model.

    python recipes/key_value_bytes/run.py              counts bytes and measures times: a few minutes, idle machine
    python recipes/key_value_bytes/run.py --count      counts bytes only: seconds, the same numbers on any machine

Bytes are those of a state with room for the context, in float32, of all layers. A token with the state is the median
of single steps in a state that holds the context; without it, a whole row of that length is computed for its last
token. Both are the model's own calls, in one process, on weights as drawn. Writes result.json and its pictures, and,
where times were measured, their table in README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.progress import track

from weft.core.model import LanguageModel, parse_model
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.ops.processor import processor_name

HERE = Path(__file__).parent
STUDY = HERE / "mixers.yaml"
WAYS = {"with": "with the state", "without": "without a state"}
BEGIN, END = "<!-- times -->\n", "<!-- /times -->\n"
STEPS, PIECE = 24, 512
"""Steps whose median is a token's time; tokens of a piece in which a state is filled."""


def study() -> dict[str, Any]:
    """What is compared."""
    found: dict[str, Any] = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    return found


def study_sha256() -> str:
    """A hash of the study; comments are not among it."""
    return hashlib.sha256(json.dumps(study(), sort_keys=True).encode()).hexdigest()


def build(mixer: dict[str, Any]) -> LanguageModel:
    """The model with this mixer, from the same seed."""
    settings = study()
    block = {"kind": "pre", "norm": "rmsnorm", "layers": [mixer, settings["feedforward"]]}
    torch.manual_seed(0)
    model = parse_model({**settings["model"], "blocks": [{"repeat": settings["blocks"], "of": [block]}]}).build()
    assert isinstance(model, LanguageModel), "the study's model is a decoder"
    return model.eval()


def state_bytes(model: LanguageModel, context: int) -> int:
    """Bytes of a state of one row that holds the context."""
    return model.init_state(1, capacity=context).nbytes()


def count() -> dict[str, dict[str, int]]:
    """Bytes by mixer and context."""
    settings = study()
    return {name: {str(context): state_bytes(model, context) for context in settings["contexts"]}
            for name, model in ((name, build(mixer)) for name, mixer in settings["mixers"].items())}


@torch.no_grad()
def measure() -> dict[str, dict[str, dict[str, float]]]:
    """Milliseconds a token by mixer, with and without the state, and context."""
    settings = study()
    mixers = track(settings["mixers"].items(), "Mixers")
    return {name: times(build(mixer), settings["contexts"]) for name, mixer in mixers}


def times(model: LanguageModel, contexts: list[int]) -> dict[str, dict[str, float]]:
    """Of one model: a step in a state that holds the context, and a row of that length for its last token."""
    found: dict[str, dict[str, float]] = {"with": {}, "without": {}}
    tokens = torch.randint(model.vocab_size, (1, max(contexts)), generator=torch.Generator().manual_seed(0))
    model(tokens[:, :PIECE])
    for context in contexts:
        begun = time.perf_counter()
        model(tokens[:, :context])
        found["without"][str(context)] = 1e3 * (time.perf_counter() - begun)
        state, seconds = model.init_state(1, capacity=context), []
        for piece in tokens[:, :context - STEPS].split(PIECE, 1):
            state = model(piece, state).state
        for token in tokens[:, context - STEPS:context].split(1, 1):
            begun = time.perf_counter()
            state = model(token, state).state
            seconds.append(time.perf_counter() - begun)
        found["with"][str(context)] = 1e3 * statistics.median(seconds)
    return found


def picture(name: str, title: str, unit: str, series: dict[str, dict[str, float]]) -> Figure:
    """Lines over the context, both axes logarithmic."""
    curves = [Curve(kind, [(int(x), y) for x, y in line.items()], index)
              for index, (kind, line) in enumerate(series.items())]
    return chart(name, title, f"{title} against the tokens of context, for {', '.join(series)}.", curves,
                 "tokens of context", unit, scale="logarithmic", lengths=True, width=480, height=300, letters=14)


def pictures(record: dict[str, Any]) -> list[Figure]:
    """One of each thing that was counted or measured."""
    mebibytes = {name: {x: y / 2**20 for x, y in line.items()} for name, line in record["bytes"].items()}
    found = [picture("bytes", "Keys and values of a row", "MiB", mebibytes)]
    for way, words in WAYS.items() if "milliseconds" in record else ():
        found.append(picture(f"milliseconds-{way}", f"Time of one token {words}", "ms",
                             {name: both[way] for name, both in record["milliseconds"].items()}))
    return found


def table(record: dict[str, Any]) -> str:
    """The times of README.md, in milliseconds, and what they were measured on."""
    contexts = [f"{context:,}" for context in study()["contexts"]]
    lines = [f"| | {' | '.join(contexts)} |", f"| --- |{' ---: |' * len(contexts)}"]
    lines += [f"| {name}, {words} | {' | '.join(f'{value:,.1f}' for value in both[way].values())} |"
              for way, words in WAYS.items() for name, both in record["milliseconds"].items()]
    return "\n".join([*lines, "", f"{record['processor']}, {record['threads']} threads, torch {record['torch']}, "
                      f"{record['date']}."])


def write(record: dict[str, Any]) -> None:
    """The record, its pictures, and the table of times where they were measured."""
    (HERE / "result.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for figure in pictures(record):
        (HERE / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")
    if "milliseconds" in record:
        page = HERE / "README.md"
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        page.write_text(f"{before}{BEGIN}{table(record)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Count, measure if asked, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", action="store_true", help="count bytes and measure nothing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--draw", action="store_true", help="write the pictures and the table of result.json anew")
    options = parser.parse_args()
    if options.draw:
        write(json.loads((HERE / "result.json").read_text(encoding="utf-8")))
        return
    torch.set_num_threads(options.threads)
    record: dict[str, Any] = {"study_sha256": study_sha256(), "bytes": count()}
    if not options.count:
        record |= {"milliseconds": measure(), "processor": processor_name(), "threads": options.threads,
                   "torch": torch.__version__, "python": platform.python_version(),
                   "date": time.strftime("%Y-%m-%d", time.gmtime())}
    write(record)


if __name__ == "__main__":
    main()
