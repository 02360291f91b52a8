"""The tables and pictures of the README, from the figures of ``result.json``."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.comparison.statistics import t_test
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure

BEGIN, END = "<!-- tables -->\n", "<!-- /tables -->\n"
CONFIDENCE = 0.95
NAMES = {"none": "none", "sinusoidal": "sinusoidal", "learned": "learned", "t5": "T5 bias", "alibi": "ALiBi",
         "rope": "RoPE", "linear": "position interpolation", "ntk": "NTK", "yarn": "YaRN"}
STAGES = {"rescaled": "rescaled", "tuned": "and trained further"}

Rows = list[tuple[str, list[Mapping[str, Any]]]]
"""A name, and the figures by length of each seed."""


def page(before: str, result: Mapping[str, Any]) -> str:
    """The page with the tables and sentences of this result."""
    head, _, rest = before.partition(BEGIN)
    return f"{head}{BEGIN}{text(result)}{END}{rest.partition(END)[2]}"


def text(result: Mapping[str, Any]) -> str:
    """Two tables of mean perplexity with half of its interval over seeds, and what follows from them."""
    lengths = [str(length) for length in result["lengths"]]
    schemes, methods = rows_of(result)
    trained, extended = pictures(result)
    return "\n".join([
        f"Perplexity per token, mean over {result['seeds']} seeds and half of Student's 95 % interval of that mean; "
        f"models were trained at {result['context']} tokens.", "", *table("positions", schemes, lengths), "",
        f"![{trained.description}]({trained.name}.svg)", "",
        f"RoPE, extended to {result['longer']:,} tokens:", "", *table("method", methods, lengths), "",
        f"![{extended.description}]({extended.name}.svg)", "",
        *sentences(schemes, methods, str(result["context"]), lengths), ""])


def rows_of(result: Mapping[str, Any]) -> tuple[Rows, Rows]:
    """The trained models, and the extended ones by method and stage."""
    models = result["models"]
    schemes = [(NAMES[name], [found["trained"] for found in seeds.values()]) for name, seeds in models.items()]
    rope = list(models["rope"].values())
    methods = [(f"{NAMES[method]}, {words}", [found[method][stage] for found in rope])
               for method in rope[0] if method != "trained" for stage, words in STAGES.items()]
    return schemes, [("as trained", [found["trained"] for found in rope]), *methods]


def pictures(result: Mapping[str, Any]) -> tuple[Figure, Figure]:
    """Mean perplexity against the length: of the trained models, and of RoPE extended."""
    schemes, methods = rows_of(result)
    lengths = [str(length) for length in result["lengths"]]
    return (_picture("schemes", "Trained short, tested long", schemes, lengths, result["context"]),
            _picture("extended", "RoPE extended", methods, lengths, result["longer"]))


def _picture(name: str, title: str, rows: Rows, lengths: Sequence[str], marked: int) -> Figure:
    curves = [Curve(each, [(int(length), statistics.fmean(values(seeds, length))) for length in lengths
                           if values(seeds, length)], index, dots=True) for index, (each, seeds) in enumerate(rows)]
    names = ", ".join(each for each, _ in rows)
    return chart(name, title, f"Mean perplexity against the length of the context, for {names}; the models are made "
                 f"for {marked:,} tokens.", curves, "tokens of the context", "perplexity", scale="logarithmic",
                 lengths=True, width=660, height=320, letters=max(len(each) for each, _ in rows))


def table(label: str, rows: Rows, lengths: Sequence[str]) -> list[str]:
    """A Markdown table; a length that every seed's model refuses is a dash."""
    lines = [f"| {label} | {' | '.join(lengths)} |", f"| --- |{' ---: |' * len(lengths)}"]
    return lines + [f"| {name} | {' | '.join(_cell(values(seeds, length)) for length in lengths)} |"
                    for name, seeds in rows]


def values(seeds: Iterable[Mapping[str, Any]], length: str) -> list[float]:
    """Perplexity of every seed's model at this length; none where it is refused."""
    return [found[length]["perplexity"] for found in seeds if "perplexity" in found[length]]


def _cell(found: Sequence[float]) -> str:
    if not found:
        return "–"
    estimate = t_test(found, CONFIDENCE).interval
    return f"{_short(estimate.mean)}" + (f" ± {_short(estimate.high - estimate.mean)}" if estimate.high is not None
                                         else "")


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def sentences(schemes: Rows, methods: Rows, context: str, lengths: Sequence[str]) -> list[str]:
    """For each model whether its perplexity at the longest length is below or above that at the trained one."""
    longest = lengths[-1]
    better, worse, refused = [], [], []
    for name, seeds in schemes:
        short, long = values(seeds, context), values(seeds, longest)
        if not long:
            refused.append(name)
        else:
            (better if statistics.fmean(long) <= statistics.fmean(short) else worse).append(name)
    lines = []
    if better:
        lines.append(f"* With a mean no higher at {int(longest):,} tokens than at {context}: {', '.join(better)}.")
    if worse:
        lines.append(f"* With a higher mean at {int(longest):,} tokens than at {context}: {', '.join(worse)}.")
    if refused:
        lines.append(f"* Refused beyond {context} tokens, since there is no vector for later positions: "
                     f"{', '.join(refused)}.")
    ordered = sorted((statistics.fmean(values(seeds, "1024")), name) for name, seeds in methods)
    return [*lines, "* At 1,024 tokens, from the lowest mean: "
            + ", ".join(f"{name} {_short(mean)}" for mean, name in ordered) + "."]
