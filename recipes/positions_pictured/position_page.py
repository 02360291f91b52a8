"""The study of position schemes as a page of Markdown, whose sentences and pictures are computed from its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from position_study import HEADS, SIZE, PositionStudy, SchemeRow, proximity_of, sentences

from weft.drawing.chart import Curve, chart
from weft.drawing.figure import Figure
from weft.drawing.marks import label
from weft.drawing.markup import field, join

SIDE, APART, PER_ROW = 132.0, 22.0, 4
"""Units of a field; between fields; fields beside one another."""
SHOWN = ("sinusoidal", "rope")
"""Schemes whose proximities are drawn as curves."""


def study_figures(found: PositionStudy) -> list[Figure]:
    """The pictures of the study: curves, every pair, the decay, wavelengths."""
    rows = {row.kind: row for row in found.schemes}
    near = chart("positions-curves", "Proximity against distance",
                 "The mean proximity of queries to keys before them under sinusoidal and rotary positions.",
                 [Curve(kind, [(float(at), value) for at, value in enumerate(rows[kind].curve)], index)
                  for index, kind in enumerate(SHOWN)], "distance in tokens", "proximity", width=520, levels=(0,))
    sums = found.decay.mean_sum
    bound = chart("positions-decay", "What bounds a rotary score",
                  "The mean of |S_j| by distance, over its value at distance 0.",
                  [Curve("bound", [(float(at), value / sums[0]) for at, value in enumerate(sums)])],
                  "distance in tokens", "mean of |S(j)|, over that at distance 0", width=520, include=(0,))
    waves = chart("positions-wavelengths", "Wavelengths of rotary positions",
                  "Tokens of a full turn of each rotated pair, on a logarithmic axis.",
                  [Curve("rope", [(float(at), wave) for at, wave in enumerate(found.wavelengths)], dots=True)],
                  "rotated pair", "tokens of a full turn", scale="logarithmic", width=520)
    pairs = pairs_figure([row for row in found.schemes if row.holds is not None], found.size.tokens)
    return [near, pairs, bound, waves]


def pairs_figure(rows: Sequence[SchemeRow], tokens: int) -> Figure:
    """The proximity of every pair of positions, scheme by scheme."""
    marks = []
    for index, row in enumerate(rows):
        x, y = index % PER_ROW * (SIDE + APART), index // PER_ROW * (SIDE + 42)
        values = proximity_of(row.kind, tokens)
        assert values is not None, "it has one"
        top = float(values.abs().max()) or 1.0
        marks += [label(x, y + 12, row.kind, kind="name"), field(x + 1, y + 20, SIDE, SIDE, (values / top).tolist())]
    lines = -(-len(rows) // PER_ROW)
    return Figure("positions-pairs", "Proximity of every pair", "A field for each scheme: rows are queries, columns "
                  "keys, blue above zero and orange below.", PER_ROW * (SIDE + APART) - APART + 2, lines * (SIDE + 42),
                  join(*marks))


def page(found: PositionStudy, pictures: str) -> str:
    """The page.

    Args:
        found: the numbers.
        pictures: the folder of the pictures, from the page.
    """
    near, pairs, bound, waves = study_figures(found)
    near_, symmetric, both, turned, held, falls, even, read = sentences(found)
    return "\n".join([
        "# Positions, pictured", "", "What position schemes tell a model before it is trained, measured with "
        f"{HEADS} heads of {SIZE} features over {found.size.tokens:,} positions. Learned schemes are measured as they "
        "start.", "",
        "## Proximity", "", "The proximity of two positions is the product of their codes, the mean cosine of the "
        "rotated pairs, or the term on the scores of the first head. Three properties may hold of it (Dufter et al. "
        "2022): it falls with distance, it depends on the distance alone, it is the same both ways.", "",
        near_, symmetric, both, "", _image(near, pictures), "", *_table(found), "", _image(pairs, pictures), "",
        "Rows are queries and columns keys; blue is above zero and orange below, each field on a scale of its own.", "",
        "## Sinusoidal codes turn", "", turned, "",
        "## Rotary scores decay in the long term", "", "With h(i) the product of pair i of a query and the conjugate "
        "of that of a key, and S(j) the sum of the first j of exp(i m theta), a score at distance m is at most "
        "max |h(i+1) - h(i)| times the sum of |S(j)| (Su et al. 2021, section 3.4.3).", "", held, falls, "",
        _image(bound, pictures), "", _image(waves, pictures), "",
        f"Wavelengths run from {found.wavelengths[0]:.1f} to {found.wavelengths[-1]:,.0f} tokens.", "",
        "## What a model knows without positions", "", even, "", read, "",
        "`--tokens` (positions of proximities), `--draws` (of queries and keys) and `--models` (of the last sentence) "
        "of `recipes/positions_pictured/run.py` change the size of the study; it is then written to the folder of "
        "`--out`, and takes the place of the recorded one with `--record` alone.", ""])


def _image(figure: Figure, pictures: str) -> str:
    return f"![{figure.title}]({'/'.join(filter(None, (pictures, figure.name)))}.svg)"


def _table(found: PositionStudy) -> list[str]:
    """A row for each scheme; a dash where it has no proximity of its own."""
    lines = ["| scheme | acts on | never grows | steps that do not grow | variance by distance | asymmetry |",
             "| --- | --- | --- | --- | --- | --- |"]
    for row in found.schemes:
        name = f"{row.kind}, as it starts" if row.learned else row.kind
        if row.holds is None:
            told = "no positions" if row.acts == "nowhere" else "depends on the content of tokens"
            lines.append(f"| {name} | {row.acts} | {told} | | | |")
        else:
            holds = row.holds
            rises = "yes" if holds.first_rise is None else f"no, from {holds.first_rise}"
            lines.append(f"| {name} | {row.acts} | {rises} | {holds.monotone:.0%} | {holds.invariant:.1%} | "
                         f"{holds.asymmetry:.2f} |")
    return lines
