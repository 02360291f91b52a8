"""The pictures of the lessons that no recipe has: ``python docs/lesson_pictures.py`` writes them into
`lessons/pictures`. The others are the recipes' own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from weft.core.config import parse
from weft.core.part_config import Dims
from weft.core.registry import REGISTRY
from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Cells, Figure, cells_figure
from weft.drawing.marks import label, plus, text_box, wire
from weft.drawing.markup import field, join, tag
from weft.masks import parse_mask, reach
from weft.ops.fft_convolution import fft_convolution
from weft.ops.rotary import half_split_order, naive_matrix
from weft.pictures.proximity import codes, wavelengths
from weft.positions.rope import RopeConfig

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "lessons" / "pictures"
NAMES = {"ngram": "5-gram, Kneser-Ney", "feedforward": "feed-forward network", "lstm": "LSTM",
         "transformer": "Transformer"}
LECTURE = {"760M": (35, 44, 15, 6), "175B": (17, 80, 3, 0.3)}
"""Per cent, as a lecture gives them: projections, feed-forward, scores, logits."""
SIZES = {"760M": (24, 1536), "175B": (96, 12288)}
"""Layers and width, where heads together are as wide as the model (Brown et al. 2020, table 2.1)."""


BATCHES = {1: (3.278, 7188), 2: (2.317, 13660), 4: (1.644, 22605), 8: (1.176, 34361), 16: (0.814, 47732),
           32: (0.570, 62278), 64: (0.359, 73076)}
"""Rows of a batch: how far their gradient is from the whole text's, by its length, and the tokens a second of which one
core of an Intel Xeon computes it; both by the code of the lesson on learning."""

WORDS = {"never": (3.50, 2.10), "1 to 3 times": (3.29, 2.10), "4 to 15 times": (2.82, 2.11),
         "16 times or more": (2.58, 2.11)}
"""How often the context was seen: bits of the trigram and of the network, by the lesson on words."""

LOOKS = {"la": (99, 0, 0, 1), "maison": (2, 0, 0, 98), "rouge": (0, 11, 89, 0), "grande": (0, 96, 4, 0)}
"""Per cent of each word's cross-attention to *the big red house*, by the lesson on translation."""


def bars(name: str, title: str, description: str, rows: Sequence[tuple[str, float, str, str]], *, left: float = 150,
         wide: float = 260) -> Figure:
    """Horizontal bars: of each a name, a value, what is written behind it, and its style; an empty name is a gap."""
    most, marks = max(value for _, value, _, _ in rows), []
    for index, (words, value, written, style) in enumerate(rows):
        y = 8 + 22 * index
        if written:
            marks += [label(0, y + 12, words, kind="name"),
                      tag("rect", {"class": style, "x": left, "y": y, "width": round(wide * value / most, 1),
                                   "height": 16}),
                      label(left + wide * value / most + 6, y + 12, written)]
        else:
            marks.append(label(0, y + 12, words, kind="title"))
    return Figure(name, title, description, left + wide + 60, 16 + 22 * len(rows), join(*marks))


def dice() -> Figure:
    """Perplexities of the recipe on the Penn Treebank."""
    found = json.loads((ROOT / "recipes/penn_treebank/result.json").read_text("utf-8"))
    rows = [(words, found[name]["test_perplexity"], f"{found[name]['test_perplexity']:.1f}", "lit")
            for name, words in NAMES.items()]
    return bars("dice", "Perplexity on the Penn Treebank", "Test perplexity of four models; shorter is better.", rows)


def gpt3() -> Figure:
    """Shares of operations, counted beside the lecture's."""
    rows: list[tuple[str, float, str, str]] = []
    for size, (layers, width) in SIZES.items():
        counts = (layers * 8 * width**2, layers * 16 * width**2, layers * 4 * 2048 * width, 2 * 50257 * width)
        rows.append((f"GPT-3 {size}", 0.0, "", ""))
        for part, count, said in zip(("projections", "feed-forward", "scores", "logits"), counts, LECTURE[size],
                                     strict=True):
            share = 100 * count / sum(counts)
            rows += [(f"{part}, counted", share, f"{share:.1f} %", "lit"),
                     ("in the lecture", said, f"{said} %", "box")]
    return bars("gpt3", "Where GPT-3's operations go", "Shares of the parts, counted for rows of 2,048 tokens with "
                "every score, beside those of a lecture.", rows)


def stretching() -> Figure:
    """Wavelengths of every pair under four scalings."""
    scalings: dict[str, dict[str, Any]] = {
        "as trained": {"kind": "none"}, "interpolated": {"kind": "linear", "factor": 8.0},
        "NTK": {"kind": "ntk", "factor": 8.0}, "YaRN": {"kind": "yarn", "factor": 8.0, "original_length": 128}}
    curves = [Curve(name, [(float(pair), wave) for pair, wave in enumerate(wavelengths(
        parse(RopeConfig, {"scaling": scaling}).build_for_heads(Dims(32), 1, 32), 32))], index, dots=True)
        for index, (name, scaling) in enumerate(scalings.items())]
    return chart("stretching", "Wavelengths under four scalings", "Tokens of a full turn of each pair; YaRN leaves the "
                 "fastest as they were and interpolates the slowest. The line is the trained length of 128 tokens.",
                 curves, "pair of features", "tokens of a full turn; the line is the trained length",
                 scale="logarithmic", levels=(128,), width=520, height=300)


def masks() -> Figure:
    """A window, and two masks whose product is everything, after one, two and three layers."""
    window = reach(parse_mask("window(3)"), 12)
    grids = [Cells(f"window(3), {count} layer{'s' * (count > 1)}", window.after(count).double().tolist())
             for count in (1, 2, 3)]
    both = reach([parse_mask("window(4)"), parse_mask("strided(4)")], 12)
    grids += [Cells(mask, parse_mask(mask).dense(12)[0, 0].double().tolist()) for mask in ("window(4)", "strided(4)")]
    grids.append(Cells("one after the other", both.after(2).double().tolist()))
    return cells_figure("masks", "What layers reach", "Above, a window of three tokens after one, two and three "
                        "layers; below, two masks that together reach every earlier token in two layers.", grids,
                        cell=12, per_row=3)


def s4d() -> Figure:
    """A model's output, and that of a transform without room, for two impulses."""
    length = 64
    t = torch.arange(length, dtype=torch.float64)
    kernel = (-0.04 * t).exp() * (0.25 * t).cos()
    u = torch.zeros(length, dtype=torch.float64)
    u[[8, 44]] = 1.0
    right = fft_convolution(u[None, None], kernel[None])[0, 0]
    wrapped = torch.fft.irfft(torch.fft.rfft(kernel, length) * torch.fft.rfft(u, length), length)
    curves = [Curve(name, [(float(at), value) for at, value in enumerate(y.tolist())], index)
              for index, (name, y) in enumerate({"wraps around": wrapped, "right": right}.items())]
    return chart("s4d", "A convolution, with room and without", "The answer to two impulses, at 8 and at 44. Without "
                 "room the transform brings the end of the second answer in at the beginning, before any input.",
                 curves, "token", "output; inputs at tokens 8 and 44", width=520, height=250, levels=(0,))


def rope_forms() -> Figure:
    """Which features are turned together in either layout."""
    angles = torch.linspace(0.9, 0.3, 4, dtype=torch.float64)
    matrix, order = naive_matrix(angles), half_split_order(8, 8)
    grids = [Cells(words, (grid.abs() > 0).double().tolist()) for words, grid in (
        ("interleaved pairs", matrix), ("half-split pairs", matrix[order][:, order]))]
    return cells_figure("rope_forms", "The matrix of a rotation", "Which entries of the matrix are not zero: two "
                        "by two along the diagonal, or a feature with the one half a head further.", grids, cell=16,
                        per_row=2, rows="out", columns="in")


def order() -> Figure:
    """Four codes of positions."""
    tokens, marks, left = 64, [], 0.0
    for kind, wide in {"integer": 30.0, "binary": 90.0, "sine": 30.0, "sinusoidal": 190.0}.items():
        settings: Any = REGISTRY.get(("position",), kind)()
        code = codes(settings.build(Dims(32, 11, tokens)), tokens, 32)
        code = code[:, code.abs().amax(0) > 0]
        marks += [label(left, 12, kind, kind="name"),
                  field(left + 1, 20, wide, 200, (code / code.abs().max()).tolist())]
        left += max(wide, 56.0) + 24
    marks.append(label(0, 240, f"rows: positions 0 to {tokens - 1}; blue above zero, orange below"))
    return Figure("order", "Four codes of positions", "Rows of numbers for 64 positions: an integer, binary digits, "
                  "one sine, and the sines and cosines of many frequencies.", left, 250, join(*marks))


def lesson_names(lesson: str, blocks: int = 1) -> dict[str, Any]:
    """What the first so many blocks of a lesson's code leave."""
    text, names = (ROOT / f"docs/lessons/{lesson}.md").read_text("utf-8"), dict[str, Any]()
    for code in re.findall(r"^```python\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL)[:blocks]:
        with redirect_stdout(StringIO()):
            exec(compile(code, "lesson", "exec"), names)
    return names


def server() -> Figure:
    """Bytes that a step of the lesson's models reads for each token."""
    names = lesson_names("server")
    curves = [Curve(f"{name}, {tokens:,} tokens", [
        (float(rows), (names["weights"][name] / rows + names["states"][name][tokens]) / 1e6)
        for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)], index, dots=True)
        for index, (name, tokens) in enumerate((("attention", 1024), ("attention", 256), ("Mamba", 1024)))]
    return chart("server", "Bytes that a token costs", "Megabytes that a step reads for each token: the weights are "
                 "shared by the rows of a batch, and the state of each row is its own.", curves,
                 "rows of the batch", "MB a token", scale="logarithmic", width=600, height=260, letters=24)


def queries() -> Figure:
    """The weights that a query for B gives to four letters, with two kinds of keys."""
    marks, letters, wide = [], "AABA", 180
    found = torch.tensor([[float(each == "B") for each in letters]])
    columns = {"keys are the embeddings": found, "keys ten times as long": 10 * found}
    marks.append(label(0, 12, "the query: find a B", kind="name"))
    for place, (words, scores) in enumerate(columns.items()):
        left, weights = 60 + place * (wide + 110), scores.softmax(-1)[0].tolist()
        marks.append(label(left, 36, words, kind="title"))
        for row, (score, weight) in enumerate(zip(scores[0].tolist(), weights, strict=True)):
            y = 48 + 24 * row
            marks += [label(left, y + 12, f"q.k = {score:g}"),
                      tag("rect", {"class": "lit", "x": left + 60, "y": y, "width": max(round(wide * weight, 1), 1.0),
                                   "height": 16}),
                      label(left + 66 + wide * weight, y + 12, f"{weight:.3f}")]
        answer = " A + ".join((f"{1 - weights[2]:.3f}", f"{weights[2]:.3f}")) + " B"
        marks.append(label(left, 164, f"the answer: {answer}", kind="name"))
    marks += [label(20, 60 + 24 * row, letter, kind="title") for row, letter in enumerate(letters)]
    return Figure("queries", "What a query finds", "A query for the letter B and four letters: with embeddings as keys "
                  "the B gets 0.475 of the weight, with keys ten times as long nearly all.", 640, 178, join(*marks))


def block() -> Figure:
    """A pre-norm block, and which numbers of a batch two norms take the mean of."""
    parts, y, marks = ("norm", "4 heads", "norm", "SwiGLU"), 46.0, [label(0, 62, "x", kind="title")]
    marks.append(wire([(14, y + 12), (626, y + 12)], arrow=True))
    for place, words in enumerate(parts):
        left = 60 + 130 * place + 20 * (place > 1)
        marks.append(text_box(left, y, 100, 24, words, kind="thin"))
    for begin, end in ((36, 314), (334, 594)):
        marks += [wire([(begin, y + 12), (begin, 20), (end, 20), (end, y + 5)], arrow=True), plus(end, y + 12)]
    marks.append(label(632, 62, "y", kind="title"))
    for left, words, lit in ((60, "LayerNorm: the features of one token", [(4, column) for column in range(8)]),
                             (350, "BatchNorm: one feature of every token", [(row, 2) for row in range(9)])):
        marks.append(label(left, 112, words, kind="title"))
        marks += [tag("rect", {"class": "lit" if (row, column) in lit else "box", "x": left + 50 + 14 * column,
                               "y": 124 + 14 * row + 6 * (row // 3), "width": 12, "height": 12})
                  for row in range(9) for column in range(8)]
        marks += [label(left, 146 + 48 * row, f"row {row + 1}") for row in range(3)] if left == 60 else []
    return Figure("block", "A block, and two norms", "Norm, heads and a sum, then norm, feed-forward network and a "
                  "sum; LayerNorm takes the mean over the features of a token, BatchNorm over all tokens of a batch.",
                  650, 272, join(*marks))


def learning() -> Figure:
    """What a batch of more rows gains: noise and time, by those of one row."""
    noises, speeds = zip(*BATCHES.values(), strict=True)
    gains = {"noise of the gradient": [noise / noises[0] for noise in noises],
             "time of a token": [speeds[0] / speed for speed in speeds]}
    curves = [Curve(name, list(zip(map(float, BATCHES), values, strict=True)), index, dots=True)
              for index, (name, values) in enumerate(gains.items())]
    return chart("learning", "What a larger batch gains", "By those of one row: the noise of a gradient falls with the "
                 "root of the rows, and the time of a token ever more slowly.", curves, "rows of the batch",
                 "by that of one row", scale="logarithmic", lengths=True, width=600, height=260, letters=22)


def words() -> Figure:
    """Bits of the last word by how often its context was seen."""
    rows: list[tuple[str, float, str, str]] = []
    for seen, (counted, learned) in WORDS.items():
        rows += [(f"the two words before seen {seen}", 0.0, "", ""), ("trigram", counted, f"{counted:.2f} bits", "box"),
                 ("network with embeddings", learned, f"{learned:.2f}", "lit")]
    return bars("words", "What is known after a rare context", "Bits of the last word: the trigram needs more the less "
                "often it has seen the context, the network needs 2.1 after all. Two is the least possible.", rows)


def through_time() -> Figure:
    """An unrolled recurrent network: forwards in ink, the way back of the last loss beside it."""
    marks, across, names = [], 140.0, ("x", "h", "p", "loss")
    for word in range(4):
        left = 70 + across * word
        for row, name in enumerate(names):
            y = 150.0 - 46 * row
            marks.append(text_box(left, y, 56, 24, f"{name} {word + 1}", kind="thin"))
            if row:
                marks.append(wire([(left + 20, y + 46), (left + 20, y + 24)], arrow=True))
        marks.append(wire([(left - 84 if word else left - 40, 112), (left, 112)], arrow=True))
        if word:
            marks.append(wire([(left, 122), (left - 84, 122)], kind="memory", arrow=True))
        marks.append(wire([(left + 36, 128), (left + 36, 150)], kind="memory", arrow=True))
    for y in (36.0, 82.0):
        marks.append(wire([(70 + across * 3 + 36, y), (70 + across * 3 + 36, y + 22)], kind="memory", arrow=True))
    marks += [label(2, 104, "h 0 = 0"),
              label(30, 196, "there: the computation; back, in blue: the gradient of the last loss",
                    kind="name")]
    return Figure("through_time", "A recurrent network through time", "Four words, each with a state, a prediction and "
                  "a loss; the gradient of the last loss goes back through every state.", 570, 206, join(*marks))


def through_time_reach() -> Figure:
    """How much of a gradient arrives at a word, by how far back it stands."""
    curves = [Curve(name, [(float(back), size) for back, size in enumerate(sizes.tolist())], index)
              for index, (name, sizes) in enumerate(lesson_names("through_time")["far"].items())]
    return chart("through_time_reach", "Gradients through time", "The gradient of the last output by how far back a "
                 "word stands: in the Elman network and the LSTM it falls without end, with an open gate it stays.",
                 curves, "words back", "size of the gradient", scale="logarithmic", width=600, height=250, letters=17)


def relative() -> Figure:
    """What is added to the scores by four schemes with random weights, and the codes of absolute places beside them."""
    tokens, width, marks = 12, 16, []
    torch.manual_seed(0)
    apart = torch.arange(tokens) - torch.arange(tokens)[:, None]
    clipped, bias, q = torch.randn(9), torch.randn(23), torch.randn(tokens, width)
    shaw = (q @ torch.randn(width, 9)).gather(1, apart.clamp(-4, 4) + 4)
    places, u, v = torch.randn(tokens, width), torch.randn(width, width), torch.randn(width, width)
    added = {"T5: by distance": bias[apart + 11], "clipped at 4": clipped[apart.clamp(-4, 4) + 4],
             "Shaw: and by query": shaw, "TUPE: by both places": (places @ u) @ (places @ v).T}
    for index, (words, scores) in enumerate(added.items()):
        left = 150.0 * index
        marks += [label(left, 12, words, kind="name"),
                  field(left, 20, 132, 132, (scores / scores.abs().max()).tolist())]
    marks.append(label(0, 170, "rows: queries; columns: keys; blue above zero, orange below; a diagonal is a distance"))
    return Figure("relative", "What is added to scores", "Numbers by distance are equal along each diagonal; Shaw's "
                  "differ from query to query, and those of places have no diagonals.", 590, 180, join(*marks))


def linear() -> Figure:
    """Errors of what two memories recall, by how many pairs were written."""
    recall = lesson_names("linear", 2)["recall"]
    curves = [Curve(words, [(float(pairs), recall(pairs, rule)) for pairs in (1, 2, 4, 8, 16, 32)], index, dots=True)
              for index, (rule, words) in enumerate({"add": "added", "replace": "replaced"}.items())]
    return chart("linear", "What a memory recalls", "The squared error of recalled values by the number of pairs in a "
                 "memory of 16 by 16: larger the more there are, and smaller where a write replaces.", curves,
                 "pairs of a key and a value", "squared error; the line is that of recalling nothing", lengths=True,
                 levels=(1,), width=600, height=250, letters=20)


def selection() -> Figure:
    """The state of the lesson's first row, with a gate that reads the mark and with a constant one."""
    names = lesson_names("selection")
    row = slice(int((names["marked"][:, 20:30].sum(1) > 0).nonzero()[0, 0]), None)
    at = int(names["marked"][row][0].argmax())
    states = {"gate reads the mark": names["chosen"][row][0],
              "constant gate": names["kept"](torch.full_like(names["marked"], 0.1))[row][0]}
    curves = [Curve(name, [(float(t), value) for t, value in enumerate(state.tolist())], index)
              for index, (name, state) in enumerate(states.items())]
    return chart("selection", "What a state keeps", "A gate that reads the mark takes the marked number and keeps it; "
                 "with a constant gate the state follows every number a little.", curves,
                 f"token; token {at} is marked", "state; the line is the marked number", width=600, height=250,
                 letters=20, levels=(float(names["asked"][row][0]),))


def fewer_keys() -> Figure:
    """Eight heads of queries, and the heads of keys and values that they share."""
    marks: list[Any] = []
    kinds = {"multi-head: all": 8, "grouped-query: a quarter": 2, "multi-query: an eighth": 1}
    for panel, (words, shared) in enumerate(kinds.items()):
        left, apart = 70.0 + 190 * panel, 160 / shared
        marks.append(label(left, 12, words, kind="title"))
        for head in range(8):
            x, below = left + 20 * head, left + apart * (head * shared // 8) + apart / 2 - 2
            marks += [tag("rect", {"class": "lit", "x": x, "y": 26, "width": 16, "height": 22}),
                      wire([(x + 8, 48), (below, 96)], kind="edge")]
        marks += [tag("rect", {"class": "box", "x": left + apart * head + apart / 2 - 10, "y": 96, "width": 16,
                               "height": 22}) for head in range(shared)]
    marks += [label(0, 41, "queries"), label(0, 104, "keys and"), label(0, 118, "values")]
    return Figure("fewer_keys", "Who shares keys and values", "Eight heads of queries with a head of keys and values "
                  "each, with two that four share, and with one for all.", 630, 128, join(*marks))


def translation() -> Figure:
    """The weights of a cross-attention, between a phrase and its translation."""
    marks = [label(96 + 76 * at, 14, word, kind="name") for at, word in enumerate(("the", "big", "red", "house"))]
    for row, (word, weights) in enumerate(LOOKS.items()):
        y = 24 + 30 * row
        marks.append(label(20, y + 18, word, kind="name"))
        for at, weight in enumerate(weights):
            marks += [tag("rect", {"class": "box", "x": 80 + 76 * at, "y": y, "width": 70, "height": 26}),
                      tag("rect", {"class": "lit", "x": 80 + 76 * at, "y": y, "width": 70, "height": 26,
                                   "opacity": weight / 100}),
                      *([] if weight > 50 else [label(106 + 76 * at, y + 17, f"{weight} %")])]
    marks.append(label(20, 162, "rows: words that are written; the darker, the more of the weight"))
    return Figure("translation", "Where a translation looks", "Each word of la maison rouge grande looks at the word "
                  "that it translates: the, house, red, big.", 400, 172, join(*marks))


def pictures() -> list[Figure]:
    """All of them."""
    return [dice(), gpt3(), stretching(), masks(), s4d(), rope_forms(), order(), server(), queries(), block(),
            learning(), words(), through_time(), through_time_reach(), relative(), linear(),
            selection(), fewer_keys(), translation()]


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for figure in pictures():
        (FOLDER / f"{figure.name}.svg").write_text(figure.alone(), encoding="utf-8")


if __name__ == "__main__":
    main()
