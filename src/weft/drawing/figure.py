"""A drawing as SVG: part of a page, which gives it its colours, or a file of its own with both themes in it; the shell
of an HTML page, one file that asks nothing of any other; and the colours of both on light and on dark backgrounds.

The eight hues of models were found by a search for the largest smallest distance in OKLab, as people with normal sight,
deuteranopia and protanopia see them (Machado, Oliveira and Fernandes 2009), under a contrast of 3 to 1 with the paper.
Hue n is the same name in both themes: blue, orange, teal, purple, yellow, crimson, green, slate.

Grids of cells, one beside the other: rows are queries, columns keys.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from weft.drawing.marks import label
from weft.drawing.markup import Child, Markup, join, tag

FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Liberation Sans",Arial,sans-serif'

RULES = (
    f"text{{font-family:{FONT};font-size:11px;fill:var(--quiet);font-variant-numeric:tabular-nums}}"
    ".name,.title{fill:var(--ink)}.title{font-size:12px;font-weight:600}.head{fill:var(--ink);font-weight:600}"
    ".box{fill:var(--raised);stroke:var(--firm);stroke-width:1}"
    ".thin{fill:var(--paper);stroke:var(--firm);stroke-width:1}"
    ".frame{fill:none;stroke:var(--firm);stroke-width:1;stroke-dasharray:4 3}"
    ".wire{fill:none;stroke:var(--ink);stroke-width:1.2}.tip-mark{fill:var(--ink);stroke:none}"
    ".sum{fill:var(--paper);stroke:var(--ink);stroke-width:1.2}"
    ".memory{fill:none;stroke:var(--m0);stroke-width:1.6}.memory-mark{fill:var(--m0);stroke:none}"
    ".edge{fill:none;stroke:var(--firm);stroke-width:1}"
    ".grid{stroke:var(--hairline)}.base,.zero{stroke:var(--firm);fill:none}"
    ".mean{stroke:var(--c);stroke-width:1.6;stroke-linejoin:round;fill:none}.leader{fill:none;stroke:var(--firm);"
    "stroke-width:.6;opacity:.7}.mark{stroke:var(--c);stroke-width:1.4;fill:var(--c)}"
    ".mark.hollow{fill:var(--paper)}.lit{fill:var(--m0)}.own{fill:var(--ink)}"
    ".unlit{fill:var(--raised)}.dots{fill:var(--c)}")
"""The classes of diagrams, grids and curves, with colours by their names in the palette."""
PAPER = ".paper{fill:var(--paper)}"
"""Of the background of a file."""


@dataclass(frozen=True)
class Figure:
    """A drawing.

    Attributes:
        name: of its file and of its elements, unique in the page.
        title: what it is, in a line.
        description: what is to be seen, for those who cannot see it.
        width: in units of the drawing, which are pixels in a file of its own.
        caption: beneath it on a page.
    """

    name: str
    title: str
    description: str
    width: float
    height: float
    body: Markup
    caption: Child = ""

    def inline(self) -> Markup:
        """The drawing for a page that has `RULES` and the palette; never wider than it was drawn."""
        return self._svg({"style": f"width:{self.width:g}px"}, Markup(""))

    def alone(self) -> str:
        """The drawing as a file: light, and dark where the system asks for it. Converters that know no media queries
        read the light one."""
        used = frozenset(" ".join(["paper", *re.findall(r'class="([^"]*)"', self.body)]).split())
        style = tag("style", None, Markup(_coloured(LIGHT, MODELS_LIGHT, used) + "@media (prefers-color-scheme:dark){"
                                          + _coloured(DARK, MODELS_DARK, used) + "}"))
        paper = tag("rect", {"class": "paper", "width": self.width, "height": self.height})
        size: dict[str, str | float] = {"xmlns": "http://www.w3.org/2000/svg", "width": self.width,
                                        "height": self.height}
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + self._svg(size, Markup(style + paper)) + "\n"

    def _svg(self, attributes: Mapping[str, str | float], before: Markup) -> Markup:
        return tag("svg", {**attributes, "viewBox": f"0 0 {self.width:g} {self.height:g}", "role": "img",
                           "class": "figure", "aria-labelledby": f"{self.name}-t {self.name}-d"},
                   tag("title", {"id": f"{self.name}-t"}, self.title),
                   tag("desc", {"id": f"{self.name}-d"}, self.description), before, self.body)


def page_rules() -> str:
    """`RULES` for the drawings of a page, and for nothing else on it."""
    return "".join(",".join(f".figure {selector}" for selector in selectors.split(",")) + f"{{{body}}}"
                   for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", RULES))


def _coloured(names: Mapping[str, str], models: tuple[str, ...], used: frozenset[str]) -> str:
    """Those of `RULES` that a drawing with the classes ``used`` needs, with colours in place of the palette's names:
    not every converter knows variables."""
    colours = {**names, **{f"m{index}": colour for index, colour in enumerate(models)}}
    rules = [(selector, body) for selectors, body in re.findall(r"([^{}]+)\{([^{}]*)\}", RULES + PAPER)
             for selector in selectors.split(",")]
    found = [(selector, ";".join(part for part in body.split(";") if "var(--c)" not in part))
             for selector, body in rules]
    found += [(f".m{index} {selector}", body.replace("--c", f"--m{index}"))
              for index in range(len(models)) for selector, body in rules if "var(--c)" in body]
    text = "".join(f"{selector}{{{body}}}" for selector, body in found
                   if body and used.issuperset(re.findall(r"\.([\w-]+)", selector)))
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], text)


LIGHT: Mapping[str, str] = {
    "paper": "#fdfcfa", "raised": "#f5f3ee", "ink": "#1c1b19", "quiet": "#5f5c56", "hairline": "#e3dfd7",
    "firm": "#98938a",
    "accent": "#2c4f9e", "flag": "#a3240f", "matched": "#1b6445"}
DARK: Mapping[str, str] = {
    "paper": "#16171a", "raised": "#1f2125", "ink": "#e9e7e2", "quiet": "#a8a59e", "hairline": "#303238",
    "firm": "#71737a",
    "accent": "#9db4f2", "flag": "#ff9a85", "matched": "#7fd0a8"}
MODELS_LIGHT = ("#3653b9", "#b0560f", "#319f91", "#a46ad2", "#8f9a2a", "#a40049", "#005100", "#606e8c")
MODELS_DARK = ("#8d96e8", "#dd8619", "#73b499", "#9a52d4", "#d7cd6c", "#ca3d7e", "#4e7002", "#cac7eb")


def variables(names: Mapping[str, str], models: tuple[str, ...]) -> str:
    """Custom properties of CSS."""
    found = {**names, **{f"m{index}": colour for index, colour in enumerate(models)}}
    return "".join(f"--{name}:{colour};" for name, colour in found.items())


def themes() -> str:
    """Light by default; dark where the system or the reader selects it, never in print."""
    light, dark = variables(LIGHT, MODELS_LIGHT), variables(DARK, MODELS_DARK)
    classes = "".join(f".m{index}{{--c:var(--m{index})}}" for index in range(len(MODELS_LIGHT)))
    return (f":root{{color-scheme:light;{light}}}"
            f"@media screen and "
            f"(prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
            f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}{classes}")


def base_style() -> str:
    """Colours, text, tables and charts: the style that all pages share."""
    return themes() + style_of("weft.drawing", "page.css")


def style_of(package: str, name: str) -> str:
    """A style sheet of a package without its comments and the breaks of its lines, which no reader of a page sees."""
    sheet = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return re.sub(r"\s*\n\s*", "", re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL))


def meta(script: str = "") -> Markup:
    """The page's metadata, with a policy that forbids every request and every script but this one."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scripts = f"script-src 'sha256-{digest}'; " if script else ""
    policy = (f"default-src 'none'; style-src 'unsafe-inline'; {scripts}img-src data:; "
              "base-uri 'none'; form-action 'none'")
    return join(tag("meta", {"charset": "utf-8"}),
                tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
                tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
                tag("meta", {"name": "color-scheme", "content": "light dark"}),
                tag("link", {"rel": "icon", "href": "data:,"}))


def document(title: str, style: str, *body: Markup) -> str:
    """A page without scripts; ``style`` is added to the style that all pages share."""
    head = tag("head", None, meta(), tag("title", None, title), tag("style", None, Markup(base_style() + style)))
    return f"<!DOCTYPE html>\n{tag('html', {'lang': 'en'}, head, tag('body', None, *body))}\n"


BETWEEN, HEAD, SIDE, FOOT = 26.0, 34.0, 22.0, 10.0
"""Units between grids, above them, at the left of each and beneath."""


@dataclass(frozen=True)
class Cells:
    """A grid of shares from 0 to 1.

    Attributes:
        shares: rows of values, all of one length.
    """

    heading: str
    shares: Sequence[Sequence[float]]


def cells_figure(name: str, title: str, description: str, grids: Sequence[Cells], *, cell: float, per_row: int,
                 own: bool = True, rows: str = "queries", columns: str = "keys") -> Figure:
    """Grids as a figure, so many beside one another.

    Args:
        description: what is to be seen.
        grids: all of one size.
        per_row: grids beside one another.
        own: whether the cells of a query and its own key have a colour of their own.
        rows: what the rows are.
    """
    high, wide = len(grids[0].shares) * cell, len(grids[0].shares[0]) * cell
    step_x, step_y = max(wide, 76.0) + BETWEEN + SIDE, high + HEAD + FOOT
    drawn = [_grid(grid, SIDE + index % per_row * step_x, HEAD + index // per_row * step_y, cell, own, rows, columns)
             for index, grid in enumerate(grids)]
    width = min(len(grids), per_row) * step_x - BETWEEN + 6
    return Figure(name, title, description, width, -(-len(grids) // per_row) * step_y, join(*drawn))


def _grid(grid: Cells, x: float, y: float, cell: float, own: bool, rows: str, columns: str) -> Markup:
    gap = 1.0 if cell >= 6 else 0.0
    lag = len(grid.shares[0]) - len(grid.shares)
    marks = [_cell(x + column * cell, y + row * cell, cell - gap, share,
                   "own" if own and column == row + lag else "lit")
             for row, values in enumerate(grid.shares) for column, share in enumerate(values)]
    side = tag("text", {"transform": f"translate({x - 7:g} {y + len(grid.shares) * cell / 2:g}) rotate(-90)",
                        "text-anchor": "middle"}, rows)
    return tag("g", {"data-grid": grid.heading}, label(x, y - 19, grid.heading, kind="name"),
               label(x, y - 5, f"{columns} →"), side, marks)


def _cell(x: float, y: float, side: float, share: float, kind: str) -> Markup:
    attributes: dict[str, str | float | bool | None] = {
        "class": kind if share > 0 else "unlit", "x": round(x, 1), "y": round(y, 1), "width": side, "height": side}
    if 0 < share < 1:
        attributes["fill-opacity"] = round(max(share, 0.06), 3)
    return tag("rect", attributes)
