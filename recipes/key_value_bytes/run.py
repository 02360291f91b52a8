"""Bytes of keys and values, and milliseconds a token, against the context: five kinds of attention, one model.

    python recipes/key_value_bytes/run.py              counts bytes and measures times: a few minutes, idle machine
    python recipes/key_value_bytes/run.py --count      counts bytes only: seconds, the same numbers on any machine

Bytes are those of a state with room for the context, in float32, of all layers. A token with the state is the median
of single steps in a state that holds the context; without it, a whole row of that length is computed for its last
token. Both are the model's own calls, in one process, on weights as drawn. Writes result.json and bytes.svg, and
milliseconds.svg where times were measured.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from weft.core.model import LanguageModel, parse_model
from weft.drawing.markup import Markup, tag
from weft.drawing.palette import MODELS_LIGHT
from weft.ops.processor import processor_name

HERE = Path(__file__).parent
STUDY = HERE / "mixers.yaml"
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
    return {name: times(build(mixer), settings["contexts"]) for name, mixer in settings["mixers"].items()}


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


def picture(title: str, unit: str, series: dict[str, dict[str, float]]) -> Markup:
    """Lines over the context, both axes logarithmic, as an SVG of its own."""
    width, height, left, right, top, bottom = 640, 400, 70, 150, 40, 50
    xs = sorted({int(x) for line in series.values() for x in line})
    values = [y for line in series.values() for y in line.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    kinds = len(study()["mixers"])

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / xs[0]) / math.log(xs[-1] / xs[0])
        up = (math.log10(y) - low) / (high - low)
        below = height - bottom - up * (height - top - bottom)
        return round(left + across * (width - left - right), 1), round(below, 1)

    marks = [tag("text", {"x": left, "y": 22, "font-size": 15}, title)]
    for x in xs:
        marks.append(tag("text", {"x": place(x, 10 ** low)[0], "y": height - 28, "text-anchor": "middle"}, str(x)))
    marks.append(tag("text", {"x": (left + width - right) / 2, "y": height - 8, "text-anchor": "middle"},
                     "tokens of context"))
    for power in range(low, high + 1):
        y = place(xs[0], 10.0 ** power)[1]
        marks += [tag("path", {"d": f"M{left} {y}H{width - right}", "stroke": "#e3dfd7"}),
                  tag("text", {"x": left - 6, "y": y + 4, "text-anchor": "end"}, f"{10.0 ** power:g} {unit}")]
    for index, (name, line) in enumerate(series.items()):
        points = [place(int(x), y) for x, y in line.items()]
        colour, dash = MODELS_LIGHT[index % kinds], "5 3" if index >= kinds else "none"
        drawn = " ".join(f"{x},{y}" for x, y in points)
        marks += [tag("polyline", {"points": drawn, "fill": "none", "stroke": colour, "stroke-width": 2,
                                   "stroke-dasharray": dash}),
                  tag("text", {"x": points[-1][0] + 6, "y": points[-1][1] + 4, "fill": colour}, name)]
    return tag("svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}", "role": "img",
                       "font-family": "sans-serif", "font-size": 12},
               tag("title", None, title), tag("rect", {"width": width, "height": height, "fill": "#fdfcfa"}), *marks)


def write(record: dict[str, Any]) -> None:
    """The record, and a picture of each thing that was counted or measured."""
    (HERE / "result.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    mebibytes = {name: {x: y / 2**20 for x, y in line.items()} for name, line in record["bytes"].items()}
    (HERE / "bytes.svg").write_text(picture("Keys and values of a row", "MiB", mebibytes) + "\n", encoding="utf-8")
    if "milliseconds" in record:
        lines = {f"{name}{end}": both[way] for way, end in (("with", ""), ("without", ", no state"))
                 for name, both in record["milliseconds"].items()}
        (HERE / "milliseconds.svg").write_text(picture("Time of one token", "ms", lines) + "\n", encoding="utf-8")


def main() -> None:
    """Count, measure if asked, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", action="store_true", help="count bytes and measure nothing")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    record: dict[str, Any] = {"study_sha256": study_sha256(), "bytes": count()}
    if not options.count:
        record |= {"milliseconds": measure(), "processor": processor_name(), "threads": options.threads,
                   "torch": torch.__version__, "python": platform.python_version(),
                   "date": time.strftime("%Y-%m-%d", time.gmtime())}
    write(record)


if __name__ == "__main__":
    main()
