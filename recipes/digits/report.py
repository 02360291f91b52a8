"""The page and the pictures of the study of `run.py`, from its result.

    python recipes/digits/report.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.comparison.statistics import t_test
from weft.drawing.axes import linear
from weft.drawing.markup import Markup, join, tag

HERE = Path(__file__).parent
LECTURE = {"deep belief network": 1.2, "deep autoencoder": 1.4, "supervised greedy": 2.0, "deep, not pre-trained": 2.4,
           "shallow": 1.9}
"""Test errors in percent of Bengio et al. 2006 on MNIST, with its 60,000 images to train on."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 520, 260, 60, 40, 16
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def interval(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """Mean, lower and upper bound; the mean three times from one value."""
    found = t_test(values, confidence).interval
    low, high = (found.mean if each is None else each for each in (found.low, found.high))
    return found.mean, low, high


def written(values: Sequence[float], confidence: float) -> str:
    """The mean with half its interval."""
    mean, low, _ = interval(values, confidence)
    return f"{mean:.2f} ± {mean - low:.2f}" if len(values) > 1 else f"{mean:.2f}"


def tables(result: Mapping[str, Any]) -> str:
    """Both tables and pictures in Markdown."""
    confidence, seeds = result["confidence"], result["settings"]["seeds"]
    lines = ["| network | error here, % | error of the paper, % |", "| --- | --- | --- |"]
    lines += [f"| {name} | {written(values, confidence)} | {LECTURE[name]} |" for name, values in
              result["depth"].items()]
    lines += ["", "| images of 0 to 4 before | accuracy on 5 to 9, % |", "| --- | --- |"]
    lines += [f"| {count} | {written(values, confidence)} |" for count, values in result["transfer"].items()]
    what = (f"{result['images']}; {seeds} seeds, intervals at {confidence:.0%}; torch {result['torch']}, Python "
            f"{result['python']}, {result['processor_seconds']} seconds of a processor that others used, too.")
    pictures = ["![Test error of the five networks](depth.svg)", "",
                "![Accuracy of the transformer against its pre-training](transfer.svg)"]
    return "\n".join([*lines, "", what, "", *pictures])


def picture(groups: Mapping[str, Sequence[float]], confidence: float, title: str, label: str) -> str:
    """An SVG with the mean and interval of each group, and every value as a dot."""
    found = {name: interval(values, confidence) for name, values in groups.items()}
    known = [value for name, values in groups.items() for value in (*values, *found[name])]
    axis = linear(known, HEIGHT - BOTTOM, TOP)
    assert axis is not None, "there are figures"
    step, marks = (WIDTH - LEFT - 10) / len(groups), list[Markup]()
    for tick in axis.ticks:
        y = axis.place(tick)
        marks += [tag("line", {"x1": LEFT, "x2": WIDTH - 10, "y1": y, "y2": y, "stroke": "#ddd"}),
                  text(LEFT - 6, y + 4, axis.write(tick), "end")]
    for index, (name, (mean, low, high)) in enumerate(found.items()):
        x = LEFT + step * (index + 0.5)
        marks += [tag("circle", {"cx": x - 8, "cy": axis.place(value), "r": 2.5, "fill": "#999"})
                  for value in groups[name]]
        marks += [tag("line", {"x1": x, "x2": x, "y1": axis.place(low), "y2": axis.place(high), "stroke": "#3653b9",
                               "stroke-width": 2}),
                  tag("circle", {"cx": x, "cy": axis.place(mean), "r": 4, "fill": "#3653b9"}),
                  text(x, HEIGHT - BOTTOM + 16, name, "middle")]
    marks.append(text(LEFT, HEIGHT - 6, label, "start"))
    box = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img",
           "font-family": "sans-serif", "font-size": "10"}
    white = tag("rect", {"width": WIDTH, "height": HEIGHT, "fill": "#fff"})
    return str(tag("svg", box, tag("title", None, title), white, join(*marks))) + "\n"


def text(x: float, y: float, content: str, anchor: str) -> Markup:
    """A line of text."""
    return tag("text", {"x": round(x, 1), "y": round(y, 1), "text-anchor": anchor, "fill": "#333"}, content)


def write(result: Mapping[str, Any], out: Path) -> None:
    """Write the tables between the marks of the page, and both pictures."""
    confidence = result["confidence"]
    (out / "depth.svg").write_text(picture(result["depth"], confidence, "Test error of five networks",
                                           "test error, %; dots are seeds"), encoding="utf-8")
    (out / "transfer.svg").write_text(picture(result["transfer"], confidence, "Accuracy against pre-training size",
                                              "accuracy on 5 to 9, %, against images of 0 to 4 before; dots are seeds"),
                                      encoding="utf-8")
    page = out / "README.md"
    whole = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = whole.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{tables(result)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write(json.loads((HERE / "result.json").read_text(encoding="utf-8")), HERE)
